// The phases of a layer around attention.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "pack.h"
#include "step.h"

namespace octavo {

void Step::embed(int unit) {
    const int64_t last = std::min<int64_t>(batch_.tokens, (unit + 1) * NORM_ROWS);
    for (int64_t row = unit * NORM_ROWS; row < last; ++row) embed_row(row);
}

void Step::embed_row(int64_t row) {
    float *x = x_.get() + row * config_.d_model;
    const int32_t token = batch_.token_ids[row];
    if (weights_.embedding) {
        const uint16_t *from = weights_.embedding + static_cast<int64_t>(token) * config_.d_model;
        for (int64_t i = 0; i < config_.d_model; ++i) x[i] = bf16_to_float(from[i]);
    } else {
        std::vector<float> padded(weights_.head.depth);
        unpack_column(config_.head_format, weights_.head.data, token, weights_.head.depth,
                      padded.data());
        std::copy_n(padded.data(), config_.d_model, x);
    }
    if (config_.embedding_scale != 1.0f)
        for (int64_t i = 0; i < config_.d_model; ++i) x[i] *= config_.embedding_scale;
    const int s = sequence_of_[row], half = config_.head_dim / 2;
    const int64_t new_tokens = batch_.query_start[s + 1] - batch_.query_start[s];
    const int64_t position = batch_.context_len[s] - new_tokens + (row - batch_.query_start[s]);
    for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) * weights_.inverse_frequencies[i];
        cos_.get()[row * half + i] = std::cos(angle);
        sin_.get()[row * half + i] = std::sin(angle);
    }
}

void Step::norm(int unit, const float *x, const float *weight, int64_t rows, int format) {
    const int64_t last = std::min<int64_t>(rows, (unit + 1) * NORM_ROWS);
    for (int64_t row = unit * NORM_ROWS; row < last; ++row)
        kernels_.norm_row(x + row * config_.d_model, weight, config_.d_model, config_.norm_eps, format, normed_.view, row);
}

// The normed rows of `x`: of an earlier phase, or for few rows this thread's own. Both have the same bits.
const Activations &Step::normed(int phase, const float *x, const float *weight, int64_t rows, int format, Thread &thread) {
    if (rows > OWN_NORM) return normed_.view;
    if (thread.normed_phase != phase) {
        for (int64_t row = 0; row < rows; ++row)
            kernels_.norm_row(x + row * config_.d_model, weight, config_.d_model, config_.norm_eps, format,
                              thread.normed.view, row);
        thread.normed_phase = phase;
    }
    return thread.normed.view;
}

void Step::qkv(int phase, int layer, int unit, Thread &thread) {
    const OctavoLayer &w = layers_[layer];
    const Tile tile = tile_of(unit, batch_.tokens, config_.q_heads + 2 * config_.kv_heads);
    const Activations &x = normed(phase, x_.get(), w.attn_norm, batch_.tokens, config_.format, thread);
    float *out = thread.tile.get();
    kernels_.product(config_.format, x, tile.row, tile.rows, w.qkv, tile.item * wide_ / PANEL, wide_ / PANEL, out, wide_);
    for (int64_t r = 0; r < tile.rows; ++r) {
        float *values = out + r * wide_;
        if (w.qkv.bias)
            for (int64_t i = 0; i < config_.head_dim; ++i) values[i] += w.qkv.bias[tile.item * wide_ + i];
        write_head(layer, tile.item, tile.row + r, values);
    }
}

// One head of one token: a query is kept for attention, a key or value goes to its block.
void Step::write_head(int layer, int64_t head, int64_t row, float *values) {
    const OctavoLayer &w = layers_[layer];
    const int64_t half = config_.head_dim / 2;
    const float *cos = cos_.get() + row * half, *sin = sin_.get() + row * half;
    if (head < config_.q_heads) {
        uint16_t *q = q_.get() + (row * config_.q_heads + head) * wide_;
        kernels_.rotate(values, w.q_norm, config_.norm_eps, cos, sin, config_.head_dim, q);
        std::fill(q + config_.head_dim, q + wide_, static_cast<uint16_t>(0));
        return;
    }
    const bool key = head < config_.q_heads + config_.kv_heads;
    const int64_t kv_head = head - config_.q_heads - (key ? 0 : config_.kv_heads);
    const KvPlace &place = kv_places_[row];
    const int64_t slot = ((key ? 0 : 1) * config_.kv_heads + kv_head) * config_.block_tokens + place.slot;
    if (key && config_.kv_dtype == OCTAVO_KV_BF16) {
        auto *to = reinterpret_cast<uint16_t *>(place.block + layer * kv_layer_bytes_) + slot * config_.head_dim;
        return kernels_.rotate(values, w.k_norm, config_.norm_eps, cos, sin, config_.head_dim, to);
    }
    if (key) kernels_.rotate(values, w.k_norm, config_.norm_eps, cos, sin, config_.head_dim, nullptr);
    write_kv(layer, place.block, slot, values);
}

