// Candidates: the tokens of a row within reach of its best one, found in the one pass that sums the masses of all. A nucleus is a
// few hundred of 49,152 tokens, so nothing of the size of the vocabulary is written, and only the few are put in order.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "api.h"
#include "candidate_math.h"
#include "kernels.h"
#include "sampler.h"

namespace octavo {

struct RowParams {
    float temperature;
    int32_t top_k;
    double top_p, min_p;
};

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
