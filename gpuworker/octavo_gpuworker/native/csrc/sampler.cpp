// Compiled without contraction of a * b + c: every operation rounds once, as numpy's and torch's do, so the bits are the twin's.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float GREEDY_BELOW = 1e-5f;
constexpr float HALF_STEP = 1.0f / 33554432.0f;      // 2^-25
constexpr double MASS_ONE = 1099511627776.0;         // 2^40: weights are summed as whole numbers, in any order
constexpr int BUCKETS = 1024;
constexpr float BUCKETS_PER_LOGIT = 32.0f;
constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Cephes' expf for x <= 0 in separate multiplications and additions; 0 below -87. ../../exact_math.py has the same.
inline float exp_exact(float x) {
    const float n = std::nearbyint(x * 1.44269504088896341f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float y = (p * (r * r) + r) + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n < -127.0f ? -127.0f : n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : y * power;
}

// Cephes' logf for normal x > 0, likewise.
inline float log_exact(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    const int32_t exponent = (bits >> 23) - 126, mantissa = (bits & 0x7fffff) | 0x3f000000;
    float m;
    std::memcpy(&m, &mantissa, 4);
    const bool small = m < 0.707106781186547524f;
    const float e = static_cast<float>(small ? exponent - 1 : exponent);
    m = small ? (m + m) - 1.0f : m - 1.0f;
    const float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m + -1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m + -1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m + -1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m + -2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float y = (p * m) * z;
    y = y + e * -2.12194440e-4f;
    y = y - 0.5f * z;
    return (m + y) + e * 0.693359375f;
}

inline int64_t mass_of(float weight) { return static_cast<int64_t>(static_cast<double>(weight) * MASS_ONE); }

inline float gumbel_of(float u) { return -log_exact(-log_exact(u)); }

// Philox4x64-10 as numpy runs it (Salmon et al., SC'11): block b holds the 32-bit draws 8 b .. 8 b + 7.
struct Philox {
    uint64_t seed, position;

    void block(uint64_t index, float out[8]) const {
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
        const uint64_t words[4] = {c0, c1, c2, c3};
        for (int i = 0; i < 8; ++i) {
            const auto half = static_cast<uint32_t>(words[i / 2] >> (i % 2 * 32));
            out[i] = std::max(static_cast<float>(half >> 8) * (1.0f / 16777216.0f), HALF_STEP);
        }
    }
};

struct RowParams {
    float temperature;
    int32_t top_k;
    double top_p, min_p;
};

// Scaled logits of a row, and how far each lies below the best, in buckets that keep the order.
class Cut {
  public:
    Cut(const float *scaled, int32_t vocab, float *weights) : scaled_(scaled), vocab_(vocab), weights_(weights) {
        best_ = *std::max_element(scaled, scaled + vocab);
        for (int32_t i = 0; i < vocab; ++i) weights_[i] = exp_exact(scaled[i] - best_);
    }

    // The least value that min-p, then top-k, then top-p keep; ties with it stay.
    float floor(const RowParams &p) {
        const bool limits_count = p.top_k > 0 && p.top_k < vocab_;
        const float last = limits_count ? kth(p.top_k) : NEVER;
        const auto kept = [&](int32_t i) { return static_cast<double>(weights_[i]) >= p.min_p && scaled_[i] >= last; };
        int64_t masses[BUCKETS] = {}, total = 0;
        float least = best_;
        for (int32_t i = 0; i < vocab_; ++i) {
            if (!kept(i)) continue;
            const int64_t mass = mass_of(weights_[i]);
            masses[bucket(scaled_[i])] += mass;
            total += mass;
            least = std::min(least, scaled_[i]);
        }
        if (p.top_p >= 1) return least;
        const double share = p.top_p * static_cast<double>(total);
        int64_t before = 0;
        int at = 0;
        // A bucket that ends below the share is kept whole.
        while (at < BUCKETS - 1 && static_cast<double>(before + masses[at]) < share) before += masses[at++];
        std::vector<float> values;
        for (int32_t i = 0; i < vocab_; ++i)
            if (bucket(scaled_[i]) == at && kept(i)) values.push_back(scaled_[i]);
        std::sort(values.begin(), values.end(), [](float a, float b) { return a > b; });
        float result = best_;
        for (const float value : values) {
            if (!(static_cast<double>(before) < share)) break;
            before += mass_of(exp_exact(value - best_));
            result = value;
        }
        return result;
    }

  private:
    int bucket(float value) const {
        const float distance = (best_ - value) * BUCKETS_PER_LOGIT;
        return distance < static_cast<float>(BUCKETS - 1) ? static_cast<int>(distance) : BUCKETS - 1;
    }

    float kth(int32_t k) const {
        int32_t counts[BUCKETS] = {}, above = 0;
        for (int32_t i = 0; i < vocab_; ++i) ++counts[bucket(scaled_[i])];
        int at = 0;
        while (above + counts[at] < k) above += counts[at++];
        std::vector<float> values;
        for (int32_t i = 0; i < vocab_; ++i)
            if (bucket(scaled_[i]) == at) values.push_back(scaled_[i]);
        const auto nth = values.begin() + (k - above - 1);
        std::nth_element(values.begin(), nth, values.end(), [](float a, float b) { return a > b; });
        return *nth;
    }

    const float *scaled_;
    int32_t vocab_;
    float *weights_, best_;
};

int32_t first_largest(const float *x, int32_t count) {
    float best = NEVER;
    for (int32_t i = 0; i < count; ++i) best = x[i] > best ? x[i] : best;
    for (int32_t i = 0; i < count; ++i)
        if (x[i] == best) return i;
    return 0;
}

int32_t draw_all(const float *scaled, int32_t vocab, const Philox &random, float *noise) {
    for (int32_t b = 0; b * 8 < vocab; ++b) random.block(static_cast<uint64_t>(b), noise + b * 8);
    for (int32_t i = 0; i < vocab; ++i) noise[i] = scaled[i] + gumbel_of(noise[i]);
    return first_largest(noise, vocab);
}

int32_t draw_cut(const float *scaled, int32_t vocab, const Philox &random, float least) {
    float u[8], best = NEVER;
    int32_t drawn = -1, token = 0;
    for (int32_t i = 0; i < vocab; ++i) {
        if (!(scaled[i] >= least)) continue;
        if (drawn != i / 8) random.block(static_cast<uint64_t>(drawn = i / 8), u);
        const float score = scaled[i] + gumbel_of(u[i % 8]);
        if (score > best) {
            best = score;
            token = i;
        }
    }
    return token;
}

void penalize(const OctavoBatch &batch, int row, float *logits, int32_t vocab, int32_t *counts) {
    const int32_t start = batch.history_start[row], end = batch.history_start[row + 1];
    if (start == end) return;
    const float repetition = batch.repetition[row], presence = batch.presence[row], frequency = batch.frequency[row];
    std::fill(counts, counts + vocab, 0);
    if (repetition != 1.0f)
        for (int32_t i = start; i < end; ++i) {
            const int32_t token = batch.history[i];
            if (counts[token]++) continue;
            logits[token] = logits[token] > 0 ? logits[token] / repetition : logits[token] * repetition;
        }
    if (presence == 0 && frequency == 0) return;
    std::fill(counts, counts + vocab, 0);
    for (int32_t i = start + batch.prompt_len[row]; i < end; ++i) ++counts[batch.history[i]];
    for (int32_t i = start + batch.prompt_len[row]; i < end; ++i) {
        const int32_t token = batch.history[i];
        if (!counts[token]) continue;
        const float cost = presence + frequency * static_cast<float>(counts[token]);
        logits[token] -= cost;
        counts[token] = 0;
    }
}

// Log-probabilities of the raw logits: of the chosen token, and the best ones, of equal ones the lower id first.
void put_logprobs(const OctavoBatch &batch, int row, const float *raw, int32_t vocab, int32_t chosen) {
    const float best = *std::max_element(raw, raw + vocab);
    int64_t total = 0;
    for (int32_t i = 0; i < vocab; ++i) total += mass_of(exp_exact(raw[i] - best));
    const double norm = std::log(static_cast<double>(total) / MASS_ONE);
    const auto logprob = [&](int32_t i) {
        return static_cast<float>((static_cast<double>(raw[i]) - static_cast<double>(best)) - norm);
    };
    batch.out_logprobs[row] = logprob(chosen);
    const int32_t wanted = std::min(batch.logprobs[row], vocab);
    if (wanted <= 0) return;
    std::vector<int32_t> ids(vocab);
    for (int32_t i = 0; i < vocab; ++i) ids[i] = i;
    std::partial_sort(ids.begin(), ids.begin() + wanted, ids.end(),
                      [&](int32_t a, int32_t b) { return raw[a] != raw[b] ? raw[a] > raw[b] : a < b; });
    const int64_t at = static_cast<int64_t>(row) * batch.top_stride;
    for (int32_t i = 0; i < wanted; ++i) {
        batch.out_top_ids[at + i] = ids[i];
        batch.out_top_logprobs[at + i] = logprob(ids[i]);
    }
}

}  // namespace

