// What is done to many logits or candidates of a row at a time: 16 or 8 of them, with the same bits. Include it only in units compiled
// without contraction of a * b + c.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "api.h"
#include "exact_math.h"

namespace octavo {

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr int CHUNK = 512;  // halves of masses are below 2^20: so many fit an int32

// The largest of count values, none of which is NaN. By hand: a compiler that keeps the order of comparisons does one at a time.
inline float largest_of(const float *x, int32_t count) {
    __m256 most = _mm256_set1_ps(NEVER), other = most;
    int32_t i = 0;
    for (; i + 16 <= count; i += 16) {
        most = _mm256_max_ps(_mm256_loadu_ps(x + i), most);
        other = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), other);
    }
    float lanes[8], result = NEVER;
    _mm256_storeu_ps(lanes, _mm256_max_ps(most, other));
    for (const float lane : lanes) result = lane > result ? lane : result;
    for (; i < count; ++i) result = x[i] > result ? x[i] : result;
    return result;
}

// away[i] = x[i] / temperature - best for count <= CHUNK values; returns the sum of their masses.
using MeasureChunk = int64_t (*)(const float *x, int count, float temperature, float best, float *away);

__attribute__((always_inline)) inline int64_t measure_any(const float *x, int count, float temperature, float best, float *away) {
    for (int i = 0; i < count; ++i) away[i] = x[i] / temperature - best;
    if (largest_of(away, count) < MASSLESS) return 0;
    int32_t high = 0, low = 0;
    for (int i = 0; i < count; ++i) {  // floor(weight * 2^40) in two halves, whose every step is exact
        const float share = exp_exact(away[i]) * MASS_HALF;
        const auto whole = static_cast<int32_t>(share);
        high += whole;
        low += static_cast<int32_t>((share - static_cast<float>(whole)) * MASS_HALF);
    }
    return (static_cast<int64_t>(high) << 20) + low;
}

static int64_t measure_256(const float *x, int count, float temperature, float best, float *away) {
    return measure_any(x, count, temperature, best, away);
}

// The same bits, 16 at a time: 34 us a row of 49,152 against 52.
__attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512"))) static int64_t
measure_512(const float *x, int count, float temperature, float best, float *away) {
    return measure_any(x, count, temperature, best, away);
}

inline MeasureChunk measure_of(int isa) { return isa == OCTAVO_AVX2 ? measure_256 : measure_512; }

// The sum of exp(x[i] / temperature - best) within SUM_ERROR of what the masses are floors of: half the time, and enough wherever no
// token's place hangs on the rest.
using SumChunk = float (*)(const float *x, int count, float temperature, float best);
constexpr double HARVEST_ERROR = 1e-5;  // of what the head leaves: a shorter polynomial, see harvest.h; and the same roundings
constexpr double SUM_ERROR = 4e-6;  // both forms of exp are within 3 units in the last place, and some 36 roundings of a chunk's sum follow

static float sum_256(const float *x, int count, float temperature, float best) {
    float away[CHUNK], lanes[8] = {}, sum = 0.0f;
    for (int i = 0; i < count; ++i) away[i] = x[i] / temperature - best;
    int i = 0;
    for (; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += exp_exact(away[i + lane]);
    for (; i < count; ++i) sum += exp_exact(away[i]);
    for (const float lane : lanes) sum += lane;
    return sum;
}

__attribute__((target("avx512f"))) static float sum_512(const float *x, int count, float temperature, float best) {
    const __m512 divisor = _mm512_set1_ps(temperature), top = _mm512_set1_ps(best), one = _mm512_set1_ps(1.0f);
    __m512 sums = _mm512_setzero_ps();
    for (int i = 0; i < count; i += 16) {
        const auto there = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
        const __m512 t = _mm512_sub_ps(_mm512_div_ps(_mm512_maskz_loadu_ps(there, x + i), divisor), top);
        const __m512 x0 = _mm512_max_ps(t, _mm512_set1_ps(-87.0f));
        const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x0, _mm512_set1_ps(1.44269504088896341f)), 8);
        const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x0));
        __m512 p = _mm512_set1_ps(1.9875691500e-4f);
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
        p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, one));
        sums = _mm512_mask_add_ps(sums, there, sums, _mm512_scalef_ps(p, n));
    }
    return _mm512_reduce_add_ps(sums);
}

