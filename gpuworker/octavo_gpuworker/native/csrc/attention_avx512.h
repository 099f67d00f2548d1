// attend_few of AVX-512 with bf16 or int8 keys and head sizes that are multiples of 32: vdpbf16ps for scores and for sums. Codes of an
// int8 cache are widened to 16 bits in passing, for vpdpwssd; queries and weights have 16 bits then too, of their largest (2^-16 of it off
// at most, where bf16 is off by 2^-9 of each); the scales of the cache go to the scores and to the weights.
#pragma once
#include "attention.h"

namespace ISA {

inline __m512bh halves_at(const uint16_t *p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

constexpr float CODE_MOST = 32767.0f;  // of a query's or weight's 16 bits; 64 keys of it times 127 stay below 2^31

// Rows of one tile of up to BLOCK keys: bf16, or the codes of an int8 cache and where their scales are.
struct TileRows {
    const uint16_t *keys[BLOCK], *values[BLOCK];
    const float *scales[BLOCK];  // of the keys of one block from row `starts` on; those of the values lie `apart` from them
    int starts[BLOCK + 1], spans = 0, count = 0;
    float key_scales[BLOCK], value_scales[BLOCK];

    // At the time of use, since they come from memory.
    void read_scales(int64_t apart) {
        starts[spans] = count;
        for (int i = 0; i < spans; ++i) {
            const auto bytes = static_cast<size_t>(starts[i + 1] - starts[i]) * 4;
            std::memcpy(key_scales + starts[i], scales[i], bytes);
            std::memcpy(value_scales + starts[i], scales[i] + apart, bytes);
        }
        for (int t = count; t % 16; ++t) key_scales[t] = value_scales[t] = 0.0f;
    }
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
        rows.spans = 0;
        for (int t = 0; t < count;) {
            const int end = std::min(count, t + in_.block_tokens - at_);
            const uint8_t *block = in_.pool + in_.table[block_] * in_.block_bytes;
            const uint8_t *key = block + in_.layer_offset + (head_ + at_) * row_bytes_, *value = key + values_ * row_bytes_;
            if (in_.kv_dtype == OCTAVO_KV_INT8) {
                const auto *scales = reinterpret_cast<const float *>(block + in_.scale_offset) + head_ + at_;
                _mm_prefetch(reinterpret_cast<const char *>(scales), _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char *>(scales + values_), _MM_HINT_T0);
                rows.starts[rows.spans] = t;
                rows.scales[rows.spans++] = scales;
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
        }
    }
    int64_t scales_apart() const { return values_; }

  private:
    const AttentionInput &in_;
    const int64_t row_bytes_, values_, head_;
    int block_, at_;
};

inline __m512i words_at(const int8_t *codes) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes)));
}

// bf16 [width] as 16-bit parts of its largest; returns the step, NaN where one is not finite: it must show in the logits.
inline float put_words(const uint16_t *x, int width, int16_t *out) {
    V most = zero(), check = zero();
    for (int d = 0; d < width; d += 16) {
        const V value = load_bf16(x + d);
        most = max(most, abs(value));
        check = fma(value, zero(), check);
    }
    const float largest = highest(most);
    if (any_nan(check)) return NAN;
    const V parts = set1(largest > 0 ? CODE_MOST / largest : 0.0f);
    for (int d = 0; d < width; d += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + d), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((load_bf16(x + d) * parts).v)));
    return largest / CODE_MOST;
}

// Blocks lie anywhere, so the hardware foresees none of them: the rows of the next tile are asked for beside this one's, half beside its
// scores, half beside its sums, for memory stands still once what was asked for is there. A burst of all of them at once waits for free
// fill buffers (measured: no gain).
template <int LINES>
class Ahead {
  public:
    // `scoring` turns beside scores, `summing` beside sums.
    Ahead(const TileRows &rows, int scoring, int summing)
        : rows_(rows),
          beside_score_((rows.count + 2 * scoring - 1) / (2 * scoring)),
          beside_sum_((rows.count - std::min(rows.count, scoring * beside_score_) + summing - 1) / summing) {}
    void ask_beside_scores() { ask(beside_score_); }
    void ask_beside_sums() { ask(beside_sum_); }
    void ask(int some) {
        for (const int end = std::min(rows_.count, next_ + some); next_ < end; ++next_)
            each<LINES>([&](auto line) OCTAVO_INLINE {
                _mm_prefetch(reinterpret_cast<const char *>(rows_.keys[next_]) + line * 64, _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char *>(rows_.values[next_]) + line * 64, _MM_HINT_T0);
            });
    }

