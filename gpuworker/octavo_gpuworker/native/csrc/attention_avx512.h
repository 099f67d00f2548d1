// attend_few of AVX-512 with bf16 or int8 keys and head sizes that are multiples of 32: vdpbf16ps for scores and for sums.
// int8 codes are exact in bf16; their scales go to the scores and to the weights.
#pragma once
#include "attention.h"

namespace ISA {

// Element i of the result is the sum of the lanes of a[i].
inline __m512 sums_of(const __m512 a[16]) {
    __m512 t[8], u[4];
    each<8>([&](auto i) OCTAVO_INLINE {
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    });
    each<4>([&](auto i) OCTAVO_INLINE {
        const __m512d x = _mm512_castps_pd(t[2 * i]), y = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    });
    const auto lanes = [](__m512 x, __m512 y) OCTAVO_INLINE {
        return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    };
    return lanes(lanes(u[0], u[1]), lanes(u[2], u[3]));
}

inline __m512bh halves_at(const uint16_t *p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

// Rows of one tile of up to BLOCK keys. Of an int8 cache they are codes until `widen` has put them at another place as bf16.
struct TileRows {
    const uint16_t *keys[BLOCK], *values[BLOCK];
    float key_scales[BLOCK], value_scales[BLOCK];
    int count = 0;
};

// Goes through the rows of one KV head, block by block: a division per block, or a list of lines, costs more than its keys.
class Walk {
  public:
    Walk(const AttentionInput &in, int kv_head, int position)
        : in_(in),
          row_bytes_(in.head_dim * (in.kv_dtype == OCTAVO_KV_INT8 ? 1 : 2)),
          values_(static_cast<int64_t>(in.kv_heads) * in.block_tokens),
          head_(static_cast<int64_t>(kv_head) * in.block_tokens),
          block_(position / in.block_tokens),
          at_(position % in.block_tokens) {}

    // The next `count` rows.
    void next(int count, TileRows &rows) {
        rows.count = count;
        for (int t = 0; t < count;) {
            const int end = std::min(count, t + in_.block_tokens - at_);
            const uint8_t *block = in_.pool + in_.table[block_] * in_.block_bytes;
            const uint8_t *key = block + in_.layer_offset + (head_ + at_) * row_bytes_, *value = key + values_ * row_bytes_;
            if (in_.kv_dtype == OCTAVO_KV_INT8) {
                const auto *scales = reinterpret_cast<const float *>(block + in_.scale_offset) + head_ + at_;
                std::memcpy(rows.key_scales + t, scales, static_cast<size_t>(end - t) * 4);
                std::memcpy(rows.value_scales + t, scales + values_, static_cast<size_t>(end - t) * 4);
            }
            at_ += end - t;
            if (at_ == in_.block_tokens) {
                at_ = 0;
                ++block_;
            }
            for (; t < end; ++t, key += row_bytes_, value += row_bytes_) {
                rows.keys[t] = reinterpret_cast<const uint16_t *>(key);
                rows.values[t] = reinterpret_cast<const uint16_t *>(value);
            }
        }
        for (int t = count; t % 16; ++t) {  // masked: any row will do
            rows.keys[t] = rows.keys[0];
            rows.values[t] = rows.values[0];
            rows.key_scales[t] = rows.value_scales[t] = 0.0f;
        }
    }

  private:
    const AttentionInput &in_;
    const int64_t row_bytes_, values_, head_;
    int block_, at_;
};

inline void widen_codes(const uint16_t *codes, int width, uint16_t *out) {
    for (int d = 0; d < width; d += 16) store_bf16(out + d, load_i8(reinterpret_cast<const int8_t *>(codes) + d));
}

inline void widen(TileRows &rows, int width, uint16_t *scratch) {
    for (int t = 0; t < (rows.count + 15) / 16 * 16; ++t, scratch += 2 * width) {
        widen_codes(rows.keys[t], width, scratch);
        widen_codes(rows.values[t], width, scratch + width);
        rows.keys[t] = scratch;
        rows.values[t] = scratch + width;
    }
}

// Blocks lie anywhere, so the hardware foresees none of them: some rows of the next tile are asked for beside every 16 keys of this
// one. A burst of all of them at once waits for free fill buffers (measured: no gain).
template <int LINES>
class Ahead {
  public:
    Ahead(const TileRows &rows, int turns) : rows_(rows), each_turn_((rows.count + turns - 1) / turns) {}
    void ask() {
        for (const int end = std::min(rows_.count, next_ + each_turn_); next_ < end; ++next_)
            each<LINES>([&](auto line) OCTAVO_INLINE {
                _mm_prefetch(reinterpret_cast<const char *>(rows_.keys[next_]) + line * 64, _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char *>(rows_.values[next_]) + line * 64, _MM_HINT_T0);
            });
    }

  private:
    const TileRows &rows_;
    const int each_turn_;
    int next_ = 0;
};

template <int HALVES, typename A>
inline void score_tile(const uint16_t *q, const TileRows &rows, int count, float *scores, A &ahead) {
    __m512bh query[HALVES];
    each<HALVES>([&](auto h) OCTAVO_INLINE { query[h] = halves_at(q + h * 32); });
    for (int t = 0; t < count; t += 16) {
        ahead.ask();
        __m512 acc[16];
        each<16>([&](auto i) OCTAVO_INLINE {
            const uint16_t *key = rows.keys[t + i];
            acc[i] = _mm512_setzero_ps();
            each<HALVES>([&](auto h) OCTAVO_INLINE { acc[i] = _mm512_dpbf16_ps(acc[i], halves_at(key + h * 32), query[h]); });
        });
        _mm512_storeu_ps(scores + t, sums_of(acc));
    }
}

// sums[r] = keep[r] * sums[r] + weights[r] V. A pair of value rows is interleaved within 128-bit lanes, so the columns of `sums`
// lie in that order until `in_order` puts them right.
template <int HALVES, int ROWS>
inline void sum_tile(const TileRows &rows, int count, const uint16_t *weights, const float *keep, float *sums) {
    constexpr int WIDE = HALVES * 32;
    __m512 acc[ROWS][HALVES * 2];
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<HALVES * 2>([&](auto d) OCTAVO_INLINE {
            acc[r][d] = _mm512_mul_ps(_mm512_loadu_ps(sums + r * WIDE + d * 16), _mm512_set1_ps(keep[r]));
        });
    });
    for (int t = 0; t < count; t += 2) {
        each<HALVES>([&](auto h) OCTAVO_INLINE {
            const __m512i a = _mm512_loadu_si512(rows.values[t] + h * 32), b = _mm512_loadu_si512(rows.values[t + 1] + h * 32);
            const auto low = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(a, b));
            const auto high = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(a, b));
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                int32_t pair;
                __builtin_memcpy(&pair, weights + r * BLOCK + t, 4);
                const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
                acc[r][2 * h] = _mm512_dpbf16_ps(acc[r][2 * h], low, both);
                acc[r][2 * h + 1] = _mm512_dpbf16_ps(acc[r][2 * h + 1], high, both);
            });
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<HALVES * 2>([&](auto d) OCTAVO_INLINE { _mm512_storeu_ps(sums + r * WIDE + d * 16, acc[r][d]); });
    });
}

