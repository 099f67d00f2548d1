// Candidates: the tokens of a row within reach of its best one. A nucleus is a few hundred of 49,152 tokens, so nothing of the size of
// the vocabulary is written, and only the few take noise: the draw comes first, then the proof that the token drawn is one of the nucleus.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "api.h"
#include "candidate_math.h"
#include "kernels.h"
#include "philox.h"
#include "sampler.h"

namespace octavo {

struct RowParams {
    float temperature;
    int32_t top_k;
    double top_p, min_p;
};

class Candidates {
  public:
    static constexpr int32_t NONE = -1;
    static constexpr int MOST_UNITS = 32;  // made once more: a sixth of all

    // `work` has room for 3 * (vocab + 16) floats. `best` is the largest logit divided by the temperature.
    Candidates(const float *logits, int32_t vocab, float temperature, float best, int isa, float *work)
        : logits_(logits), vocab_(vocab), temperature_(temperature), best_(best), measure_(measure_of(isa)), sum_chunk_(sum_of(isa)),
          gather_(gather_of(isa)), math_(math_of(isa)), scaled_(work),
          weights_(work + vocab + 16), ids_(reinterpret_cast<int32_t *>(work + 2 * (vocab + 16))) {}
    Candidates(HarvestedRow &harvested, int32_t vocab, float temperature, int isa, float *work)
        : Candidates(harvested.all ? harvested.left : nullptr, vocab, temperature, harvested.best / temperature, isa, work) {
        harvested_ = &harvested;
    }

    // Of what min-p, then top-k, then top-p keep, ties with the last one included, the token whose logit and noise are largest together.
    int32_t draw(const RowParams &p, const Philox &random) {
        const bool limits_count = p.top_k > 0 && p.top_k < vocab_, limited = limits_count || p.min_p > 0;
        const float reach = reach_of(p.min_p);
        if (harvested_ && reach >= REACH)
            collect(*harvested_, reach);
        else
            collect(reach, !limited);
        float last = NEVER;
        if (limits_count) {
            // with min-p, what lies beyond its reach is out already
            for (const float further : {-14.0f, -20.0f, NEVER})
                if (count_ < p.top_k && p.min_p <= 0) collect(further, false);
            if (count_ >= p.top_k) last = kth(p.top_k);
        }
        weigh();
        if (limited) keep([&](int32_t i) { return static_cast<double>(weights_[i]) >= p.min_p && scaled_[i] >= last; });
        if (p.top_p >= 1) return winner({INFINITY, INFINITY}, p.top_p, random);
        Share share = limited ? exactly(p.top_p, mass_above(NEVER)) : share_of_all(p.top_p);
        if (!limited && static_cast<double>(mass_above(NEVER)) < share.high) {
            const int32_t token = logits_ ? NONE : winner_before_the_tail(share, random);
            if (token != NONE) return token;
            share = reach_for(share, p.top_p);
        }
        cut(share.high);
        return winner(share, p.top_p, random);
    }

  private:
    // A token is of the nucleus if the mass above it is less than a share of the whole, which lies between these two.
    struct Share {
        double low, high;
    };

    static Share exactly(double top_p, int64_t total) { return {top_p * static_cast<double>(total), top_p * static_cast<double>(total)}; }

    // The share of the masses of all, from a sum that is known within bounds.
    Share share_of_all(double top_p) const {
        return {top_p * (sum_ * (1 - error_) * MASS_ONE - 2.0 * vocab_), top_p * (sum_ * (1 + error_) * MASS_ONE)};
    }

    // Candidates that have the share, however far they reach.
    Share reach_for(Share share, double top_p) {
        for (const float reach : {-11.5f, -15.0f, MASSLESS}) {
            collect(reach, false);
            weigh();
            if (static_cast<double>(mass_above(NEVER)) >= share.high) return share;
        }
        return exactly(top_p, mass_above(NEVER));
    }

    // The token drawn, though the nucleus goes on below the candidates, or NONE: it hangs on the logits there. Hardly ever does it: of
    // a token's noise it is known how far below the candidates it could still win, and a unit is made once more for those that could.
    int32_t winner_before_the_tail(Share share, const Philox &random) {
        random.draws(ids_, count_, weights_);
        math_.score(scaled_, count_, weights_);
        const int32_t at = best_score(), token = ids_[at];
        const float best = weights_[at];
        if (!(static_cast<double>(mass_above(scaled_[at])) < share.low)) return NONE;
        const double slack = 0.01 + std::fabs(static_cast<double>(best)) * 1e-6;  // beyond the rounding of scores
        const double away = static_cast<double>(best) - static_cast<double>(best_) - static_cast<double>(reach_) - slack;
        const double least = std::exp(-std::exp(-away)) * 16777216.0 - 1.0;
        const auto bound = static_cast<uint32_t>(std::min(std::max(least, 0.0), 16777215.0)) << 8;
        uint64_t four[4];
        int units = 0;
        for (int32_t first = 0; first < vocab_; first += 8) {
            random.words(static_cast<uint64_t>(first / 8), four);
            uint32_t found = 0;
            for (int i = 0; i < 4; ++i)
                found |= static_cast<uint32_t>(static_cast<uint32_t>(four[i]) >= bound) << 2 * i |
                         static_cast<uint32_t>(static_cast<uint32_t>(four[i] >> 32) >= bound) << (2 * i + 1);
            for (; found; found &= found - 1) {
                const int draw = __builtin_ctz(found), id = first + draw;
                if (id >= vocab_ || std::find(ids_, ids_ + count_, id) != ids_ + count_) continue;
                if (++units > MOST_UNITS) return NONE;
                const float value = harvested_->unit(id / HARVEST_COLUMNS)[id % HARVEST_COLUMNS] / temperature_;
                const float score = value + gumbel_of(Philox::uniform(four[draw / 2], static_cast<uint64_t>(draw)));
                if (score > best || (score == best && id < token)) return NONE;
            }
        }
        return token;
    }

