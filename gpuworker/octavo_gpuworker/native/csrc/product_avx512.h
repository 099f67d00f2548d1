// Matrix products of AVX-512: vdpbf16ps and vpdpbusd over panels of 32 columns.
#pragma once
#include <algorithm>

#include "each.h"
#include "kernels.h"
#include "pack.h"
#include "slices.h"
#include "vec_avx512.h"

namespace ISA {

using octavo::Activations;
using octavo::GROUP;

constexpr int BF16_ROWS = 12, INT8_ROWS = 6, INT4_ROWS = 4;
constexpr int ATTEND_ROWS = 48;  // of attend_many beside a block of keys: their scores, weights and sums stay in the first cache
constexpr int PREFETCH_BYTES = 4096;  // the hardware stops at pages; 1 KB to 8 KB measured alike

// `more`: adds to what `out` holds.
template <int ROWS, int AHEAD>
inline void tile_bf16(const uint16_t *x, int64_t x_stride, const uint8_t *panel, int64_t depth, bool more, float *out,
                      int64_t stride) {
    __m512 acc[ROWS][2];
    each<ROWS>([&](auto r) OCTAVO_INLINE { acc[r][0] = acc[r][1] = _mm512_setzero_ps(); });
    if (more)
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            acc[r][0] = _mm512_loadu_ps(out + r * stride);
            acc[r][1] = _mm512_loadu_ps(out + r * stride + 16);
        });
    constexpr int DISTANCE = AHEAD == FIRST_LINES || AHEAD == LAST_LINES ? SLICE_BYTES : PREFETCH_BYTES;
    for (int64_t k = 0; k < depth; k += 2, panel += 128) {
        if (AHEAD & FIRST_LINES) _mm_prefetch(reinterpret_cast<const char *>(panel) + DISTANCE, _MM_HINT_T0);
        if (AHEAD & LAST_LINES) _mm_prefetch(reinterpret_cast<const char *>(panel) + DISTANCE + 64, _MM_HINT_T0);
        const auto w0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel));
        const auto w1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + 64));
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            int32_t pair;
            __builtin_memcpy(&pair, x + r * x_stride + k, 4);
            const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, both);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, both);
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        _mm512_storeu_ps(out + r * stride, acc[r][0]);
        _mm512_storeu_ps(out + r * stride + 16, acc[r][1]);
    });
}

inline __m512i quad(const int8_t *x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

// Groups [first, last), the first of which lies at `panel`; from the second slice on it adds to what `out` holds.
template <int ROWS, int AHEAD>
inline void tile_int8(const Activations &x, int64_t row, const uint8_t *panel, int64_t first, int64_t last, float *out,
                      int64_t stride) {
    const int64_t groups = x.depth / GROUP;
    constexpr int DISTANCE = AHEAD == FIRST_LINES || AHEAD == LAST_LINES ? INT8_SLICE_BYTES : PREFETCH_BYTES;
    __m512 acc[ROWS][2];
    each<ROWS>([&](auto r) OCTAVO_INLINE { acc[r][0] = acc[r][1] = _mm512_setzero_ps(); });
    if (first)
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            acc[r][0] = _mm512_loadu_ps(out + r * stride);
            acc[r][1] = _mm512_loadu_ps(out + r * stride + 16);
        });
    for (int64_t g = first; g < last; ++g, panel += octavo::INT8_GROUP) {
        __m512i part[ROWS][2];
        each<ROWS>([&](auto r) OCTAVO_INLINE { part[r][0] = part[r][1] = _mm512_set1_epi32(x.comp[(row + r) * groups + g]); });
        if (AHEAD & FIRST_LINES)
            _mm_prefetch(reinterpret_cast<const char *>(panel) + DISTANCE + octavo::INT8_CODES, _MM_HINT_T0);
        for (int k = 0; k < GROUP; k += 4) {
            const uint8_t *at = panel + k * 32;
            if (AHEAD & FIRST_LINES) _mm_prefetch(reinterpret_cast<const char *>(at) + DISTANCE, _MM_HINT_T0);
            if (AHEAD & LAST_LINES) _mm_prefetch(reinterpret_cast<const char *>(at) + DISTANCE + 64, _MM_HINT_T0);
            const __m512i w0 = _mm512_loadu_si512(at), w1 = _mm512_loadu_si512(at + 64);
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                const __m512i four = quad(x.codes + (row + r) * x.depth + g * GROUP + k);
                part[r][0] = _mm512_dpbusd_epi32(part[r][0], w0, four);
                part[r][1] = _mm512_dpbusd_epi32(part[r][1], w1, four);
            });
        }
        const auto *halves = reinterpret_cast<const uint16_t *>(panel + octavo::INT8_CODES);
        const __m512 d0 = load_half(halves).v, d1 = load_half(halves + 16).v;
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            const __m512 scale = _mm512_set1_ps(x.scales[(row + r) * groups + g]);
            acc[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part[r][0]), scale), d0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part[r][1]), scale), d1, acc[r][1]);
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        _mm512_storeu_ps(out + r * stride, acc[r][0]);
        _mm512_storeu_ps(out + r * stride + 16, acc[r][1]);
    });
}

