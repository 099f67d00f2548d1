// Compiled without contraction of a * b + c: every operation rounds once, as numpy's and torch's do, so the bits are the twin's.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "candidates.h"
#include "philox.h"

namespace octavo {
namespace {

constexpr float GREEDY_BELOW = 1e-5f;

int32_t first_largest(const float *x, int32_t count) {
    const float best = largest_of(x, count);
    return static_cast<int32_t>(std::find(x, x + count, best) - x) % count;
}

bool all_finite(const float *x, int32_t count) {
    int32_t beyond = 0;  // an integer, so that the loop vectorizes
    for (int32_t i = 0; i < count; ++i) beyond |= -static_cast<int32_t>(!(std::fabs(x[i]) <= std::numeric_limits<float>::max()));
    return beyond == 0;
}

// The token of the whole vocabulary whose logit and noise are largest together, of equal ones the lower id. A token beats the score B only if -log(u) < exp(x - B), and 1 - u is less than -log(u): so
// an exponential passes over all but a few, and those take the two logarithms.
int32_t draw_of_all(const float *logits, int32_t vocab, float temperature, int32_t largest, const Philox &random) {
    float u[CHUNK], scaled[CHUNK], reach[CHUNK];
    random.block(static_cast<uint64_t>(largest / 8), u);
    int32_t token = largest;
    float best = logits[largest] / temperature + gumbel_of(u[largest % 8]);
    for (int32_t at = 0; at < vocab; at += CHUNK) {
        const int count = std::min(CHUNK, vocab - at);
        for (int i = 0; i < count; i += 8) random.block(static_cast<uint64_t>((at + i) / 8), u + i);
        const float slack = 0.01f + std::fabs(best) * 1e-6f;  // beyond the rounding of scores
        for (int i = 0; i < count; ++i) {
            scaled[i] = logits[at + i] / temperature;
            const float away = scaled[i] - best + slack;
            reach[i] = exp_exact(away > 0.0f ? 0.0f : away) - (1.0f - u[i]);
        }
        for (int i = 0; i < count; ++i) {
            if (reach[i] < 0.0f) continue;
            const float score = scaled[i] + gumbel_of(u[i]);
            if (score > best || (score == best && at + i < token)) {
                best = score;
                token = at + i;
            }
        }
    }
    return token;
}

void penalize(const OctavoBatch &batch, int row, float *logits, int32_t *counts) {
    const int32_t start = batch.history_start[row], end = batch.history_start[row + 1];
    if (start == end) return;
    const float repetition = batch.repetition[row], presence = batch.presence[row], frequency = batch.frequency[row];
    for (int32_t i = start; i < end; ++i) counts[batch.history[i]] = 0;  // the others are never looked at
    if (repetition != 1.0f)
        for (int32_t i = start; i < end; ++i) {
            const int32_t token = batch.history[i];
            if (counts[token]++) continue;
            logits[token] = logits[token] > 0 ? logits[token] / repetition : logits[token] * repetition;
        }
    if (presence == 0 && frequency == 0) return;
    for (int32_t i = start; i < end; ++i) counts[batch.history[i]] = 0;
    for (int32_t i = start + batch.prompt_len[row]; i < end; ++i) ++counts[batch.history[i]];
    for (int32_t i = start + batch.prompt_len[row]; i < end; ++i) {
        const int32_t token = batch.history[i];
        if (!counts[token]) continue;
        const float cost = presence + frequency * static_cast<float>(counts[token]);
        logits[token] -= cost;
        counts[token] = 0;
    }
}

bool edited(const OctavoBatch &batch, int row) {
    return batch.history_start[row] != batch.history_start[row + 1] || batch.bias_start[row] != batch.bias_start[row + 1] ||
           (batch.grammar_rows && batch.grammar_rows[row] >= 0);
}

// raw with penalties, bias and grammar in `logits`, which has room for 2 * (vocab + 16).
// Returns the first largest token, -1 where none may be drawn.
int32_t edit(const OctavoBatch &batch, int row, const float *raw, int32_t vocab, float *logits) {
    std::copy(raw, raw + vocab, logits);
    penalize(batch, row, logits, reinterpret_cast<int32_t *>(logits + vocab + 16));
    for (int32_t i = batch.bias_start[row]; i < batch.bias_start[row + 1]; ++i)
        logits[batch.bias_ids[i]] += batch.bias_values[i];
    // a penalty or bias may have left the range of float32
    const auto beyond = [logits](int32_t token) { return !(logits[token] < -NEVER); };
    const int32_t *const history = batch.history, *const ids = batch.bias_ids;
    if (std::any_of(history + batch.history_start[row], history + batch.history_start[row + 1], beyond)) return -1;
    if (std::any_of(ids + batch.bias_start[row], ids + batch.bias_start[row + 1], beyond)) return -1;
    if (batch.grammar_rows && batch.grammar_rows[row] >= 0) {
        const uint32_t *allowed = batch.grammar + static_cast<int64_t>(batch.grammar_rows[row]) * ((vocab + 31) / 32);
        for (int32_t i = 0; i < vocab; ++i)
            if (!(allowed[i / 32] >> (i % 32) & 1)) logits[i] = NEVER;
    }
    const int32_t token = first_largest(logits, vocab);
    return logits[token] == NEVER ? -1 : token;
}

// Ids of the `wanted` largest, of equal ones the lower id first. A stretch is looked at only where its largest could enter.
void put_best(const float *x, int32_t count, int32_t wanted, std::vector<int32_t> &ids) {
    constexpr int32_t STRETCH = 64;
    const auto before = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
    ids.clear();
    for (int32_t at = 0; at < count; at += STRETCH) {
        const int32_t end = std::min(count, at + STRETCH);
        if (static_cast<int32_t>(ids.size()) == wanted && !(largest_of(x + at, end - at) > x[ids.front()])) continue;
        for (int32_t i = at; i < end; ++i) {
            if (static_cast<int32_t>(ids.size()) == wanted) {
                if (!(x[i] > x[ids.front()])) continue;
                std::pop_heap(ids.begin(), ids.end(), before);
                ids.pop_back();
            }
            ids.push_back(i);
            std::push_heap(ids.begin(), ids.end(), before);
        }
    }
    std::sort(ids.begin(), ids.end(), before);
}

// Log-probabilities of the raw logits, the largest of which is `best`: of the chosen token, and the best ones.
void put_logprobs(const OctavoBatch &batch, int row, const float *raw, int32_t vocab, float best, int32_t chosen, int isa) {
    const double norm = std::log(static_cast<double>(total_mass(raw, vocab, best, measure_of(isa))) / MASS_ONE);
    const auto logprob = [&](int32_t i) {
        return static_cast<float>((static_cast<double>(raw[i]) - static_cast<double>(best)) - norm);
    };
    batch.out_logprobs[row] = logprob(chosen);
    const int32_t wanted = std::min(batch.logprobs[row], vocab);
    if (wanted <= 0) return;
    std::vector<int32_t> ids;
    put_best(raw, vocab, wanted, ids);
    const int64_t at = static_cast<int64_t>(row) * batch.top_stride;
    for (int32_t i = 0; i < wanted; ++i) {
        batch.out_top_ids[at + i] = ids[i];
        batch.out_top_logprobs[at + i] = logprob(ids[i]);
    }
}

}  // namespace

bool plain_greedy(const OctavoBatch &batch, int row) {
    return batch.temperature[row] <= GREEDY_BELOW && batch.logprobs[row] < 0 && !edited(batch, row);
}

bool draws_from_few(const OctavoBatch &batch, int row, int32_t vocab) {
    const bool limited = batch.top_p[row] < 1 || batch.min_p[row] > 0 || (batch.top_k[row] > 0 && batch.top_k[row] < vocab);
    return batch.temperature[row] > GREEDY_BELOW && limited && !edited(batch, row);
}

void sample_row(const OctavoBatch &batch, int row, const float *raw, int32_t vocab, int32_t largest, int isa, float *work) {
    batch.out_tokens[row] = -1;
    if (largest < 0) {
        if (!all_finite(raw, vocab)) return;
        largest = first_largest(raw, vocab);
    }
    const float *logits = raw;
    int32_t token = largest;
    if (edited(batch, row)) {
        token = edit(batch, row, raw, vocab, work);
        if (token < 0) return;
        logits = work;
    }
    const RowParams p{batch.temperature[row], batch.top_k[row], batch.top_p[row], batch.min_p[row]};
    if (p.temperature > GREEDY_BELOW && std::isfinite(logits[token] / p.temperature)) {
        const Philox random{batch.seeds[row], static_cast<uint64_t>(batch.positions[row])};
        if (p.top_k > 0 || p.top_p < 1 || p.min_p > 0)
            token = Candidates(logits, vocab, p.temperature, logits[token] / p.temperature, isa, work + vocab + 16).draw(p, random);
        else
            token = draw_of_all(logits, vocab, p.temperature, token, random);
    }
    batch.out_tokens[row] = token;
    if (batch.logprobs[row] >= 0) put_logprobs(batch, row, raw, vocab, raw[largest], token, isa);
}

void sample_row(const OctavoBatch &batch, int row, HarvestedRow &harvested, int32_t vocab, int isa, float *work) {
    const Philox random{batch.seeds[row], static_cast<uint64_t>(batch.positions[row])};
    const RowParams p{batch.temperature[row], batch.top_k[row], batch.top_p[row], batch.min_p[row]};
    if (std::isfinite(harvested.best / p.temperature))
        batch.out_tokens[row] = Candidates(harvested, vocab, p.temperature, isa, work).draw(p, random);
    if (batch.logprobs[row] >= 0) put_logprobs(batch, row, harvested.all ? harvested.left : harvested.logits(), vocab, harvested.best, batch.out_tokens[row], isa);
}

}  // namespace octavo
