// V: 16 floats in two registers of AVX2.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ISA {

struct V {
    __m256 a, b;
};

inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float *p, V x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline V operator+(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V operator-(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V operator*(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V operator/(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline V abs(V x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline float sum(V x) {
    const __m256 both = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float highest(V x) {
    const __m256 both = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Element i of the result is the sum, or the largest, of the lanes of a[i].
inline V sum_of_each(const V a[16]) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = sum(a[i]);
    return load(lanes);
}
inline V highest_of_each(const V a[16]) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = highest(a[i]);
    return load(lanes);
}

inline __m256 widen_bf16(const uint16_t *p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline V load_bf16(const uint16_t *p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
// Round to nearest even; a NaN stays one.
inline __m256i narrow_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(uint16_t *p, V x) {
    const __m256i packed = _mm256_packus_epi32(narrow_bf16(x.a), narrow_bf16(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline __m256 widen_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}
inline V load_i8(const int8_t *p) { return {widen_i8(p), widen_i8(p + 8)}; }
inline V load_half(const uint16_t *p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 8)))};
}
inline void store_i8(int8_t *p, V x) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
inline V floor(V x) { return {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }
inline V round(V x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline __m256 power_of_two(__m256 n) {
    const __m256 low = _mm256_max_ps(n, _mm256_set1_ps(-127.0f));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(low), _mm256_set1_epi32(127)), 23));
}
inline V scale_by_power(V x, V n) {
    return {_mm256_mul_ps(x.a, power_of_two(n.a)), _mm256_mul_ps(x.b, power_of_two(n.b))};
}
inline __m256 within_half(int index, int low, int high, __m256 x, __m256 y) {
    const __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(index), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i mask = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1)),
                                          _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(mask));
}
inline V within(int index, int low, int high, V x, V y) {
    return {within_half(index, low, high, x.a, y.a), within_half(index + 8, low, high, x.b, y.b)};
}


// out[2 i] = a[i], out[2 i + 1] = b[i], 32 each.
inline void interleave(const uint16_t *a, const uint16_t *b, uint16_t *out) {
    for (int i = 0; i < 32; i += 8) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(a + i));
        const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i *>(b + i));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + 2 * i), _mm_unpacklo_epi16(x, y));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + 2 * i + 8), _mm_unpackhi_epi16(x, y));
    }
}

// out[j * stride + i] = rows[i * row_stride + j] for 16 x 16 words of 32 bits; strides in words.
inline void transpose16(const uint32_t *rows, int64_t row_stride, uint32_t *out, int64_t stride) {
    for (int j = 0; j < 16; ++j)
        for (int i = 0; i < 16; ++i) out[j * stride + i] = rows[i * row_stride + j];
}

inline bool any_nan(V x) {
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) != 0;
}

// Whether one of 16 values is at least `least`.
inline bool reaches(V x, float least) {
    const __m256 bound = _mm256_set1_ps(least);
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, bound, _CMP_GE_OQ), _mm256_cmp_ps(x.b, bound, _CMP_GE_OQ))) != 0;
}

// Those of 16 values that are at least `least`, and their places from `first` on, one after the other; how many.
inline int put_at_least(V x, float least, int32_t first, float *values, int32_t *ids) {
    const __m256 bound = _mm256_set1_ps(least);
    auto found = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, bound, _CMP_GE_OQ)) |
                                       _mm256_movemask_ps(_mm256_cmp_ps(x.b, bound, _CMP_GE_OQ)) << 8);
    float lanes[16];
    if (found) store(lanes, x);
    int count = 0;
    for (; found; found &= found - 1) {
        const int lane = __builtin_ctz(found);
        values[count] = lanes[lane];
        ids[count++] = first + lane;
    }
    return count;
}
}  // namespace ISA