  private:
    const TileRows &rows_;
    const int beside_score_, beside_sum_;
    int next_ = 0;
};

template <int HALVES, typename A>
inline void score_tile(const uint16_t *q, const TileRows &rows, int count, float *scores, A &ahead) {
    __m512bh query[HALVES];
    each<HALVES>([&](auto h) OCTAVO_INLINE { query[h] = halves_at(q + h * 32); });
    for (int t = 0; t < count; t += 16) {
        ahead.ask_beside_scores();
        __m512 acc[16];
        each<16>([&](auto i) OCTAVO_INLINE {
            const uint16_t *key = rows.keys[t + i];
            acc[i] = _mm512_setzero_ps();
            each<HALVES>([&](auto h) OCTAVO_INLINE { acc[i] = _mm512_dpbf16_ps(acc[i], halves_at(key + h * 32), query[h]); });
        });
        _mm512_storeu_ps(scores + t, sums_of(acc));
    }
}

// The same of codes and a query in words, in their steps.
template <int HALVES, typename A>
inline void score_codes(const int16_t *q, const TileRows &rows, int count, float *scores, A &ahead) {
    __m512i query[HALVES];
    each<HALVES>([&](auto h) OCTAVO_INLINE { query[h] = _mm512_loadu_si512(q + h * 32); });
    for (int t = 0; t < count; t += 16) {
        ahead.ask_beside_scores();
        __m512 acc[16];
        each<16>([&](auto i) OCTAVO_INLINE {
            const auto *key = reinterpret_cast<const int8_t *>(rows.keys[t + i]);
            __m512i part = _mm512_setzero_si512();
            each<HALVES>([&](auto h) OCTAVO_INLINE { part = _mm512_dpwssd_epi32(part, words_at(key + h * 32), query[h]); });
            acc[i] = _mm512_cvtepi32_ps(part);
        });
        _mm512_storeu_ps(scores + t, sums_of(acc));
    }
}

// sums[r] = keep[r] * sums[r] + weights[r] V. A pair of value rows is interleaved within 128-bit lanes, so the columns of `sums`
// lie in that order until `in_order` puts them right.
template <int HALVES, int ROWS, typename A>
inline void sum_tile(const TileRows &rows, int count, const uint16_t *weights, const float *keep, float *sums, A &ahead) {
    constexpr int WIDE = HALVES * 32;
    __m512 acc[ROWS][HALVES * 2];
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<HALVES * 2>([&](auto d) OCTAVO_INLINE {
            acc[r][d] = _mm512_mul_ps(_mm512_loadu_ps(sums + r * WIDE + d * 16), _mm512_set1_ps(keep[r]));
        });
    });
    for (int t = 0; t < count; t += 2) {
        ahead.ask_beside_sums();
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

// The same of codes and weights in words of `steps`; the columns of `sums` lie as codes_in_order expects them.
template <int HALVES, int ROWS, typename A>
inline void sum_codes(const TileRows &rows, int count, const int16_t *weights, const float *steps, const float *keep, float *sums, A &ahead) {
    constexpr int WIDE = HALVES * 32;
    __m512i acc[ROWS][HALVES * 2];
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        each<HALVES * 2>([&](auto d) OCTAVO_INLINE { acc[r][d] = _mm512_setzero_si512(); });
    });
    for (int t = 0; t < count; t += 2) {
        ahead.ask_beside_sums();
        each<HALVES>([&](auto h) OCTAVO_INLINE {
            const auto *first = reinterpret_cast<const __m256i *>(rows.values[t]) + h, *second = reinterpret_cast<const __m256i *>(rows.values[t + 1]) + h;
            const __m256i a = _mm256_loadu_si256(first), b = _mm256_loadu_si256(second);
            const __m512i low = _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(a, b)), high = _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(a, b));
            each<ROWS>([&](auto r) OCTAVO_INLINE {
                int32_t pair;
                __builtin_memcpy(&pair, weights + r * BLOCK + t, 4);
                const __m512i both = _mm512_set1_epi32(pair);
                acc[r][2 * h] = _mm512_dpwssd_epi32(acc[r][2 * h], low, both);
                acc[r][2 * h + 1] = _mm512_dpwssd_epi32(acc[r][2 * h + 1], high, both);
            });
        });
    }
    each<ROWS>([&](auto r) OCTAVO_INLINE {
        const __m512 step = _mm512_set1_ps(steps[r]), kept = _mm512_set1_ps(keep[r]);
        each<HALVES * 2>([&](auto d) OCTAVO_INLINE {
            float *at = sums + r * WIDE + d * 16;
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][d]), step, _mm512_mul_ps(_mm512_loadu_ps(at), kept)));
        });
    });
}

