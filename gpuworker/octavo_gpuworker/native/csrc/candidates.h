// Candidates: the tokens of a row within reach of its best one, found in the one pass that sums the masses of all. A nucleus is a
// few hundred of 49,152 tokens, so nothing of the size of the vocabulary is written, and only the few are put in order.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "api.h"
#include "exact_math.h"

namespace octavo {

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr int CHUNK = 512;  // halves of masses are below 2^20: so many fit an int32
constexpr float REACH = -9.0f;
constexpr int BUCKETS = 1024;
constexpr float BUCKETS_PER_LOGIT = 32.0f;

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

// Of count values, count <= CHUNK and what lies behind them in `away` NaN up to a multiple of 16: those that lie at least `reach` from
// the best, as ids that begin at `first` and logits over the temperature. Returns how many; both outputs have room for 16 more.
using GatherChunk = int32_t (*)(const float *x, const float *away, int count, float reach, int32_t first, float temperature,
                                int32_t *ids, float *scaled);

static int32_t gather_256(const float *x, const float *away, int count, float reach, int32_t first, float temperature, int32_t *ids,
                          float *scaled) {
    const __m256 least = _mm256_set1_ps(reach);
    int32_t kept = 0;
    for (int i = 0; i < count; i += 8) {
        auto found = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(away + i), least, _CMP_GE_OQ)));
        for (; found; found &= found - 1) {
            const int at = i + __builtin_ctz(found);
            ids[kept] = first + at;
            scaled[kept++] = x[at] / temperature;
        }
    }
    return kept;
}

// The same, 16 at a time: a flat row has thousands of candidates.
__attribute__((target("avx512f"))) static int32_t gather_512(const float *x, const float *away, int count, float reach, int32_t first,
                                                             float temperature, int32_t *ids, float *scaled) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int32_t kept = 0;
    for (int i = 0; i < count; i += 16) {
        const __mmask16 found = _mm512_cmp_ps_mask(_mm512_loadu_ps(away + i), _mm512_set1_ps(reach), _CMP_GE_OQ);
        if (!found) continue;
        const __m512 logits = _mm512_maskz_compress_ps(found, _mm512_maskz_loadu_ps(found, x + i));
        _mm512_storeu_si512(ids + kept, _mm512_maskz_compress_epi32(found, _mm512_add_epi32(places, _mm512_set1_epi32(first + i))));
        _mm512_storeu_ps(scaled + kept, _mm512_div_ps(logits, _mm512_set1_ps(temperature)));
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

class Candidates {
  public:
    // `work` has room for 3 * (vocab + 16) floats. `best` is the largest logit divided by the temperature.
    Candidates(const float *logits, int32_t vocab, float temperature, float best, int isa, float *work)
        : logits_(logits), vocab_(vocab), temperature_(temperature), best_(best), measure_(measure_of(isa)),
          gather_(gather_of(isa)), scaled_(work),
          weights_(work + vocab + 16), ids_(reinterpret_cast<int32_t *>(work + 2 * (vocab + 16))) {}

    // Keeps what min-p, then top-k, then top-p keep; ties with the last kept one stay.
    void truncate(const RowParams &p) {
        const bool limits_count = p.top_k > 0 && p.top_k < vocab_, limited = limits_count || p.min_p > 0;
        const float reach = p.min_p > 0 ? std::log(static_cast<float>(p.min_p)) - 0.01f : REACH;
        collect(reach);
        float last = NEVER;
        if (limits_count) {
            // with min-p, what lies beyond its reach is out already
            if (count_ < p.top_k && p.min_p <= 0) collect(NEVER);
            if (count_ >= p.top_k) last = kth(p.top_k);
        }
        weigh();
        if (!limited && p.top_p < 1 && static_cast<double>(mass(0, count_)) < p.top_p * static_cast<double>(total_)) {
            collect(MASSLESS);
            weigh();
        }
        if (limited) keep([&](int32_t i) { return static_cast<double>(weights_[i]) >= p.min_p && scaled_[i] >= last; });
        if (p.top_p >= 1) return;
        const float floor = nucleus(p.top_p * static_cast<double>(limited ? mass(0, count_) : total_));
        keep([&](int32_t i) { return scaled_[i] >= floor; });
    }

    int32_t count() const { return count_; }
    const float *scaled() const { return scaled_; }
    const int32_t *ids() const { return ids_; }
    float *spare() { return weights_; }  // of the weights, once truncated

    // Every token at most so far below the best, in the order of the ids. The masses of all are summed the first time.
    void collect(float reach) {
        float away[CHUNK];
        const bool first = total_ < 0;
        if (first) total_ = 0;
        count_ = 0;
        for (int32_t at = 0; at < vocab_; at += CHUNK) {
            const int count = std::min(CHUNK, vocab_ - at);
            if (first)
                total_ += measure_(logits_ + at, count, temperature_, best_, away);
            else
                for (int i = 0; i < count; ++i) away[i] = logits_[at + i] / temperature_ - best_;
            for (int i = count; i % 16; ++i) away[i] = std::numeric_limits<float>::quiet_NaN();
            count_ += gather_(logits_ + at, away, count, reach, at, temperature_, ids_ + count_, scaled_ + count_);
        }
    }

  private:
    void weigh() {
        for (int32_t i = 0; i < count_; ++i) weights_[i] = exp_exact(scaled_[i] - best_);
    }

    int64_t mass(int32_t from, int32_t to) const {
        int64_t sum = 0;
        for (int32_t i = from; i < to; ++i) sum += mass_of(weights_[i]);
        return sum;
    }

    template <typename F>
    void keep(F &&wanted) {
        int32_t kept = 0;
        for (int32_t i = 0; i < count_; ++i) {
            if (!wanted(i)) continue;
            scaled_[kept] = scaled_[i];
            weights_[kept] = weights_[i];
            ids_[kept++] = ids_[i];
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

    // The least value of the nucleus: the masses of all above it are less than `share`.
    float nucleus(double share) const {
        int64_t masses[BUCKETS] = {}, before = 0;
        for (int32_t i = 0; i < count_; ++i) masses[bucket(scaled_[i])] += mass_of(weights_[i]);
        int at = 0;
        // A bucket that ends below the share is kept whole.
        while (at < BUCKETS - 1 && static_cast<double>(before + masses[at]) < share) before += masses[at++];
        std::vector<float> values;
        for (int32_t i = 0; i < count_; ++i)
            if (bucket(scaled_[i]) == at) values.push_back(scaled_[i]);
        std::sort(values.begin(), values.end(), [](float a, float b) { return a > b; });
        float result = best_;
        for (const float value : values) {
            if (!(static_cast<double>(before) < share)) break;
            before += mass_of(exp_exact(value - best_));
            result = value;
        }
        return result;
    }

    const float *logits_;
    int32_t vocab_;
    float temperature_, best_;
    MeasureChunk measure_;
    GatherChunk gather_;
    float *scaled_, *weights_;
    int32_t *ids_;
    int32_t count_ = 0;
    int64_t total_ = -1;
};

}  // namespace octavo
