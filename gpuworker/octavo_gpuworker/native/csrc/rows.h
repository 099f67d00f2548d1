// Row operations over V: norms, quantization of activations, gated activations, rotation. Included once per instruction set.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace ISA {

using octavo::Activations;
using octavo::GROUP;

// exp by 2^n * polynomial (Cephes' expf), within 2 units in the last place; below -87: 0.
inline V exp(V x) {
    const V n = round(x * set1(1.44269504088896341f));
    V r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    V p = set1(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, set1(c));
    p = fma(p * r, r, r + set1(1.0f));
    return scale_by_power(p, max(n, set1(-127.0f)));
}

// The last count < 16 floats in a register, zeros behind them.
inline V load_some(const float *x, int64_t count) {
    float padded[16] = {};
    std::memcpy(padded, x, static_cast<size_t>(count) * 4);
    return load(padded);
}
inline void store_some(float *x, V value, int64_t count) {
    float padded[16];
    store(padded, value);
    std::memcpy(x, padded, static_cast<size_t>(count) * 4);
}

// What int8 makes of 32 values, but for the sums of their codes, which are whole numbers below 2^24: `scale` is their largest / 127, codes
// are rounded to nearest even.
inline V put_codes(V a, V b, float scale, int8_t *to) {
    const V step = set1(scale), low = set1(-127.0f), high = set1(127.0f);
    const V first = min(max(round(a / step), low), high), second = min(max(round(b / step), low), high);
    store_i8(to, first);
    store_i8(to + 16, second);
    return first + second;
}

inline void put_scale(Activations &out, int64_t at, float scale, float codes, bool finite) {
    out.scales[at] = finite ? scale : NAN;  // it must show in the logits
    out.sums[at] = scale * codes;
    out.comp[at] = -128 * static_cast<int32_t>(codes);
}

inline float scale_of(float largest) { return largest > 0 ? largest / 127.0f : 1.0f; }

// Quantizes 32 values.
inline void put_group(const float *x, int format, Activations &out, int64_t row, int64_t group) {
    const V a = load(x), b = load(x + 16);
    if (format == OCTAVO_BF16) {
        uint16_t *to = out.bf16 + row * out.depth + group * GROUP;
        store_bf16(to, a);
        store_bf16(to + 16, b);
        return;
    }
    const float scale = scale_of(highest(max(abs(a), abs(b))));
    const float codes = sum(put_codes(a, b, scale, out.codes + row * out.depth + group * GROUP));
    put_scale(out, row * (out.depth / GROUP) + group, scale, codes, !any_nan(fma(a, zero(), b * zero())));
}

inline void norm_row(const float *x, const float *weight, int64_t width, float eps, int format, Activations &out,
                     int64_t row) {
    float scale = 1.0f;
    if (weight) {
        V squares[2] = {zero(), zero()};
        int64_t i = 0;
        for (; i + 32 <= width; i += 32)
            for (int half = 0; half < 2; ++half) {
                const V value = load(x + i + half * 16);
                squares[half] = fma(value, value, squares[half]);
            }
        float total = sum(squares[0] + squares[1]);
        for (; i < width; ++i) total += x[i] * x[i];
        scale = 1.0f / std::sqrt(total / static_cast<float>(width) + eps);
    }
    const V factor = set1(scale);
    float values[GROUP];
    for (int64_t start = 0; start < out.depth; start += GROUP) {
        if (start + GROUP <= width) {
            for (int half = 0; half < 2; ++half) {
                V value = load(x + start + half * 16);
                if (weight) value = value * factor * load(weight + start + half * 16);
                store(values + half * 16, value);
            }
        } else {
            for (int64_t i = 0; i < GROUP; ++i) {
                const bool inside = start + i < width;
                values[i] = inside ? x[start + i] * (weight ? scale * weight[start + i] : 1.0f) : 0.0f;
            }
        }
        put_group(values, format, out, row, start / GROUP);
    }
}

inline V silu(V x) { return x / (set1(1.0f) + exp(zero() - x)); }

// tanh(y) = 1 - 2 / (exp(2 y) + 1), with 2 y kept where exp is finite.
inline V gelu_tanh(V x) {
    const V y = set1(1.5957691216057308f) * fma(set1(0.044715f) * x * x, x, x);
    const V power = exp(min(max(y, set1(-80.0f)), set1(80.0f)));
    return x * power / (power + set1(1.0f));
}

inline V gated(const float *gate_up, int activation) {
    const V gate = load(gate_up);
    return (activation == OCTAVO_SILU ? silu(gate) : gelu_tanh(gate)) * load(gate_up + 32);
}