// A key or value of one head and token to row `slot` of its layer in a block.
void Step::write_kv(int layer, uint8_t *base, int64_t slot, const float *values) {
    uint8_t *to = base + layer * kv_layer_bytes_;
    const int64_t width = config_.head_dim;
    if (config_.kv_dtype == OCTAVO_KV_BF16) {
        kernels_.to_bf16(values, reinterpret_cast<uint16_t *>(to) + slot * width, width);
    } else if (config_.kv_dtype == OCTAVO_KV_F32) {
        std::memcpy(to + slot * width * 4, values, static_cast<size_t>(width) * 4);
    } else {
        float largest = 0;
        for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::fabs(values[i]));
        const float scale = largest > 0 ? largest / 127.0f : 1.0f;
        auto *codes = reinterpret_cast<int8_t *>(to) + slot * width;
        for (int64_t i = 0; i < width; ++i) {
            const float code = std::floor(values[i] / scale + 0.5f);
            codes[i] = code > -128.0f && code < 128.0f ? static_cast<int8_t>(code) : 0;
        }
        const int64_t scales = kv_values_bytes_ + 2LL * layer * config_.kv_heads * config_.block_tokens * 4;
        std::memcpy(base + scales + slot * 4, &scale, 4);
    }
}

// The rows that sample, out of all: the last layer goes on with them alone.
void Step::gather(int unit) {
    const int64_t from = batch_.sample_rows[unit], depth = attended_.view.depth, groups = depth / GROUP;
    std::copy_n(x_.get() + from * config_.d_model, config_.d_model, sampled_x_.get() + unit * config_.d_model);
    const Activations &source = attended_.view;
    Activations &to = sampled_attended_.view;
    if (config_.format == OCTAVO_BF16) {
        std::copy_n(source.bf16 + from * depth, depth, to.bf16 + unit * depth);
        return;
    }
    std::copy_n(source.codes + from * depth, depth, to.codes + unit * depth);
    std::copy_n(source.scales + from * groups, groups, to.scales + unit * groups);
    std::copy_n(source.sums + from * groups, groups, to.sums + unit * groups);
    std::copy_n(source.comp + from * groups, groups, to.comp + unit * groups);
}

void Step::o(int layer, int unit, Thread &thread) {
    const OctavoMatrix &w = layers_[layer].o;
    const Tile tile = tile_of(unit, rows_of(layer), w.columns / PANEL);
    const Activations &x = narrowed(layer) ? sampled_attended_.view : attended_.view;
    add_product(x, w, tile, residual(layer), thread);
}

void Step::down(int layer, int unit, Thread &thread) {
    const OctavoMatrix &w = layers_[layer].down;
    add_product(gated_.view, w, tile_of(unit, rows_of(layer), w.columns / PANEL), residual(layer), thread);
}

void Step::add_product(const Activations &x, const OctavoMatrix &w, const Tile &tile, float *residual, Thread &thread) {
    float *out = thread.tile.get();
    kernels_.product(config_.format, x, tile.row, tile.rows, w, tile.item, 1, out, PANEL);
    const int64_t column = tile.item * PANEL, count = std::min<int64_t>(PANEL, config_.d_model - column);
    for (int64_t r = 0; r < tile.rows; ++r) {
        float *at = residual + (tile.row + r) * config_.d_model + column;
        for (int64_t line = 0; line < PANEL; line += 16) __builtin_prefetch(at + ROWS_AHEAD * config_.d_model + line, 1, 3);
        kernels_.add(at, out + r * PANEL, w.bias ? w.bias + column : nullptr, count);
    }
}

void Step::gate_up(int phase, int layer, int unit, Thread &thread) {
    const OctavoLayer &w = layers_[layer];
    const Tile tile = tile_of(unit, rows_of(layer), w.gate_up.columns / (2 * PANEL));
    const Activations &x = normed(phase, residual(layer), w.mlp_norm, rows_of(layer), config_.format, thread);
    float *out = thread.tile.get();
    kernels_.product(config_.format, x, tile.row, tile.rows, w.gate_up, tile.item * 2, 2, out, 2 * PANEL);
    kernels_.put_gated(out, tile.rows, config_.activation, config_.format, gated_.view, tile.row, tile.item);
}

}  // namespace octavo