inline SumChunk sum_of(int isa) { return isa == OCTAVO_AVX2 ? sum_256 : sum_512; }

// Of count values those whose x / temperature lies at least `reach` from the best: their ids (of `names`, or where that is null first,
// first + 1, ...) and logits over the temperature. Returns how many; both outputs have room for 16 more.
using GatherChunk = int32_t (*)(const float *x, int count, float best, float reach, const int32_t *names, int32_t first, float temperature,
                                int32_t *ids, float *scaled);

static int32_t gather_256(const float *x, int count, float best, float reach, const int32_t *names, int32_t first, float temperature,
                          int32_t *ids, float *scaled) {
    const __m256 divisor = _mm256_set1_ps(temperature), top = _mm256_set1_ps(best), least = _mm256_set1_ps(reach);
    int32_t kept = 0;
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        float lanes[8];
        const __m256 value = _mm256_div_ps(_mm256_loadu_ps(x + i), divisor);
        auto found = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_sub_ps(value, top), least, _CMP_GE_OQ)));
        if (found) _mm256_storeu_ps(lanes, value);
        for (; found; found &= found - 1) {
            const int lane = __builtin_ctz(found);
            ids[kept] = names ? names[i + lane] : first + i + lane;
            scaled[kept++] = lanes[lane];
        }
    }
    for (; i < count; ++i) {
        ids[kept] = names ? names[i] : first + i;
        scaled[kept] = x[i] / temperature;
        kept += scaled[kept] - best >= reach;
    }
    return kept;
}

// The same, 16 at a time: a flat row has thousands of candidates.
__attribute__((target("avx512f"))) static int32_t gather_512(const float *x, int count, float best, float reach,
                                                             const int32_t *names, int32_t first, float temperature, int32_t *ids,
                                                             float *scaled) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 divisor = _mm512_set1_ps(temperature), top = _mm512_set1_ps(best), least = _mm512_set1_ps(reach);
    int32_t kept = 0;
    for (int i = 0; i < count; i += 16) {
        const auto there = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
        const __m512 value = _mm512_div_ps(_mm512_maskz_loadu_ps(there, x + i), divisor);
        const __mmask16 found = _mm512_mask_cmp_ps_mask(there, _mm512_sub_ps(value, top), least, _CMP_GE_OQ);
        if (!found) continue;
        const __m512i named = names ? _mm512_maskz_loadu_epi32(there, names + i) : _mm512_add_epi32(places, _mm512_set1_epi32(first + i));
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(found, named));
        _mm512_storeu_ps(scaled + kept, _mm512_maskz_compress_ps(found, value));
        kept += __builtin_popcount(found);
    }
    return kept;
}

inline GatherChunk gather_of(int isa) { return isa == OCTAVO_AVX2 ? gather_256 : gather_512; }

// The sum of the masses of exp(x - best).
inline int64_t total_mass(const float *x, int32_t count, float best, MeasureChunk measure) {
    float away[CHUNK];
    int64_t total = 0;
    for (int32_t at = 0; at < count; at += CHUNK) total += measure(x + at, std::min(CHUNK, count - at), 1.0f, best, away);
    return total;
}

constexpr int BUCKETS = 1024;
constexpr float BUCKETS_PER_LOGIT = 32.0f;

// Steps over candidates, of which a flat row has thousands; every operation of all but weight_above rounds once, so that both forms have the same bits.
struct CandidateMath {
    // weights[i] = exp(scaled[i] - best).
    void (*weigh)(const float *scaled, int count, float best, float *weights);
    // The sum of the weights of those that lie above `value`, within count / 16 roundings.
    float (*weight_above)(const float *scaled, const float *weights, int32_t count, float value);
    // The sum of the masses of exp(scaled[i] - best) of those that lie above `value`, for count <= CHUNK.
    int64_t (*mass_above)(const float *scaled, int count, float best, float value);
    // score[i] = scaled[i] + the Gumbel noise of the draw in score[i].
    void (*score)(const float *scaled, int count, float *score);
    // Moves those that lie above `value` to the front, in their order; returns how many.
    int32_t (*keep_above)(float *scaled, int32_t *ids, int32_t count, float value);
};