    // Leaves out most of what has at least `share` above itself; sums of floats are enough for that.
    void cut(double share) {
        // a share so small that it is none in float32 is still more than nothing has above itself
        const float enough = std::max(static_cast<float>(share * (1.001 / MASS_ONE)), std::numeric_limits<float>::min());
        float low = NEVER, high = 0.0f;
        for (float step = std::max(reach_, MASSLESS) / 2; step < -0.05f; step /= 2) {
            const float middle = high + step;
            if (math_.weight_above(scaled_, weights_, count_, best_ + middle) >= enough)
                low = middle;
            else
                high = middle;
        }
        if (low > NEVER) count_ = math_.keep_above(scaled_, ids_, count_, best_ + low);
    }

    // Of the scores in weights_ the place of the best, of equal ones the one with the lower id.
    int32_t best_score() const {
        const float best = largest_of(weights_, count_);
        int32_t at = NONE;
        for (int32_t i = 0; i < count_; ++i)
            if (weights_[i] == best && (at == NONE || ids_[i] < ids_[at])) at = i;
        return at;
    }

    // The token with the best score of those that have less than `share` above themselves.
    int32_t winner(Share share, double top_p, const Philox &random) {
        random.draws(ids_, count_, weights_);
        math_.score(scaled_, count_, weights_);
        while (true) {
            const int32_t at = best_score();
            const float value = scaled_[at];
            if (!(share.low < INFINITY) || value >= best_) return ids_[at];
            const auto above = static_cast<double>(mass_above(value));
            if (!(above < share.low) && above < share.high) share = exactly(top_p, total_mass_of_all());
            if (above < share.low) return ids_[at];
            for (int32_t i = 0; i < count_; ++i)
                if (scaled_[i] <= value) weights_[i] = NEVER;
        }
    }

    // Every token at most so far below the best, in the order of the ids; `sum`: the sum of the weights of all is found beside.
    void collect(float reach, bool sum) {
        count_ = 0;
        reach_ = reach;
        find_logits();
        for (int32_t at = 0; at < vocab_; at += CHUNK) {
            const int count = std::min(CHUNK, vocab_ - at);
            if (sum) sum_ += static_cast<double>(sum_chunk_(logits_ + at, count, temperature_, best_));
            count_ += gather_(logits_ + at, count, best_, reach, nullptr, at, temperature_, ids_ + count_, scaled_ + count_);
        }
    }

    // The same with the sum, of what the head left, in any order. The exponents of the sum are rounded at other places: in parts of
    // 2^-24 by three times the farthest one and six times their distance from the best, which is log(vocab) at most in the mean.
    void collect(const HarvestedRow &harvested, float reach) {
        count_ = 0;
        reach_ = reach;
        float farthest = std::fabs(best_);
        for (const Harvest *part : harvested.parts) {
            if (!(part->sum > 0)) continue;
            sum_ += part->sum * std::exp(static_cast<double>(part->shift) / temperature_ - best_);
            farthest = std::max(farthest, part->farthest / temperature_);
            count_ += gather_(part->values, part->kept, best_, reach, part->ids, 0, temperature_, ids_ + count_, scaled_ + count_);
            for (int32_t i = 0; i < part->whole; ++i) {
                const auto first = part->units[i] * static_cast<int32_t>(HARVEST_COLUMNS);
                const int count = std::min(vocab_ - first, static_cast<int32_t>(HARVEST_COLUMNS));
                count_ += gather_(harvested.left + first, count, best_, reach, nullptr, first, temperature_, ids_ + count_, scaled_ + count_);
            }
        }
        error_ = HARVEST_ERROR + 6e-8 * (3 * farthest + 6 * std::log(static_cast<double>(vocab_)));
    }

    void find_logits() {
        if (!logits_) logits_ = harvested_->logits();
    }

    int64_t total_mass_of_all() {
        find_logits();
        float away[CHUNK];
        int64_t total = 0;
        for (int32_t at = 0; at < vocab_; at += CHUNK)
            total += measure_(logits_ + at, std::min(CHUNK, vocab_ - at), temperature_, best_, away);
        return total;
    }

    void weigh() { math_.weigh(scaled_, count_, best_, weights_); }

    // The mass of the candidates that lie above `value`.
    int64_t mass_above(float value) const {
        int64_t mass = 0;
        for (int32_t from = 0; from < count_; from += CHUNK)
            mass += math_.mass_above(scaled_ + from, std::min(CHUNK, count_ - from), best_, value);
        return mass;
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

    HarvestedRow *harvested_ = nullptr;
    const float *logits_;
    int32_t vocab_;
    float temperature_, best_, reach_ = REACH;
    MeasureChunk measure_;
    SumChunk sum_chunk_;
    GatherChunk gather_;
    CandidateMath math_;
    float *scaled_, *weights_;
    int32_t *ids_;
    int32_t count_ = 0;
    double sum_ = 0, error_ = SUM_ERROR;  // of exp(x - best) of all, and the share by which that may be wrong
};

}  // namespace octavo