bool plain_greedy(const OctavoBatch &batch, int row) {
    return batch.temperature[row] <= GREEDY_BELOW && batch.logprobs[row] < 0 &&
           batch.history_start[row] == batch.history_start[row + 1] && batch.bias_start[row] == batch.bias_start[row + 1] &&
           (!batch.grammar_rows || batch.grammar_rows[row] < 0);
}

void sample_row(const OctavoBatch &batch, int row, const float *raw, int32_t vocab, float *work) {
    bool finite = true;
    for (int32_t i = 0; i < vocab; ++i) finite &= raw[i] - raw[i] == 0.0f;
    batch.out_tokens[row] = -1;
    if (!finite) return;
    float *logits = work, *spare = work + vocab + 16;
    std::copy(raw, raw + vocab, logits);
    penalize(batch, row, logits, vocab, reinterpret_cast<int32_t *>(spare));
    for (int32_t i = batch.bias_start[row]; i < batch.bias_start[row + 1]; ++i)
        logits[batch.bias_ids[i]] += batch.bias_values[i];
    bool drawable = true;  // a penalty or bias may have left the range of float32
    for (int32_t i = 0; i < vocab; ++i) drawable &= logits[i] < -NEVER;
    if (!drawable) return;
    if (batch.grammar_rows && batch.grammar_rows[row] >= 0) {
        const uint32_t *allowed = batch.grammar + static_cast<int64_t>(batch.grammar_rows[row]) * ((vocab + 31) / 32);
        for (int32_t i = 0; i < vocab; ++i)
            if (!(allowed[i / 32] >> (i % 32) & 1)) logits[i] = NEVER;
    }
    int32_t token = first_largest(logits, vocab);
    if (logits[token] == NEVER) return;
    const float temperature = batch.temperature[row];
    if (temperature > GREEDY_BELOW) {
        const Philox random{batch.seeds[row], static_cast<uint64_t>(batch.positions[row])};
        for (int32_t i = 0; i < vocab; ++i) logits[i] = logits[i] / temperature;
        const RowParams p{temperature, batch.top_k[row], batch.top_p[row], batch.min_p[row]};
        if (p.top_k > 0 || p.top_p < 1 || p.min_p > 0) {
            token = draw_cut(logits, vocab, random, Cut(logits, vocab, spare).floor(p));
        } else {
            token = draw_all(logits, vocab, random, spare);
        }
    }
    batch.out_tokens[row] = token;
    if (batch.logprobs[row] >= 0) put_logprobs(batch, row, raw, vocab, token);
}

}  // namespace octavo