__attribute__((always_inline)) inline void weigh_any(const float *scaled, int count, float best, float *weights) {
    for (int i = 0; i < count; ++i) weights[i] = exp_exact(scaled[i] - best);
}

__attribute__((always_inline)) inline int64_t mass_above_any(const float *scaled, int count, float best, float value) {
    int32_t high = 0, low = 0;
    for (int i = 0; i < count; ++i) {  // as in measure_any
        const float weight = exp_exact(scaled[i] - best), share = (scaled[i] > value ? weight : 0.0f) * MASS_HALF;
        const auto whole = static_cast<int32_t>(share);
        high += whole;
        low += static_cast<int32_t>((share - static_cast<float>(whole)) * MASS_HALF);
    }
    return (static_cast<int64_t>(high) << 20) + low;
}

__attribute__((always_inline)) inline void score_any(const float *scaled, int count, float *score) {
    for (int i = 0; i < count; ++i) score[i] = scaled[i] + gumbel_of(score[i]);
}

static void weigh_256(const float *scaled, int count, float best, float *weights) { weigh_any(scaled, count, best, weights); }
static int64_t mass_above_256(const float *scaled, int count, float best, float value) { return mass_above_any(scaled, count, best, value); }
static void score_256(const float *scaled, int count, float *score) { score_any(scaled, count, score); }

static float weight_above_256(const float *scaled, const float *weights, int32_t count, float value) {
    const __m256 bound = _mm256_set1_ps(value);
    __m256 sums = _mm256_setzero_ps();
    float lanes[8], sum = 0.0f;
    int32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(scaled + i), bound, _CMP_GT_OQ);
        sums = _mm256_add_ps(sums, _mm256_and_ps(above, _mm256_loadu_ps(weights + i)));
    }
    for (; i < count; ++i) sum += scaled[i] > value ? weights[i] : 0.0f;
    _mm256_storeu_ps(lanes, sums);
    for (const float lane : lanes) sum += lane;
    return sum;
}

static int32_t keep_above_256(float *scaled, int32_t *ids, int32_t count, float value) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        const float own = scaled[i];
        scaled[kept] = own;
        ids[kept] = ids[i];
        kept += own > value;  // no branch: it would be guessed wrong every third time
    }
    return kept;
}

#define OCTAVO_WIDE __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
OCTAVO_WIDE static void weigh_512(const float *scaled, int count, float best, float *weights) { weigh_any(scaled, count, best, weights); }
OCTAVO_WIDE static int64_t mass_above_512(const float *scaled, int count, float best, float value) {
    return mass_above_any(scaled, count, best, value);
}
OCTAVO_WIDE static void score_512(const float *scaled, int count, float *score) { score_any(scaled, count, score); }

OCTAVO_WIDE static float weight_above_512(const float *scaled, const float *weights, int32_t count, float value) {
    const __m512 bound = _mm512_set1_ps(value);
    __m512 sums = _mm512_setzero_ps();
    for (int32_t i = 0; i < count; i += 16) {
        const auto there = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
        const __mmask16 above = _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, scaled + i), bound, _CMP_GT_OQ);
        sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(above, weights + i));
    }
    return _mm512_reduce_add_ps(sums);
}

OCTAVO_WIDE static int32_t keep_above_512(float *scaled, int32_t *ids, int32_t count, float value) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i += 16) {
        const auto there = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
        const __m512 own = _mm512_maskz_loadu_ps(there, scaled + i);
        const __m512i id = _mm512_maskz_loadu_epi32(there, ids + i);
        const __mmask16 found = _mm512_mask_cmp_ps_mask(there, own, _mm512_set1_ps(value), _CMP_GT_OQ);
        _mm512_storeu_ps(scaled + kept, _mm512_maskz_compress_ps(found, own));  // behind what was read already
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(found, id));
        kept += __builtin_popcount(found);
    }
    return kept;
}
#undef OCTAVO_WIDE

inline CandidateMath math_of(int isa) {
    return isa == OCTAVO_AVX2 ? CandidateMath{weigh_256, weight_above_256, mass_above_256, score_256, keep_above_256}
                              : CandidateMath{weigh_512, weight_above_512, mass_above_512, score_512, keep_above_512};
}

}  // namespace octavo