// low holds columns 0-3, 8-11, 16-19, 24-27 of 32, high the others.
inline void in_order(const float *sums, float *out) {
    const __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
}

template <int HALVES>
inline void attend_few_halves(const AttentionInput &in, int first, int last, float *out, float *best, float *total,
                              float *sums, uint16_t *codes) {
    constexpr int WIDE = HALVES * 32, MOST = HALVES > 4 ? 1 : 8 / HALVES > 4 ? 4 : 8 / HALVES;
    constexpr int LINES = HALVES;  // of one row of bf16; of codes half of them, and asking for a line twice costs little
    const int group = in.q_heads / in.kv_heads, rows = in.tokens * group;
    const bool narrow = in.kv_dtype == OCTAVO_KV_INT8;
    TileRows tiles[2];
    Walk walk(in, in.kv_head, first);
    walk.next(std::min(BLOCK, last - first), tiles[0]);
    if (!in.asked) Ahead<LINES>(tiles[0], 1).ask();
    std::fill(sums, sums + rows * WIDE, 0.0f);
    for (int r = 0; r < rows; ++r) {
        best[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (int start = first, turn = 0; start < last; start += BLOCK, turn ^= 1) {
        TileRows &at = tiles[turn], &then = tiles[turn ^ 1];
        const int count = at.count, padded = (count + 15) / 16 * 16;
        then.count = 0;
        if (start + count < last)
            walk.next(std::min(BLOCK, last - start - count), then);
        else if (in.next_head >= 0)
            Walk(in, in.next_head, first).next(std::min(BLOCK, last - first), then);
        if (narrow) widen(at, WIDE, codes);
        Ahead<LINES> ahead(then, rows * (padded / 16));
        for (int row = 0; row < rows; row += MOST) {
            alignas(64) uint16_t weights[MOST * BLOCK];
            float scores[BLOCK], keep[MOST];
            const int some = std::min(MOST, rows - row);
            for (int r = 0; r < some; ++r) {
                const int position = in.position0 + (row + r) / group;
                const int low = first_visible(in, position) - start, high = std::min(count, position + 1 - start);
                score_tile<HALVES>(query(in, row + r), at, padded, scores, ahead);
                V most = set1(-INFINITY);
                for (int t = 0; t < padded; t += 16) {
                    V value = load(scores + t) * set1(in.scale);
                    if (in.kv_dtype == OCTAVO_KV_INT8) value = value * load(at.key_scales + t);
                    value = within(t, low, high, value, set1(-INFINITY));
                    store(scores + t, value);
                    most = max(most, value);
                }
                const float before = best[row + r], next = std::max(before, highest(most));
                keep[r] = before == next ? 1.0f : std::exp(before - next);
                const V shift = set1(next == -INFINITY ? 0.0f : next);
                V all = zero();
                for (int t = 0; t < padded; t += 16) {
                    V value = within(t, low, high, exp(load(scores + t) - shift), zero());
                    all = all + value;
                    if (in.kv_dtype == OCTAVO_KV_INT8) value = value * load(at.value_scales + t);
                    store_bf16(weights + r * BLOCK + t, value);
                }
                total[row + r] = total[row + r] * keep[r] + sum(all);
                best[row + r] = next;
            }
            each<MOST>([&](auto n) OCTAVO_INLINE {
                if (some == n + 1) sum_tile<HALVES, n + 1>(at, padded, weights, keep, sums + row * WIDE);
            });
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int d = 0; d < WIDE; d += 32) in_order(sums + r * WIDE + d, out + r * WIDE + d);
}

inline void attend_few_wide(const AttentionInput &in, int first, int last, float *out, float *best, float *total,
                            float *scratch) {
    float *sums = scratch;
    auto *codes = reinterpret_cast<uint16_t *>(sums + in.tokens * (in.q_heads / in.kv_heads) * in.head_dim);
    if (in.head_dim % 32 || in.kv_dtype == OCTAVO_KV_F32) return attend_few(in, first, last, out, best, total, scratch);
    switch (in.head_dim / 32) {
        case 1: return attend_few_halves<1>(in, first, last, out, best, total, sums, codes);
        case 2: return attend_few_halves<2>(in, first, last, out, best, total, sums, codes);
        case 3: return attend_few_halves<3>(in, first, last, out, best, total, sums, codes);
        case 4: return attend_few_halves<4>(in, first, last, out, best, total, sums, codes);
        case 8: return attend_few_halves<8>(in, first, last, out, best, total, sums, codes);
        default: return attend_few(in, first, last, out, best, total, scratch);
    }
}

}  // namespace ISA
