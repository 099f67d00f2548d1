// Paged attention (PagedAttention, arXiv 2309.06180) with an online softmax in float32 (arXiv 1805.02867); the query heads that
// share a KV head are rows of one problem, so keys are read once per group.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "pack.h"

namespace ISA {

using octavo::AttentionInput;

constexpr int TILE = 16;   // keys per step of attend_few
constexpr int BLOCK = 64;  // keys per step of attend_many and attend_few_wide

// One token's key (which 0) or value (1).
struct KvRow {
    const uint8_t *data;
    float scale;
};

inline int64_t row_in_block(const AttentionInput &in, int position, int which) {
    return (static_cast<int64_t>(which) * in.kv_heads + in.kv_head) * in.block_tokens + position % in.block_tokens;
}

inline const uint8_t *block_of(const AttentionInput &in, int position) {
    return in.pool + in.table[position / in.block_tokens] * in.block_bytes;
}

inline KvRow kv_row(const AttentionInput &in, int position, int which) {
    const int64_t bytes = in.head_dim * (in.kv_dtype == OCTAVO_KV_F32 ? 4 : in.kv_dtype == OCTAVO_KV_BF16 ? 2 : 1);
    return {block_of(in, position) + in.layer_offset + row_in_block(in, position, which) * bytes, 1.0f};
}

inline const float *scale_at(const AttentionInput &in, int position, int which) {
    return reinterpret_cast<const float *>(block_of(in, position) + in.scale_offset) + row_in_block(in, position, which);
}

// f(t, row) for tokens start + [first, count), block by block: a division per token would cost more than the token.
template <typename F>
inline void each_row(const AttentionInput &in, int start, int first, int count, int which, F &&f) {
    const int64_t bytes = in.head_dim * (in.kv_dtype == OCTAVO_KV_F32 ? 4 : in.kv_dtype == OCTAVO_KV_BF16 ? 2 : 1);
    for (int t = first; t < count;) {
        const int end = std::min(count, t + in.block_tokens - (start + t) % in.block_tokens);
        KvRow row = kv_row(in, start + t, which);
        const float *scales = in.kv_dtype == OCTAVO_KV_INT8 ? scale_at(in, start + t, which) : nullptr;
        for (; t < end; ++t, row.data += bytes) {
            if (scales) row.scale = *scales++;
            f(t, row);
        }
    }
}

// The row as float32 [q_stride], zeros behind head_dim.
inline void read_row(const AttentionInput &in, const KvRow &row, float *out) {
    int d = 0;
    const V scale = set1(row.scale);
    const auto *halves = reinterpret_cast<const uint16_t *>(row.data);
    const auto *floats = reinterpret_cast<const float *>(row.data);
    const auto *codes = reinterpret_cast<const int8_t *>(row.data);
    for (; d + 16 <= in.head_dim; d += 16) {
        if (in.kv_dtype == OCTAVO_KV_BF16)
            store(out + d, load_bf16(halves + d));
        else if (in.kv_dtype == OCTAVO_KV_F32)
            store(out + d, load(floats + d));
        else
            store(out + d, load_i8(codes + d) * scale);
    }
    for (; d < in.head_dim; ++d) {
        if (in.kv_dtype == OCTAVO_KV_BF16)
            out[d] = octavo::bf16_to_float(halves[d]);
        else if (in.kv_dtype == OCTAVO_KV_F32)
            out[d] = floats[d];
        else
            out[d] = static_cast<float>(codes[d]) * row.scale;
    }
    for (; d < in.q_stride; ++d) out[d] = 0.0f;
}

inline int first_visible(const AttentionInput &in, int position) {
    return in.window > 0 ? std::max(0, position - in.window + 1) : 0;
}

// q of row r (token r / group, head r % group) as bf16 [q_stride].
inline const uint16_t *query(const AttentionInput &in, int row) {
    const int group = in.q_heads / in.kv_heads;
    const int64_t token = in.token0 + row / group, head = in.kv_head * group + row % group;
    return in.q + (token * in.q_heads + head) * in.q_stride;
}

inline void attend_few(const AttentionInput &in, int first, int last, float *out, float *best, float *total,
                       float *scratch) {
    const int rows = in.tokens * (in.q_heads / in.kv_heads), group = in.q_heads / in.kv_heads, wide = in.q_stride;
    float *q = scratch, *keys = q + rows * wide, *values = keys + TILE * wide, *sums = values + TILE * wide;
    for (int r = 0; r < rows; ++r) {
        const uint16_t *from = query(in, r);
        for (int d = 0; d < wide; d += 16) {
            store(q + r * wide + d, load_bf16(from + d) * set1(in.scale));
            store(sums + r * wide + d, zero());
        }
        best[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (int start = first; start < last; start += TILE) {
        const int count = std::min(TILE, last - start);
        each_row(in, start, 0, count, 0, [&](int t, const KvRow &row) { read_row(in, row, keys + t * wide); });
        each_row(in, start, 0, count, 1, [&](int t, const KvRow &row) { read_row(in, row, values + t * wide); });
        for (int r = 0; r < rows; ++r) {
            const int position = in.position0 + r / group;
            const int low = first_visible(in, position) - start, high = std::min(count, position + 1 - start);
            if (std::max(low, 0) >= high) continue;
            float scores[TILE];
            for (int t = 0; t < count; ++t) {
                V acc = zero();
                for (int d = 0; d < wide; d += 16) acc = fma(load(q + r * wide + d), load(keys + t * wide + d), acc);
                scores[t] = sum(acc);
            }
            const V masked = within(0, low, high, load(scores), set1(-INFINITY));
            const float next = std::max(best[r], highest(masked));
            const float keep = best[r] == next ? 1.0f : std::exp(best[r] - next);
            const V weights = within(0, low, high, exp(masked - set1(next)), zero());
            store(scores, weights);
            total[r] = total[r] * keep + sum(weights);
            best[r] = next;
            for (int d = 0; d < wide; d += 16) {
                V acc = load(sums + r * wide + d) * set1(keep);
                for (int t = std::max(low, 0); t < high; ++t)
                    acc = fma(set1(scores[t]), load(values + t * wide + d), acc);
                store(sums + r * wide + d, acc);
            }
        }
    }
    for (int r = 0; r < rows; ++r) std::memcpy(out + r * in.head_dim, sums + r * wide, in.head_dim * sizeof(float));
}

}  // namespace ISA
