// Candidates: the tokens of a row within reach of its best one, found in the one pass that sums the masses of all. A nucleus is a
// few hundred of 49,152 tokens, so nothing of the size of the vocabulary is written, and only the few are put in order.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "api.h"
#include "exact_math.h"
#include "kernels.h"
#include "sampler.h"

namespace octavo {

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr int CHUNK = 512;  // halves of masses are below 2^20: so many fit an int32

struct RowParams {
    float temperature;
    int32_t top_k;
    double top_p, min_p;
};

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

// Steps over candidates whose every operation rounds once, so that both forms have the same bits; a flat row has thousands.
struct CandidateMath {
    // weights[i] = exp(scaled[i] - best).
    void (*weigh)(const float *scaled, int count, float best, float *weights);
    // How far scaled[i] lies from the best in steps that keep the order, and the mass of weights[i].
    void (*place)(const float *scaled, const float *weights, int count, float best, int32_t *buckets, int64_t *masses);
    // score[i] = scaled[i] + the Gumbel noise of the draw in score[i].
    void (*score)(const float *scaled, int count, float *score);
    // Moves those that are at least `floor` to the front, in their order; returns how many.
    int32_t (*keep)(float *scaled, int32_t *ids, int32_t count, float floor);
};

__attribute__((always_inline)) inline void weigh_any(const float *scaled, int count, float best, float *weights) {
    for (int i = 0; i < count; ++i) weights[i] = exp_exact(scaled[i] - best);
}

__attribute__((always_inline)) inline void place_any(const float *scaled, const float *weights, int count, float best, int32_t *buckets,
                                                     int64_t *masses) {
    for (int i = 0; i < count; ++i) {
        const float distance = (best - scaled[i]) * BUCKETS_PER_LOGIT;
        buckets[i] = static_cast<int32_t>(distance < static_cast<float>(BUCKETS - 1) ? distance : static_cast<float>(BUCKETS - 1));
    }
    for (int i = 0; i < count; ++i) masses[i] = mass_of(weights[i]);
}

__attribute__((always_inline)) inline void score_any(const float *scaled, int count, float *score) {
    for (int i = 0; i < count; ++i) score[i] = scaled[i] + gumbel_of(score[i]);
}

static void weigh_256(const float *scaled, int count, float best, float *weights) { weigh_any(scaled, count, best, weights); }
static void place_256(const float *scaled, const float *weights, int count, float best, int32_t *buckets, int64_t *masses) {
    place_any(scaled, weights, count, best, buckets, masses);
}
static void score_256(const float *scaled, int count, float *score) { score_any(scaled, count, score); }

#define OCTAVO_WIDE __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
OCTAVO_WIDE static void weigh_512(const float *scaled, int count, float best, float *weights) { weigh_any(scaled, count, best, weights); }
OCTAVO_WIDE static void place_512(const float *scaled, const float *weights, int count, float best, int32_t *buckets, int64_t *masses) {
    place_any(scaled, weights, count, best, buckets, masses);
}
OCTAVO_WIDE static void score_512(const float *scaled, int count, float *score) { score_any(scaled, count, score); }
#undef OCTAVO_WIDE

static int32_t keep_256(float *scaled, int32_t *ids, int32_t count, float floor) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        const float value = scaled[i];
        scaled[kept] = value;
        ids[kept] = ids[i];
        kept += value >= floor;  // no branch: it would be guessed wrong every third time
    }
    return kept;
}

__attribute__((target("avx512f"))) static int32_t keep_512(float *scaled, int32_t *ids, int32_t count, float floor) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i += 16) {
        const auto there = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
        const __m512 value = _mm512_maskz_loadu_ps(there, scaled + i);
        const __m512i id = _mm512_maskz_loadu_epi32(there, ids + i);
        const __mmask16 found = _mm512_mask_cmp_ps_mask(there, value, _mm512_set1_ps(floor), _CMP_GE_OQ);
        _mm512_storeu_ps(scaled + kept, _mm512_maskz_compress_ps(found, value));  // behind what was read already
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(found, id));
        kept += __builtin_popcount(found);
    }
    return kept;
}

inline CandidateMath math_of(int isa) {
    return isa == OCTAVO_AVX2 ? CandidateMath{weigh_256, place_256, score_256, keep_256} : CandidateMath{weigh_512, place_512, score_512, keep_512};
}

