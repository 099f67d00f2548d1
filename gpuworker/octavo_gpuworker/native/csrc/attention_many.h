// attend_many: a chunk's queries against blocks of keys as two products (FlashAttention-2's order of loops, arXiv 2307.08691), the softmax
// between them 16 rows at a time: what is one number per row lies in a register of 16 rows.
#pragma once
#include "attention.h"

namespace ISA {

// A row as bf16 [q_stride], zeros behind head_dim.
inline void read_halves(const AttentionInput &in, const KvRow &row, uint16_t *out, float *spare) {
    if (in.kv_dtype == OCTAVO_KV_BF16 && in.head_dim == in.q_stride) {
        for (int d = 0; d < in.q_stride; d += 32) std::memcpy(out + d, row.data + d * 2, 64);  // a call per row would cost more
        return;
    }
    read_row(in, row, spare);
    for (int d = 0; d < in.q_stride; d += 16) store_bf16(out + d, load(spare + d));
}

// Keys of BLOCK tokens as panels [q_stride / 2][32][2], values as panels [BLOCK / 2][32][2] per 32 of q_stride.
// Zeros outside [first, count): nobody sees those, and an earlier owner may have left anything there.
inline void pack_block(const AttentionInput &in, int start, int first, int count, uint16_t *keys, uint16_t *values,
                       uint16_t *rows, float *spare) {
    const int wide = in.q_stride;
    for (int which = 0; which < 2; ++which) {
        const int from = std::max(first, 0);
        std::memset(rows, 0, static_cast<size_t>(from) * wide * 2);
        std::memset(rows + count * wide, 0, static_cast<size_t>(BLOCK - count) * wide * 2);
        each_row(in, start, from, count, which, [&](int t, const KvRow &row) { read_halves(in, row, rows + t * wide, spare); });
        if (which == 1) {
            for (int t = 0; t < BLOCK; t += 2)
                for (int d = 0; d < wide; d += 32)
                    interleave(rows + t * wide + d, rows + (t + 1) * wide + d, values + static_cast<int64_t>(d) * BLOCK + t * 32);
            continue;
        }
        const auto *words = reinterpret_cast<const uint32_t *>(rows);
        auto *to = reinterpret_cast<uint32_t *>(keys);
        for (int t = 0; t < BLOCK; t += 16)
            for (int d = 0; d < wide / 2; d += 16)
                transpose16(words + t * (wide / 2) + d, wide / 2, to + (t / 32 * (wide / 2) + d) * 32 + t % 32, 32);
    }
}

// x [rows, depth] bf16 times one panel.
inline void panel_product(const uint16_t *x, int64_t rows, int64_t depth, const uint16_t *panel, float *out, int64_t stride) {
    Activations from;
    from.bf16 = const_cast<uint16_t *>(x);
    from.depth = depth;
    OctavoMatrix w{reinterpret_cast<const uint8_t *>(panel), nullptr, octavo::PANEL, depth};
    product(OCTAVO_BF16, from, 0, rows, w, 0, 1, out, stride);
}

// Some query rows of a problem and the first keys of a block, as many as the last of these rows sees, in panels of 32.
struct Piece {
    int row, rows, start, width;
    bool whole;  // every row sees every key
};

inline Piece piece_of(const AttentionInput &in, int row, int rows, int start, int count) {
    const int group = in.q_heads / in.kv_heads;
    const int first = in.position0 + row / group, last = in.position0 + (row + rows - 1) / group;
    const int seen = std::min(count, last + 1 - start), width = (seen + 31) / 32 * 32;
    return {row, rows, start, width, first_visible(in, last) <= start && start + width <= std::min(first + 1, start + count)};
}

// scores [rows, BLOCK] of a piece as weights [rows, width] over the largest score so far; `best` and `total` of the piece's rows go on,
// and `keep` [rows] is what the sums before are worth now.
template <bool WHOLE>
inline void weigh_scores(const AttentionInput &in, const Piece &piece, const float *scores, uint16_t *weights, float *best, float *total,
                         float *keep) {
    const int group = in.q_heads / in.kv_heads, width = piece.width;
    const V scale = set1(in.scale), never = set1(-INFINITY);
    for (int from = 0; from < piece.rows; from += 16) {
        const int some = std::min(16, piece.rows - from);
        int low[16], high[16];
        V lanes[16];
        for (int r = 0; r < 16; ++r) {
            V most = never;
            if (r < some && !WHOLE) {
                const int position = in.position0 + (piece.row + from + r) / group;
                low[r] = first_visible(in, position) - piece.start;
                high[r] = position + 1 - piece.start;
            }
            const float *score = scores + (from + r) * BLOCK;
            for (int t = 0; t < width && r < some; t += 16)
                most = max(most, WHOLE ? load(score + t) : within(t, low[r], high[r], load(score + t), never));
            lanes[r] = most;
        }
        const V before = load(best + from), next = max(before, highest_of_each(lanes) * scale);
        store(best + from, next);
        store(keep + from, exp(max(before - next, set1(-88.0f))));  // nothing came before a row's first key: no sum either
        for (int r = 0; r < some; ++r) {
            const V shift = set1(best[from + r] == -INFINITY ? 0.0f : -best[from + r]);
            const float *score = scores + (from + r) * BLOCK;
            uint16_t *weight = weights + (from + r) * width;
            V all = zero();
            for (int t = 0; t < width; t += 16) {
                V value = exp(fma(load(score + t), scale, shift));
                if (!WHOLE) value = within(t, low[r], high[r], value, zero());
                store_bf16(weight + t, value);
                all = all + value;
            }
            lanes[r] = all;
        }
        store(total + from, fma(load(total + from), load(keep + from), sum_of_each(lanes)));
    }
}

inline void attend_many(const AttentionInput &in, float *out, float *scratch) {
    const int group = in.q_heads / in.kv_heads, rows = in.tokens * group, wide = in.q_stride, padded = (rows + 15) / 16 * 16;
    float *scores = scratch, *part = scores + rows * BLOCK, *sums = part + rows * wide, *best = sums + rows * wide;
    float *total = best + padded, *keep = total + padded, *row = keep + padded;
    auto *weights = reinterpret_cast<uint16_t *>(row + wide), *q = weights + rows * BLOCK;
    uint16_t *keys = q + rows * wide, *values = keys + BLOCK * wide, *halves = values + BLOCK * wide;
    for (int r = 0; r < rows; ++r)
        std::memcpy(q + static_cast<int64_t>(r) * wide, query(in, r), static_cast<size_t>(wide) * 2);
    std::fill(best, best + padded, -INFINITY);
    std::fill(total, total + padded, 0.0f);
    std::fill(sums, sums + static_cast<int64_t>(rows) * wide, 0.0f);
    const int last = in.position0 + in.tokens;
    const int oldest = first_visible(in, in.position0);
    for (int start = oldest / BLOCK * BLOCK; start < last; start += BLOCK) {
        const int count = std::min(BLOCK, last - start);
        pack_block(in, start, oldest - start, count, keys, values, halves, row);
        for (int from = 0; from < rows; from += ATTEND_ROWS) {
            const Piece piece = piece_of(in, from, std::min(ATTEND_ROWS, rows - from), start, count);
            if (piece.width <= 0) continue;
            for (int panel = 0; panel < piece.width / 32; ++panel)
                panel_product(q + static_cast<int64_t>(from) * wide, piece.rows, wide, keys + panel * wide * 32, scores + panel * 32, BLOCK);
            if (piece.whole)
                weigh_scores<true>(in, piece, scores, weights, best + from, total + from, keep);
            else
                weigh_scores<false>(in, piece, scores, weights, best + from, total + from, keep);
            for (int panel = 0; panel < wide / 32; ++panel)
                panel_product(weights, piece.rows, piece.width, values + static_cast<int64_t>(panel) * BLOCK * 32, part + panel * 32, wide);
            for (int r = 0; r < piece.rows; ++r) {
                float *at = sums + static_cast<int64_t>(from + r) * wide;
                const V kept = set1(keep[r]);
                for (int d = 0; d < wide; d += 16) store(at + d, fma(load(at + d), kept, load(part + r * wide + d)));
            }
        }
    }
    for (int r = 0; r < rows; ++r) {
        const float share = 1.0f / total[r];
        for (int d = 0; d < in.head_dim; ++d) out[r * in.head_dim + d] = sums[r * wide + d] * share;
    }
}

}  // namespace ISA
