// V: 16 floats in one register of AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "each.h"

namespace ISA {

struct V {
    __m512 v;
};

inline V zero() { return {_mm512_setzero_ps()}; }
inline V set1(float x) { return {_mm512_set1_ps(x)}; }
inline V load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline void store(float *p, V a) { _mm512_storeu_ps(p, a.v); }
inline V operator+(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V operator-(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V operator*(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V operator/(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V abs(V a) { return {_mm512_abs_ps(a.v)}; }
inline float sum(V a) { return _mm512_reduce_add_ps(a.v); }
inline float highest(V a) { return _mm512_reduce_max_ps(a.v); }

// Element i of the result is what `of` makes of the lanes of a[i], by pairs.
template <typename F>
OCTAVO_INLINE inline __m512 reduce_each(const __m512 a[16], F &&of) {
    __m512 t[8], u[4];
    each<8>([&](auto i) OCTAVO_INLINE {
        t[i] = of(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    });
    each<4>([&](auto i) OCTAVO_INLINE {
        const __m512d x = _mm512_castps_pd(t[2 * i]), y = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = of(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    });
    const auto lanes = [&](__m512 x, __m512 y) OCTAVO_INLINE {
        return of(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    };
    return lanes(lanes(u[0], u[1]), lanes(u[2], u[3]));
}

inline __m512 sums_of(const __m512 a[16]) {
    return reduce_each(a, [](__m512 x, __m512 y) OCTAVO_INLINE { return _mm512_add_ps(x, y); });
}
inline V sum_of_each(const V a[16]) {
    __m512 lanes[16];
    each<16>([&](auto i) OCTAVO_INLINE { lanes[i] = a[i].v; });
    return {sums_of(lanes)};
}
inline V highest_of_each(const V a[16]) {
    __m512 lanes[16];
    each<16>([&](auto i) OCTAVO_INLINE { lanes[i] = a[i].v; });
    return {reduce_each(lanes, [](__m512 x, __m512 y) OCTAVO_INLINE { return _mm512_max_ps(x, y); })};
}

inline V load_bf16(const uint16_t *p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline void store_bf16(uint16_t *p, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}
inline V load_i8(const int8_t *p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
inline V load_half(const uint16_t *p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}
// Rounds to nearest even; the values must fit int8.
inline void store_i8(int8_t *p, V a) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline V floor(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
inline V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n * a for whole n in float form.
inline V scale_by_power(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Where index + lane lies in [low, high): a; elsewhere b. `index` is the position of lane 0.
inline V within(int index, int low, int high, V a, V b) {
    const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(index), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                                                                     11, 12, 13, 14, 15));
    const __mmask16 mask = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(low)) &
                           _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(high));
    return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}

inline bool any_nan(V a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) != 0; }

// Whether one of 16 values is at least `least`.
inline bool reaches(V a, float least) { return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(least), _CMP_GE_OQ) != 0; }

// Those of 16 values that are at least `least`, and their places from `first` on, one after the other; how many.
inline int put_at_least(V a, float least, int32_t first, float *values, int32_t *ids) {
    const __mmask16 found = _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(least), _CMP_GE_OQ);
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps(found, a.v));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(found, places));
    return __builtin_popcount(found);
}

// out[2 i] = a[i], out[2 i + 1] = b[i], 32 each.
inline void interleave(const uint16_t *a, const uint16_t *b, uint16_t *out) {
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(low, second, high));
}

// out[j * stride + i] = rows[i * row_stride + j] for 16 x 16 words of 32 bits; strides in words.
inline void transpose16(const uint32_t *rows, int64_t row_stride, uint32_t *out, int64_t stride) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows + i * row_stride);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int j = 0; j < 4; ++j) {  // lane l of a[4 i + j] holds column 4 l + j of rows 4 i .. 4 i + 3
        const __m512i x = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), y = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        const __m512i z = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd), w = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
        _mm512_storeu_si512(out + j * stride, _mm512_shuffle_i32x4(x, y, 0x88));
        _mm512_storeu_si512(out + (8 + j) * stride, _mm512_shuffle_i32x4(x, y, 0xdd));
        _mm512_storeu_si512(out + (4 + j) * stride, _mm512_shuffle_i32x4(z, w, 0x88));
        _mm512_storeu_si512(out + (12 + j) * stride, _mm512_shuffle_i32x4(z, w, 0xdd));
    }
}

}  // namespace ISA