template <int ROWS, bool STREAM>
inline void tile_int4(const Activations &x, int64_t row, const uint8_t *panel, float *out, int64_t stride) {
    const int64_t groups = x.depth / GROUP;
    const __m512i low = _mm512_set1_epi8(0x0f);
    __m512 acc[ROWS][2];
    each<ROWS>([&](auto r) OCTAVO_INLINE { acc[r][0] = acc[r][1] = _mm512_setzero_ps(); });
    for (int64_t g = 0; g < groups; ++g, panel += octavo::INT4_GROUP) {
        if (STREAM)
            for (int line = 0; line < octavo::INT4_GROUP; line += 64)
                _mm_prefetch(reinterpret_cast<const char *>(panel) + PREFETCH_BYTES + line, _MM_HINT_T0);
        __m512i part[ROWS][2];
        each<ROWS>([&](auto r) OCTAVO_INLINE { part[r][0] = part[r][1] = _mm512_setzero_si512(); });
        for (int j = 0; j < 4; ++j) {
            const __m512i w0 = _mm512_loadu_si512(panel + j * 128), w1 = _mm512_loadu_si512(panel + j * 128 + 64);
            const __m512i first0 = _mm512_and_si512(w0, low), first1 = _mm512_and_si512(w1, low);
            const __m512i second0 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), low);
            const __m512i second1 = _mm512_and_si512(_mm512_srli_epi16(w1, 4), low);
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                const int8_t *codes = x.codes + (row + r) * x.depth + g * GROUP + j * 4;
                const __m512i near = quad(codes), far = quad(codes + 16);
                part[r][0] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(part[r][0], first0, near), second0, far);
                part[r][1] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(part[r][1], first1, near), second1, far);
            });
        }
        const auto *halves = reinterpret_cast<const uint16_t *>(panel + octavo::INT4_CODES);
        const __m512 d0 = load_half(halves).v, d1 = load_half(halves + 16).v;
        const __m512 m0 = load_half(halves + 32).v, m1 = load_half(halves + 48).v;
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            const __m512 scale = _mm512_set1_ps(x.scales[(row + r) * groups + g]);
            const __m512 sum = _mm512_set1_ps(x.sums[(row + r) * groups + g]);
            acc[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part[r][0]), scale), d0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part[r][1]), scale), d1, acc[r][1]);
            acc[r][0] = _mm512_fmadd_ps(m0, sum, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(m1, sum, acc[r][1]);
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        _mm512_storeu_ps(out + r * stride, acc[r][0]);
        _mm512_storeu_ps(out + r * stride + 16, acc[r][1]);
    });
}

}  // namespace ISA