class Candidates {
  public:
    // `work` has room for 3 * (vocab + 16) floats. `best` is the largest logit divided by the temperature.
    Candidates(const float *logits, int32_t vocab, float temperature, float best, int isa, float *work)
        : logits_(logits), vocab_(vocab), temperature_(temperature), best_(best), measure_(measure_of(isa)), sum_chunk_(sum_of(isa)),
          gather_(gather_of(isa)), math_(math_of(isa)), scaled_(work),
          weights_(work + vocab + 16), ids_(reinterpret_cast<int32_t *>(work + 2 * (vocab + 16))) {}

    // Keeps what min-p, then top-k, then top-p keep; ties with the last kept one stay.
    void truncate(const RowParams &p, const Harvest *harvest) {
        const bool limits_count = p.top_k > 0 && p.top_k < vocab_, limited = limits_count || p.min_p > 0;
        if (harvest)
            collect(*harvest);
        else
            collect(p.min_p > 0 ? std::log(static_cast<float>(p.min_p)) - 0.01f : REACH, !limited);
        float last = NEVER;
        if (limits_count) {
            // with min-p, what lies beyond its reach is out already
            if (count_ < p.top_k && p.min_p <= 0) collect(NEVER, false);
            if (count_ >= p.top_k) last = kth(p.top_k);
        }
        weigh();
        if (limited) keep([&](int32_t i) { return static_cast<double>(weights_[i]) >= p.min_p && scaled_[i] >= last; });
        if (p.top_p >= 1) return;
        place();
        const float floor = limited ? nucleus(p.top_p * static_cast<double>(mass_)).floor : nucleus_of_all(p.top_p);
        count_ = math_.keep(scaled_, ids_, count_, floor);
    }

    int32_t count() const { return count_; }
    const float *scaled() const { return scaled_; }
    const int32_t *ids() const { return ids_; }
    // A float for each of them, once truncated, and what makes scores of the draws in them.
    float *spare() { return weights_; }
    void score(float *draws) const { math_.score(scaled_, count_, draws); }

    // Every token at most so far below the best, in the order of the ids; `sum`: the sum of the weights of all is found beside.
    void collect(float reach, bool sum) {
        count_ = 0;
        for (int32_t at = 0; at < vocab_; at += CHUNK) {
            const int count = std::min(CHUNK, vocab_ - at);
            if (sum) sum_ += static_cast<double>(sum_chunk_(logits_ + at, count, temperature_, best_));
            gather(at, count, reach);
        }
    }

    // The same as collect(REACH, true), of what the head left. The exponents of the sums are rounded at other places: in parts of
    // 2^-24 by twice the best one and five times their distance from it, which is log(vocab) at most in the mean.
    void collect(const Harvest &harvest) {
        count_ = 0;
        error_ += 6e-8 * (2 * std::fabs(best_) + 5 * std::log(static_cast<double>(vocab_)));
        float away[CHUNK], weights[CHUNK];
        for (int64_t first = 0; first < harvest.units; first += CHUNK) {
            const int units = static_cast<int>(std::min<int64_t>(CHUNK, harvest.units - first));
            for (int i = 0; i < units; ++i) away[i] = harvest.best[first + i] / temperature_;
            math_.weigh(away, units, best_, weights);
            for (int i = 0; i < units; ++i) {
                sum_ += static_cast<double>(harvest.sums[first + i]) * static_cast<double>(weights[i]);
                if (away[i] - best_ >= REACH) take(harvest, first + i);
            }
        }
    }

  private:
    // What one unit of a harvest has within reach.
    void take(const Harvest &harvest, int64_t unit) {
        if (harvest.kept[unit] <= HARVEST_KEPT) {
            const int64_t from = unit * HARVEST_ROOM;
            count_ += gather_(harvest.values + from, harvest.kept[unit], best_, REACH, harvest.ids + from, 0, temperature_, ids_ + count_,
                              scaled_ + count_);
            return;
        }
        const auto first = static_cast<int32_t>(unit * HARVEST_COLUMNS);
        gather(first, std::min<int32_t>(vocab_ - first, HARVEST_COLUMNS), REACH);
    }

    // Those of `count` tokens from `first` on that are within reach.
    void gather(int32_t first, int count, float reach) {
        count_ += gather_(logits_ + first, count, best_, reach, nullptr, first, temperature_, ids_ + count_, scaled_ + count_);
    }

    // The least value that is kept, and the shares, above the first and up to the second, of which that is true.
    struct Nucleus {
        float floor;
        double before, after;
    };

    // The nucleus of the masses of all. Their sum is known within bounds, and mostly both lead to the same token.
    float nucleus_of_all(double top_p) {
        const double low = top_p * (sum_ * (1 - error_) * MASS_ONE - 2.0 * vocab_), high = top_p * (sum_ * (1 + error_) * MASS_ONE);
        const Nucleus found = nucleus(high);
        if (found.before < low && high <= found.after) return found.floor;
        const double share = top_p * static_cast<double>(total_mass_of_all());
        if (static_cast<double>(mass_) < share) {
            collect(MASSLESS, false);
            weigh();
            place();
        }
        return nucleus(share).floor;
    }