// The same bits as put_group of each row, 16 rows at a time: what is one number per row is reduced and divided for all of them at once.
inline void put_gated(const float *gate_up, int64_t rows, int activation, int format, Activations &out, int64_t row0, int64_t group) {
    if (format == OCTAVO_BF16) {
        for (int64_t r = 0; r < rows; ++r, gate_up += 64) {
            uint16_t *to = out.bf16 + (row0 + r) * out.depth + group * GROUP;
            store_bf16(to, gated(gate_up, activation));
            store_bf16(to + 16, gated(gate_up + 16, activation));
        }
        return;
    }
    for (int64_t from = 0; from < rows; from += 16, gate_up += 16 * 64) {
        const int some = static_cast<int>(std::min<int64_t>(16, rows - from));
        V a[16], b[16], lanes[16];
        bool finite[16];
        for (int r = 0; r < 16; ++r) {
            const float *values = gate_up + (r < some ? r : 0) * 64;
            a[r] = gated(values, activation);
            b[r] = gated(values + 16, activation);
            lanes[r] = max(abs(a[r]), abs(b[r]));
            finite[r] = !any_nan(fma(a[r], zero(), b[r] * zero()));
        }
        float scales[16], codes[16];
        store(scales, highest_of_each(lanes));
        for (float &scale : scales) scale = scale_of(scale);
        for (int r = 0; r < some; ++r)
            lanes[r] = put_codes(a[r], b[r], scales[r], out.codes + (row0 + from + r) * out.depth + group * GROUP);
        store(codes, sum_of_each(lanes));
        for (int r = 0; r < some; ++r)
            put_scale(out, (row0 + from + r) * (out.depth / GROUP) + group, scales[r], codes[r], finite[r]);
    }
}

inline void add(float *x, const float *y, const float *bias, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const V value = bias ? load(y + i) + load(bias + i) : load(y + i);
        store(x + i, load(x + i) + value);
    }
    for (; i < count; ++i) x[i] += bias ? y[i] + bias[i] : y[i];
}

inline void to_bf16(const float *x, uint16_t *out, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) store_bf16(out + i, load(x + i));
    if (i == count) return;
    uint16_t rest[16];
    store_bf16(rest, load_some(x + i, count - i));
    std::memcpy(out + i, rest, static_cast<size_t>(count - i) * 2);
}

// Halves are the pairs (GPT-NeoX order).
inline void rotate(float *head, const float *norm, float eps, const float *cos, const float *sin, int64_t head_dim, uint16_t *out) {
    if (norm) {
        float total = 0;
        V squares = zero();
        int64_t i = 0;
        for (; i + 16 <= head_dim; i += 16) squares = fma(load(head + i), load(head + i), squares);
        for (; i < head_dim; ++i) total += head[i] * head[i];
        const float scale = 1.0f / std::sqrt((total + sum(squares)) / static_cast<float>(head_dim) + eps);
        for (i = 0; i < head_dim; ++i) head[i] = head[i] * scale * norm[i];
    }
    const int64_t half = head_dim / 2;
    const bool direct = out && half % 16 == 0;
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
        const V a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        const V first = a * c - b * s, second = fma(a, s, b * c);
        if (direct) {
            store_bf16(out + i, first);
            store_bf16(out + half + i, second);
        } else {
            store(head + i, first);
            store(head + half + i, second);
        }
    }
    for (; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = a * sin[i] + b * cos[i];
    }
    if (out && !direct) to_bf16(head, out, head_dim);
}

inline bool highest_of(const float *x, int64_t count, float *best) {
    V most[2] = {set1(-INFINITY), set1(-INFINITY)}, check[2] = {zero(), zero()};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int half = 0; half < 2; ++half) {
            const V value = load(x + i + half * 16);
            most[half] = max(most[half], value);
            check[half] = fma(value, zero(), check[half]);  // NaN once a value is not finite
        }
    float top = highest(max(most[0], most[1])), finite = sum(check[0] + check[1]);
    for (; i < count; ++i) {
        if (x[i] > top) top = x[i];
        finite += x[i] * 0.0f;
    }
    *best = top;
    return finite == 0.0f;
}

inline int64_t first_of(const float *x, int64_t count, float value) {
    int64_t i = 0;
    while (i + 16 <= count && !reaches(load(x + i), value)) i += 16;
    while (i < count && x[i] != value) ++i;
    return i < count ? i : 0;
}

}  // namespace ISA
