// Attention of a step: how it is cut into units, and the merging of their partial results.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "step.h"

namespace octavo {
namespace {

constexpr int FEW_TOKENS = 4;    // new tokens of a sequence up to which keys are read row by row
constexpr int SPLIT_KEYS = 512;  // most keys of one unit with few queries; fixed, so that the sums do not depend on the threads
constexpr int QUERY_ROWS = 192;  // query rows of one unit with many: 64 tokens of 3 heads a key, which see a whole block of keys more than those before
constexpr int LEAST_UNITS = 16;  // a chunk of fewer is cut in halves of them, so that threads end together
constexpr int LAST_PER_THREAD = 2;  // so many problems per thread are left in pieces of a KV head each, so that threads end together

}  // namespace

void Step::plan_attention() {
    attends_.clear();
    int64_t problems = 0, parts = 0, left = 0;
    for (int s = 0; s < batch_.sequences; ++s) left += decodes_of(s);
    left -= LAST_PER_THREAD * static_cast<int64_t>(threads_.size());
    for (int s = 0; s < batch_.sequences; ++s) {
        const int new_tokens = batch_.query_start[s + 1] - batch_.query_start[s], decodes = decodes_of(s);
        if (new_tokens && !decodes) plan_prefill(s, new_tokens);
        for (int i = 0; i < decodes; ++i, --left) plan_decodes(s, i, new_tokens / decodes, left > 0, problems, parts);
    }
    if (problems > finished_capacity_) {
        finished_capacity_ = problems * 2;
        finished_ = std::make_unique<std::atomic<int>[]>(finished_capacity_);
    }
    // Longest first: what is left over at the end of the phase is short.
    std::stable_sort(attends_.begin(), attends_.end(), [](const AttendUnit &a, const AttendUnit &b) {
        return static_cast<int64_t>(a.tokens) * a.heads * (a.last - a.first) > static_cast<int64_t>(b.tokens) * b.heads * (b.last - b.first);
    });
    for (int64_t i = 0; i < problems; ++i) finished_[i].store(0, std::memory_order_relaxed);
    part_out_.ensure(parts * config_.head_dim);
    part_best_.ensure(parts);
    part_total_.ensure(parts);
}

// How many problems of few tokens a sequence is; 0: its new tokens are many, or none.
int Step::decodes_of(int s) const {
    const int new_tokens = batch_.query_start[s + 1] - batch_.query_start[s];
    return config_.deterministic ? new_tokens : new_tokens > 0 && new_tokens <= FEW_TOKENS;
}

// Spans are cut for full attention; a layer with a window passes over those it does not see. They follow from the context of
// the last of these tokens, so one token at a time is cut the same however it came to be computed. `whole`: all KV heads in one
// unit, which lie beside each other in a block, so that the first keys of one are asked for beside the last of another.
void Step::plan_decodes(int s, int first_token, int new_tokens, bool whole, int64_t &problems, int64_t &parts) {
    const int group = config_.q_heads / config_.kv_heads, heads = whole ? config_.kv_heads : 1;
    const int all = batch_.query_start[s + 1] - batch_.query_start[s];
    const int context = batch_.context_len[s] - all + first_token + new_tokens;
    const int splits = (context + SPLIT_KEYS - 1) / SPLIT_KEYS;
    for (int head = 0; head < config_.kv_heads; head += heads, ++problems)
        for (int split = 0; split < splits; ++split) {
            const int first = static_cast<int>(static_cast<int64_t>(context) * split / splits);
            const int last = static_cast<int>(static_cast<int64_t>(context) * (split + 1) / splits);
            attends_.push_back({s, head, heads, batch_.query_start[s] + first_token, new_tokens, first, last, split, splits,
                                static_cast<int>(problems), parts});
            parts += static_cast<int64_t>(heads) * new_tokens * group;
        }
}

void Step::plan_prefill(int s, int new_tokens) {
    const int group = config_.q_heads / config_.kv_heads, whole = std::max(4, QUERY_ROWS / group);
    const bool many = (new_tokens + whole - 1) / whole * config_.kv_heads >= LEAST_UNITS;
    const int step = many ? whole : std::max(4, whole / 2);
    const int start = batch_.context_len[s] - new_tokens;
    for (int head = 0; head < config_.kv_heads; ++head)
        for (int token = 0; token < new_tokens; token += step) {
            const int tokens = std::min(step, new_tokens - token);
            attends_.push_back({s, head, 1, batch_.query_start[s] + token, tokens, 0, start + token + tokens, 0, 0, 0, 0});
        }
}

void Step::attend(int layer, int index, Thread &thread) {
    const AttendUnit &unit = attends_[index];
    const int s = unit.sequence, group = config_.q_heads / config_.kv_heads;
    const int start = batch_.context_len[s] - (batch_.query_start[s + 1] - batch_.query_start[s]);
    const AttentionInput in{
        q_.get(),
        pool_,
        block_bytes_,
        layer * kv_layer_bytes_,
        kv_values_bytes_ + 2LL * layer * config_.kv_heads * config_.block_tokens * 4,
        batch_.block_tables + static_cast<int64_t>(s) * batch_.table_stride,
        config_.block_tokens,
        config_.head_dim,
        static_cast<int32_t>(wide_),
        config_.q_heads,
        config_.kv_heads,
        unit.kv_head,
        config_.kv_dtype,
        layers_[layer].window,
        config_.attention_scale,
        unit.token0,
        unit.tokens,
        start + unit.token0 - batch_.query_start[s],
    };
    if (unit.splits) return attend_few(unit, in, thread);
    const int rows = unit.tokens * group;
    float *out = thread.tile.ensure(static_cast<int64_t>(rows) * config_.head_dim);
    kernels_.attend_many(in, out, thread.scratch.ensure(attend_many_scratch(unit.tokens, group, static_cast<int>(wide_))));
    for (int r = 0; r < rows; ++r)
        put_attended(unit.token0 + r / group, unit.kv_head * group + r % group, out + r * config_.head_dim);
}

void Step::attend_few(const AttendUnit &unit, AttentionInput in, Thread &thread) {
    const int group = config_.q_heads / config_.kv_heads, past = unit.kv_head + unit.heads;
    const int seen = in.window > 0 ? std::max(unit.first, in.position0 - in.window + 1) : unit.first;
    float *scratch = thread.scratch.ensure(attend_few_scratch(unit.tokens, group, static_cast<int>(wide_)));
    for (int64_t part = unit.part; in.kv_head < past; ++in.kv_head, part += static_cast<int64_t>(unit.tokens) * group) {
        in.next_head = in.kv_head + 1 < past ? in.kv_head + 1 : -1;
        in.asked = in.kv_head > unit.kv_head;
        kernels_.attend_few(in, std::min(seen, unit.last), unit.last, part_out_.get() + part * config_.head_dim,
                            part_best_.get() + part, part_total_.get() + part, scratch);
    }
    // The last one to finish merges; the order of the sums is the spans' own.
    if (finished_[unit.problem].fetch_add(1, std::memory_order_acq_rel) + 1 == unit.splits) {
        finished_[unit.problem].store(0, std::memory_order_relaxed);
        merge(unit, thread);
    }
}

void Step::merge(const AttendUnit &unit, Thread &thread) {
    const int group = config_.q_heads / config_.kv_heads, width = config_.head_dim;
    const int rows = unit.heads * unit.tokens * group;
    const int64_t part = unit.part - static_cast<int64_t>(unit.split) * rows;
    float *out = thread.tile.ensure(width);
    for (int r = 0; r < rows; ++r) {
        float best = -INFINITY, total = 0;
        for (int split = 0; split < unit.splits; ++split) best = std::max(best, part_best_.get()[part + split * rows + r]);
        std::fill(out, out + width, 0.0f);
        for (int split = 0; split < unit.splits; ++split) {
            const int64_t at = part + split * rows + r;
            const float share = part_best_.get()[at] == -INFINITY ? 0.0f : std::exp(part_best_.get()[at] - best);
            total += part_total_.get()[at] * share;
            const float *from = part_out_.get() + at * width;
            if (share > 0)
                for (int d = 0; d < width; ++d) out[d] += from[d] * share;
        }
        const float norm = 1.0f / total;
        for (int d = 0; d < width; ++d) out[d] *= norm;
        const int head = unit.kv_head + r / (unit.tokens * group), row = r % (unit.tokens * group);
        put_attended(unit.token0 + row / group, head * group + row % group, out);
    }
}

void Step::put_attended(int64_t row, int64_t head, const float *values) {
    Activations &out = attended_.view;
    if (config_.format == OCTAVO_BF16) {
        kernels_.to_bf16(values, out.bf16 + row * out.depth + head * config_.head_dim, config_.head_dim);
        return;
    }
    for (int64_t group = 0; group < config_.head_dim / GROUP; ++group)
        kernels_.put_group(values + group * GROUP, config_.format, out, row, head * (config_.head_dim / GROUP) + group);
}

}  // namespace octavo
