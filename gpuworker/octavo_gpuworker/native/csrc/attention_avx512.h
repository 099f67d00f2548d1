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

// Rows of one tile of BLOCK keys, as bf16, and what they are to be multiplied with.
struct TileRows {
    const uint16_t *keys[BLOCK], *values[BLOCK];
    float key_scales[BLOCK], value_scales[BLOCK];
};

inline void widen_codes(const uint8_t *data, int width, uint16_t *out) {
    for (int d = 0; d < width; d += 16) store_bf16(out + d, load_i8(reinterpret_cast<const int8_t *>(data) + d));
}

inline void find_rows(const AttentionInput &in, int start, int count, uint16_t *scratch, TileRows &rows) {
    for (int which = 0; which < 2; ++which) {
        const uint16_t **to = which ? rows.values : rows.keys;
        float *scales = which ? rows.value_scales : rows.key_scales;
        each_row(in, start, 0, count, which, [&](int t, const KvRow &row) {
            to[t] = reinterpret_cast<const uint16_t *>(row.data);
            if (in.kv_dtype != OCTAVO_KV_INT8) return;
            uint16_t *wide = scratch + (which * BLOCK + t) * in.head_dim;
            widen_codes(row.data, in.head_dim, wide);
            to[t] = wide;
            scales[t] = row.scale;
        });
    }
    for (int t = count; t % 16; ++t) {  // masked: any row will do
        rows.keys[t] = rows.keys[0];
        rows.values[t] = rows.values[0];
        rows.key_scales[t] = rows.value_scales[t] = 0.0f;
    }
}

// Blocks lie anywhere, so the hardware foresees none of them: line i of the next tile's keys and values is asked for beside
// key i of this one. A burst of all lines at once waits for free fill buffers (measured: no gain).
class Ahead {
  public:
    Ahead(const AttentionInput &in, int start, int last) {
        const int64_t row = in.head_dim * (in.kv_dtype == OCTAVO_KV_INT8 ? 1 : 2);
        for (int t = start; t < last; t = (t / in.block_tokens + 1) * in.block_tokens) {
            const int64_t bytes = row * std::min(in.block_tokens - t % in.block_tokens, last - t);
            for (int which = 0; which < 2; ++which) {
                const auto *data = reinterpret_cast<const char *>(kv_row(in, t, which).data);
                for (int64_t at = 0; at < bytes && count_ < MOST; at += 64) lines_[count_++] = data + at;
            }
        }
    }
    void ask(int count) {
        for (const int end = std::min(count_, next_ + count); next_ < end; ++next_) _mm_prefetch(lines_[next_], _MM_HINT_T0);
    }

  private:
    static constexpr int MOST = 1024;
    const char *lines_[MOST];
    int count_ = 0, next_ = 0;
};

template <int HALVES>
inline void score_tile(const uint16_t *q, const TileRows &rows, int count, float *scores, Ahead &ahead) {
    for (int t = 0; t < count; t += 16) {
        ahead.ask(HALVES * 16);
        __m512 acc[16];
        each<16>([&](auto i) OCTAVO_INLINE { acc[i] = _mm512_setzero_ps(); });
        each<HALVES>([&](auto h) OCTAVO_INLINE {
            const __m512bh query = halves_at(q + h * 32);
            each<16>([&](auto i) OCTAVO_INLINE {
                acc[i] = _mm512_dpbf16_ps(acc[i], halves_at(rows.keys[t + i] + h * 32), query);
            });
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
    const int group = in.q_heads / in.kv_heads, rows = in.tokens * group;
    Ahead(in, first, std::min(last, first + BLOCK)).ask(BLOCK * HALVES * 2);
    std::fill(sums, sums + rows * WIDE, 0.0f);
    for (int r = 0; r < rows; ++r) {
        best[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (int start = first; start < last; start += BLOCK) {
        const int count = std::min(BLOCK, last - start), padded = (count + 15) / 16 * 16;
        TileRows at;
        Ahead ahead(in, start + count, std::min(last, start + count + BLOCK));
        find_rows(in, start, count, codes, at);
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
