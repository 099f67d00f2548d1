// Matrix products of AVX2: the same panels, multiplied as float32 (bf16) or by pairs of int8. Integer sums equal AVX-512's.
#pragma once
#include <algorithm>

#include "each.h"
#include "kernels.h"
#include "pack.h"
#include "slices.h"
#include "vec_avx2.h"

namespace ISA {

using octavo::Activations;
using octavo::GROUP;

constexpr int BF16_ROWS = 4, INT8_ROWS = 2, INT4_ROWS = 2;
constexpr int ATTEND_ROWS = 48;  // as in product_avx512.h
constexpr int PREFETCH_BYTES = 2048;

// `more`: adds to what `out` holds.
template <int ROWS, int AHEAD>
inline void tile_bf16(const uint16_t *x, int64_t x_stride, const uint8_t *panel, int64_t depth, bool more, float *out,
                      int64_t stride) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    each<2>([&](auto part) OCTAVO_INLINE {
        __m256 acc[ROWS][2];
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            acc[r][0] = more ? _mm256_loadu_ps(out + r * stride + part * 16) : _mm256_setzero_ps();
            acc[r][1] = more ? _mm256_loadu_ps(out + r * stride + part * 16 + 8) : _mm256_setzero_ps();
        });
        const uint8_t *at = panel + part * 64;
        for (int64_t k = 0; k < depth; k += 2, at += 128) {
            if (AHEAD) _mm_prefetch(reinterpret_cast<const char *>(at) + PREFETCH_BYTES, _MM_HINT_T0);
            const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
            const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at + 32));
            const __m256 even0 = _mm256_castsi256_ps(_mm256_slli_epi32(w0, 16));
            const __m256 even1 = _mm256_castsi256_ps(_mm256_slli_epi32(w1, 16));
            const __m256 odd0 = _mm256_castsi256_ps(_mm256_and_si256(w0, high));
            const __m256 odd1 = _mm256_castsi256_ps(_mm256_and_si256(w1, high));
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                int32_t pair;
                __builtin_memcpy(&pair, x + r * x_stride + k, 4);
                const __m256i both = _mm256_set1_epi32(pair);
                const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
                const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(both, high));
                acc[r][0] = _mm256_fmadd_ps(odd0, odd, _mm256_fmadd_ps(even0, even, acc[r][0]));
                acc[r][1] = _mm256_fmadd_ps(odd1, odd, _mm256_fmadd_ps(even1, even, acc[r][1]));
            });
        }
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            _mm256_storeu_ps(out + r * stride + part * 16, acc[r][0]);
            _mm256_storeu_ps(out + r * stride + part * 16 + 8, acc[r][1]);
        });
    });
}

inline __m256i quad(const int8_t *x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

// acc + w * x summed by fours; |w|, |x| <= 127, so the pairs' sums stay below 2^15.
inline __m256i add_products(__m256i acc, __m256i w, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// acc + w * x summed by fours for w in 0..15.
inline __m256i add_small_products(__m256i acc, __m256i w, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}

inline __m256i panel_part(const uint8_t *at, int c) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at + c * 32));
}

// Groups [first, last), the first of which lies at `panel`; from the second slice on it adds to what `out` holds.
template <int ROWS, int AHEAD>
inline void tile_int8(const Activations &x, int64_t row, const uint8_t *panel, int64_t first, int64_t last, float *out,
                      int64_t stride) {
    const int64_t groups = x.depth / GROUP;
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    __m256 acc[ROWS][4];
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<4>([&](auto c) OCTAVO_INLINE {
            acc[r][c] = first ? _mm256_loadu_ps(out + r * stride + c * 8) : _mm256_setzero_ps();
        });
    });
    for (int64_t g = first; g < last; ++g, panel += octavo::INT8_GROUP) {
        __m256i part[ROWS][4];
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            each<4>([&](auto c) OCTAVO_INLINE { part[r][c] = _mm256_setzero_si256(); });
        });
        if (AHEAD) _mm_prefetch(reinterpret_cast<const char *>(panel) + PREFETCH_BYTES + octavo::INT8_CODES, _MM_HINT_T0);
        for (int k = 0; k < GROUP; k += 4) {
            const uint8_t *at = panel + k * 32;
            if (AHEAD) {
                _mm_prefetch(reinterpret_cast<const char *>(at) + PREFETCH_BYTES, _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char *>(at) + PREFETCH_BYTES + 64, _MM_HINT_T0);
            }
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                const __m256i four = quad(x.codes + (row + r) * x.depth + g * GROUP + k);
                each<4>([&](auto c) OCTAVO_INLINE {
                    part[r][c] = add_products(part[r][c], _mm256_xor_si256(panel_part(at, c), flip), four);
                });
            });
        }
        const auto *halves = reinterpret_cast<const uint16_t *>(panel + octavo::INT8_CODES);
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            const __m256 scale = _mm256_set1_ps(x.scales[(row + r) * groups + g]);
            each<4>([&](auto c) OCTAVO_INLINE {
                const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves + c * 8)));
                acc[r][c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(part[r][c]), scale), d, acc[r][c]);
            });
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<4>([&](auto c) OCTAVO_INLINE {
            _mm256_storeu_ps(out + r * stride + c * 8, acc[r][c]);
        });
    });
}

template <int ROWS, bool STREAM>
inline void tile_int4(const Activations &x, int64_t row, const uint8_t *panel, float *out, int64_t stride) {
    const int64_t groups = x.depth / GROUP;
    const __m256i low = _mm256_set1_epi8(0x0f);
    __m256 acc[ROWS][4];
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<4>([&](auto c) OCTAVO_INLINE { acc[r][c] = _mm256_setzero_ps(); });
    });
    for (int64_t g = 0; g < groups; ++g, panel += octavo::INT4_GROUP) {
        if (STREAM)
            for (int line = 0; line < octavo::INT4_GROUP; line += 64)
                _mm_prefetch(reinterpret_cast<const char *>(panel) + PREFETCH_BYTES + line, _MM_HINT_T0);
        __m256i part[ROWS][4];
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            each<4>([&](auto c) OCTAVO_INLINE { part[r][c] = _mm256_setzero_si256(); });
        });
        for (int j = 0; j < 4; ++j) {
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                const int8_t *codes = x.codes + (row + r) * x.depth + g * GROUP + j * 4;
                const __m256i near = quad(codes), far = quad(codes + 16);
                each<4>([&](auto c) OCTAVO_INLINE {
                    const __m256i w = panel_part(panel + j * 128, c);
                    part[r][c] = add_small_products(part[r][c], _mm256_and_si256(w, low), near);
                    part[r][c] = add_small_products(part[r][c], _mm256_and_si256(_mm256_srli_epi16(w, 4), low), far);
                });
            });
        }
        const auto *halves = reinterpret_cast<const uint16_t *>(panel + octavo::INT4_CODES);
        each<ROWS>([&](auto r) OCTAVO_INLINE {
            const __m256 scale = _mm256_set1_ps(x.scales[(row + r) * groups + g]);
            const __m256 sum = _mm256_set1_ps(x.sums[(row + r) * groups + g]);
            each<4>([&](auto c) OCTAVO_INLINE {
                const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves + c * 8)));
                const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves + 32 + c * 8)));
                acc[r][c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(part[r][c]), scale), d, acc[r][c]);
                acc[r][c] = _mm256_fmadd_ps(m, sum, acc[r][c]);
            });
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<4>([&](auto c) OCTAVO_INLINE { _mm256_storeu_ps(out + r * stride + c * 8, acc[r][c]); });
    });
}

}  // namespace ISA