    int64_t total_mass_of_all() const {
        float away[CHUNK];
        int64_t total = 0;
        for (int32_t at = 0; at < vocab_; at += CHUNK)
            total += measure_(logits_ + at, std::min(CHUNK, vocab_ - at), temperature_, best_, away);
        return total;
    }

    void weigh() { math_.weigh(scaled_, count_, best_, weights_); }

    // The masses of the candidates, bucket by bucket and together.
    void place() {
        int32_t buckets[CHUNK];
        int64_t own[CHUNK];
        std::fill(masses_, masses_ + BUCKETS, 0);
        mass_ = 0;
        for (int32_t from = 0; from < count_; from += CHUNK) {
            const int count = std::min(CHUNK, count_ - from);
            math_.place(scaled_ + from, weights_ + from, count, best_, buckets, own);
            for (int i = 0; i < count; ++i) {
                masses_[buckets[i]] += own[i];
                mass_ += own[i];
            }
        }
    }

    template <typename F>
    void keep(F &&wanted) {
        int32_t kept = 0;
        for (int32_t i = 0; i < count_; ++i) {
            scaled_[kept] = scaled_[i];
            weights_[kept] = weights_[i];
            ids_[kept] = ids_[i];
            kept += wanted(i);  // no branch: it would be guessed wrong every third time
        }
        count_ = kept;
    }

    // Distance from the best in steps that keep the order.
    int bucket(float value) const {
        const float distance = (best_ - value) * BUCKETS_PER_LOGIT;
        return distance < static_cast<float>(BUCKETS - 1) ? static_cast<int>(distance) : BUCKETS - 1;
    }

    float kth(int32_t k) const {
        int32_t counts[BUCKETS] = {}, above = 0;
        for (int32_t i = 0; i < count_; ++i) ++counts[bucket(scaled_[i])];
        int at = 0;
        while (above + counts[at] < k) above += counts[at++];
        std::vector<float> values;
        for (int32_t i = 0; i < count_; ++i)
            if (bucket(scaled_[i]) == at) values.push_back(scaled_[i]);
        const auto nth = values.begin() + (k - above - 1);
        std::nth_element(values.begin(), nth, values.end(), [](float a, float b) { return a > b; });
        return *nth;
    }

    // Its floor is the least value for which the masses of all above it are less than `share`.
    Nucleus nucleus(double share) const {
        int64_t before = 0;
        int at = 0;
        // A bucket that ends below the share is kept whole.
        while (at < BUCKETS - 1 && static_cast<double>(before + masses_[at]) < share) before += masses_[at++];
        std::vector<float> values;
        const float high = best_ - (static_cast<float>(at) - 0.1f) / BUCKETS_PER_LOGIT;
        const float low = at < BUCKETS - 1 ? best_ - (static_cast<float>(at) + 1.1f) / BUCKETS_PER_LOGIT : NEVER;
        constexpr int32_t STRETCH = 32;
        for (int32_t from = 0; from < count_; from += STRETCH) {
            const int32_t end = std::min(count_, from + STRETCH);
            int32_t near = 0;  // an integer, so that the loop vectorizes
            for (int32_t i = from; i < end; ++i) near |= -static_cast<int32_t>(scaled_[i] >= low) & -static_cast<int32_t>(scaled_[i] <= high);
            for (int32_t i = from; near && i < end; ++i)
                if (bucket(scaled_[i]) == at) values.push_back(scaled_[i]);
        }
        std::sort(values.begin(), values.end(), [](float a, float b) { return a > b; });
        Nucleus result{best_, 0, 0};
        for (const float value : values) {
            const auto above = static_cast<double>(before);
            if (!(above < share)) break;
            before += mass_of(exp_exact(value - best_));
            result = {value, above, static_cast<double>(before)};
        }
        return result;
    }

    const float *logits_;
    int32_t vocab_;
    float temperature_, best_;
    MeasureChunk measure_;
    SumChunk sum_chunk_;
    GatherChunk gather_;
    CandidateMath math_;
    float *scaled_, *weights_;
    int32_t *ids_;
    int32_t count_ = 0;
    int64_t masses_[BUCKETS], mass_ = 0;
    double sum_ = 0, error_ = SUM_ERROR;  // of exp(x - best) of all, and the share by which that may be wrong
};

}  // namespace octavo