// low holds columns 0-7 and 16-23 of 32, high the others.
inline void codes_in_order(const float *sums, float *out) {
    const __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
    _mm512_storeu_ps(out, _mm512_shuffle_f32x4(low, high, 0x44));
    _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(low, high, 0xee));
}

// low holds columns 0-3, 8-11, 16-19, 24-27 of 32, high the others.
inline void in_order(const float *sums, float *out) {
    const __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
}

// Of one row and tile: scores [padded], which are masked, as weights over `next`, the largest so far; returns their sum.
inline V put_weights(const TileRows &at, int padded, int low, int high, float next, bool narrow, float *scores) {
    const V shift = set1(next == -INFINITY ? 0.0f : next);
    V all = zero();
    for (int t = 0; t < padded; t += 16) {
        const V value = within(t, low, high, exp(load(scores + t) - shift), zero());
        all = all + value;
        store(scores + t, narrow ? value * load(at.value_scales + t) : value);
    }
    return all;
}

// Weights [padded] as words; returns their step, NaN where one is not finite.
inline float put_weight_words(const float *weights, int padded, int16_t *out) {
    V most = zero(), check = zero();
    for (int t = 0; t < padded; t += 16) {
        const V value = load(weights + t);
        most = max(most, value);
        check = fma(value, zero(), check);
    }
    const float largest = highest(most);
    const V parts = set1(largest > 0 ? CODE_MOST / largest : 0.0f);
    for (int t = 0; t < padded; t += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + t), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((load(weights + t) * parts).v)));
    return any_nan(check) ? NAN : largest / CODE_MOST;
}

