// Philox4x64-10 as numpy runs it (Salmon et al., SC'11): block b holds the 32-bit draws 8 b .. 8 b + 7. ../../philox.py is the twin.
#pragma once
#include <algorithm>
#include <cstdint>

#include "exact_math.h"

namespace octavo {

struct Philox {
    uint64_t seed, position;

    // The four words of a block.
    void words(uint64_t index, uint64_t out[4]) const {
        uint64_t c0 = index + 1, c1 = position, c2 = 0, c3 = 0, k0 = seed, k1 = 0;
        for (int round = 0; round < 10; ++round) {
            const auto a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93ull) * c0;
            const auto b = static_cast<unsigned __int128>(0xCA5A826395121157ull) * c2;
            const uint64_t next0 = static_cast<uint64_t>(b >> 64) ^ c1 ^ k0, next2 = static_cast<uint64_t>(a >> 64) ^ c3 ^ k1;
            c1 = static_cast<uint64_t>(b);
            c3 = static_cast<uint64_t>(a);
            c0 = next0;
            c2 = next2;
            k0 += 0x9E3779B97F4A7C15ull;
            k1 += 0xBB67AE8584CAA73Bull;
        }
        out[0] = c0;
        out[1] = c1;
        out[2] = c2;
        out[3] = c3;
    }

    static float uniform(uint64_t word, uint64_t draw) {
        const auto half = static_cast<uint32_t>(word >> (draw % 2 * 32));
        return std::max(static_cast<float>(half >> 8) * (1.0f / 16777216.0f), HALF_STEP);
    }

    // The draws of some tokens, whose ids ascend mostly: neighbours share a block, and are found before it is made, since a branch
    // would be guessed wrong every third time.
    void draws(const int32_t *ids, int32_t count, float *out) const {
        constexpr int32_t AT_ONCE = 256;
        uint64_t four[AT_ONCE][4];
        int32_t blocks[AT_ONCE];
        uint8_t which[AT_ONCE];
        for (int32_t from = 0; from < count; from += AT_ONCE) {
            const int32_t some = std::min(AT_ONCE, count - from);
            int32_t last = 0;
            blocks[0] = ids[from] / 8;
            for (int32_t i = 0; i < some; ++i) {
                const int32_t block = ids[from + i] / 8;
                last += block != blocks[last];
                blocks[last] = block;
                which[i] = static_cast<uint8_t>(last);
            }
            for (int32_t i = 0; i <= last; ++i) words(static_cast<uint64_t>(blocks[i]), four[i]);
            for (int32_t i = 0; i < some; ++i) {
                const auto draw = static_cast<uint64_t>(ids[from + i]);
                out[from + i] = uniform(four[which[i]][draw % 8 / 2], draw);
            }
        }
    }

    void block(uint64_t index, float out[8]) const {
        uint64_t four[4];
        words(index, four);
        for (uint64_t i = 0; i < 8; ++i) out[i] = uniform(four[i / 2], i);
    }
};

}  // namespace octavo
