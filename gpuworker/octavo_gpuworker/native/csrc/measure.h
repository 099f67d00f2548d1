// What this machine can do at best: the denominators of the benchmarks.
#pragma once
#include "kernels.h"
#include "pack.h"

namespace ISA {

// Reads every byte once; the result keeps the compiler from leaving it out.
inline double read_bytes(const uint8_t *data, int64_t bytes) {
    V a = zero(), b = zero(), c = zero(), d = zero();
    for (int64_t at = 0; at + 256 <= bytes; at += 256) {
        for (int line = 0; line < 256; line += 64)
            _mm_prefetch(reinterpret_cast<const char *>(data) + at + PREFETCH_BYTES + line, _MM_HINT_T0);
        const auto *from = reinterpret_cast<const float *>(data + at);
        a = max(a, load(from));
        b = max(b, load(from + 16));
        c = max(c, load(from + 32));
        d = max(d, load(from + 48));
    }
    return highest(max(max(a, b), max(c, d)));
}

// Tiles over one panel that stays in the first cache: multiply-adds done.
inline double burn(int format, int64_t iterations) {
    constexpr int64_t DEPTH = 256;
    const int rows = format == OCTAVO_BF16 ? BF16_ROWS : format == OCTAVO_INT8 ? INT8_ROWS : INT4_ROWS;
    // Arrays, not vectors: a template of the standard library compiled here could be picked for a CPU without these instructions.
    alignas(64) static thread_local uint8_t panel[DEPTH * 64];
    alignas(64) static thread_local uint16_t halves[12 * DEPTH];
    alignas(64) static thread_local int8_t codes[12 * DEPTH];
    static thread_local float scales[12 * DEPTH], sums[12 * DEPTH], out[12 * 32];
    static thread_local int32_t comp[12 * DEPTH];
    const Activations x{halves, codes, scales, sums, comp, DEPTH};
    OctavoMatrix w{panel, nullptr, 32, DEPTH};
    double kept = 0;
    for (int64_t i = 0; i < iterations; ++i) {
        one_tile<false>(format, x, 0, rows, w, panel, out, 32);
        kept += out[0];
    }
    return kept + static_cast<double>(iterations) * rows * 32 * DEPTH;
}

}  // namespace ISA