template <int HALVES, bool NARROW>
inline void attend_few_halves(const AttentionInput &in, int first, int last, float *out, float *best, float *total, float *sums) {
    constexpr int WIDE = HALVES * 32, MOST = HALVES > 4 ? 1 : 8 / HALVES > 4 ? 4 : 8 / HALVES;
    constexpr int LINES = NARROW ? (HALVES + 1) / 2 : HALVES;  // of one row
    const int group = in.q_heads / in.kv_heads, rows = in.tokens * group;
    auto *words = reinterpret_cast<int16_t *>(sums + rows * WIDE);  // of the queries, and behind them their steps
    float *steps = sums + rows * WIDE + rows * (WIDE / 2);
    TileRows tiles[2];
    Walk walk(in, in.kv_head, first);
    walk.next(std::min(BLOCK, last - first), tiles[0]);
    if (!in.asked) Ahead<LINES>(tiles[0], 1, 1).ask(BLOCK);
    std::fill(sums, sums + rows * WIDE, 0.0f);
    for (int r = 0; r < rows; ++r) {
        best[r] = -INFINITY;
        total[r] = 0.0f;
        if (NARROW) steps[r] = put_words(query(in, r), WIDE, words + r * WIDE);
    }
    for (int start = first, turn = 0; start < last; start += BLOCK, turn ^= 1) {
        TileRows &at = tiles[turn], &then = tiles[turn ^ 1];
        const int count = at.count, padded = (count + 15) / 16 * 16;
        then.count = 0;
        if (start + count < last)
            walk.next(std::min(BLOCK, last - start - count), then);
        else if (in.next_head >= 0)
            Walk(in, in.next_head, first).next(std::min(BLOCK, last - first), then);
        if (NARROW) at.read_scales(walk.scales_apart());
        Ahead<LINES> ahead(then, rows * (padded / 16), (rows + MOST - 1) / MOST * (padded / 2));
        for (int row = 0; row < rows; row += MOST) {
            alignas(64) uint16_t weights[MOST * BLOCK];
            float scores[BLOCK], keep[MOST], weight_steps[MOST];
            const int some = std::min(MOST, rows - row);
            for (int r = 0; r < some; ++r) {
                const int position = in.position0 + (row + r) / group;
                const int low = first_visible(in, position) - start, high = std::min(count, position + 1 - start);
                if (NARROW)
                    score_codes<HALVES>(words + (row + r) * WIDE, at, padded, scores, ahead);
                else
                    score_tile<HALVES>(query(in, row + r), at, padded, scores, ahead);
                const V scale = set1(NARROW ? in.scale * steps[row + r] : in.scale);
                V most = set1(-INFINITY);
                for (int t = 0; t < padded; t += 16) {
                    V value = load(scores + t) * scale;
                    if (NARROW) value = value * load(at.key_scales + t);
                    value = within(t, low, high, value, set1(-INFINITY));
                    store(scores + t, value);
                    most = max(most, value);
                }
                const float before = best[row + r], next = std::max(before, highest(most));
                keep[r] = before == next ? 1.0f : std::exp(before - next);
                const V all = put_weights(at, padded, low, high, next, NARROW, scores);
                total[row + r] = total[row + r] * keep[r] + sum(all);
                best[row + r] = next;
                if (NARROW)
                    weight_steps[r] = put_weight_words(scores, padded, reinterpret_cast<int16_t *>(weights) + r * BLOCK);
                else
                    for (int t = 0; t < padded; t += 16) store_bf16(weights + r * BLOCK + t, load(scores + t));
            }
            each<MOST>([&](auto n) OCTAVO_INLINE {
                if (some != n + 1) return;
                if (NARROW)
                    sum_codes<HALVES, n + 1>(at, padded, reinterpret_cast<int16_t *>(weights), weight_steps, keep, sums + row * WIDE, ahead);
                else
                    sum_tile<HALVES, n + 1>(at, padded, weights, keep, sums + row * WIDE, ahead);
            });
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int d = 0; d < WIDE; d += 32) {
            const float *from = sums + r * WIDE + d;
            NARROW ? codes_in_order(from, out + r * WIDE + d) : in_order(from, out + r * WIDE + d);
        }
}

inline void attend_few_wide(const AttentionInput &in, int first, int last, float *out, float *best, float *total,
                            float *scratch) {
    if (in.head_dim % 32 || in.kv_dtype == OCTAVO_KV_F32) return attend_few(in, first, last, out, best, total, scratch);
    const auto halves = [&](auto count) OCTAVO_INLINE {
        if (in.kv_dtype == OCTAVO_KV_INT8) return attend_few_halves<count, true>(in, first, last, out, best, total, scratch);
        return attend_few_halves<count, false>(in, first, last, out, best, total, scratch);
    };
    switch (in.head_dim / 32) {
        case 1: return halves(std::integral_constant<int, 1>());
        case 2: return halves(std::integral_constant<int, 2>());
        case 3: return halves(std::integral_constant<int, 3>());
        case 4: return halves(std::integral_constant<int, 4>());
        case 8: return halves(std::integral_constant<int, 8>());
        default: return attend_few(in, first, last, out, best, total, scratch);
    }
}

}  // namespace ISA
