#include "step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "cpu.h"
#include "pack.h"

namespace octavo {
namespace {

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

void ActivationBuffer::ensure(int format, int64_t rows, int64_t depth) {
    view.depth = depth;
    if (format == OCTAVO_BF16) {
        view.bf16 = bf16_.ensure(rows * depth);
        return;
    }
    view.codes = codes_.ensure(rows * depth);
    view.scales = scales_.ensure(rows * depth / GROUP);
    view.sums = sums_.ensure(rows * depth / GROUP);
    view.comp = comp_.ensure(rows * depth / GROUP);
}

Step::Step(const OctavoConfig &config, const OctavoWeights &weights, uint8_t *pool, int64_t block_bytes)
    : config_(config),
      layers_(weights.layers, weights.layers + config.layers),
      weights_(weights),
      pool_(pool),
      block_bytes_(block_bytes),
      isa_(choose_isa(config.isa)),
      kernels_(kernels_of(isa_)),
      wide_(round_up(config.head_dim, PANEL)) {
    const int64_t item = config.kv_dtype == OCTAVO_KV_F32 ? 4 : config.kv_dtype == OCTAVO_KV_BF16 ? 2 : 1;
    kv_layer_bytes_ = 2LL * config.kv_heads * config.block_tokens * config.head_dim * item;
    kv_values_bytes_ = kv_layer_bytes_ * config.layers;
}

void Step::prepare(const OctavoBatch &batch, int threads) {
    batch_ = batch;
    if (static_cast<int>(threads_.size()) < threads) threads_.resize(threads);
    const int64_t tokens = batch.tokens, attended = static_cast<int64_t>(config_.q_heads) * config_.head_dim;
    const int64_t width = round_up(config_.d_model, GROUP);
    x_.ensure(tokens * config_.d_model);
    cos_.ensure(tokens * (config_.head_dim / 2));
    sin_.ensure(tokens * (config_.head_dim / 2));
    q_.ensure(tokens * config_.q_heads * wide_);
    normed_.ensure(config_.format, tokens, width);
    normed_.ensure(config_.head_format, std::max<int64_t>(tokens, batch.rows), width);
    attended_.ensure(config_.format, tokens, round_up(attended, GROUP));
    if (config_.format == OCTAVO_BF16 && attended_.view.depth > attended)
        for (int64_t row = 0; row < tokens; ++row)
            std::fill(attended_.view.bf16 + row * attended_.view.depth + attended,
                      attended_.view.bf16 + (row + 1) * attended_.view.depth, static_cast<uint16_t>(0));
    gated_.ensure(config_.format, std::max<int64_t>(tokens, batch.rows), round_up(config_.ffn, GROUP));
    sequence_of_.resize(tokens);
    for (int s = 0; s < batch.sequences; ++s)
        std::fill(sequence_of_.begin() + batch.query_start[s], sequence_of_.begin() + batch.query_start[s + 1], s);
    place_tokens();
    compact_ = batch.rows != batch.tokens;
    for (int row = 0; row < batch.rows && !compact_; ++row) compact_ = batch.sample_rows[row] != row;
    if (compact_) {
        sampled_x_.ensure(static_cast<int64_t>(batch.rows) * config_.d_model);
        sampled_attended_.ensure(config_.format, batch.rows, round_up(attended, GROUP));
    }
    plan_sampling();
    for (auto &thread : threads_) {
        thread.normed_phase = -1;
        thread.tile.ensure(std::min(std::max<int64_t>(tokens, batch.rows), ROW_BLOCK) *
                           std::max<int64_t>(HEAD_PANELS * PANEL, wide_));
        thread.normed.ensure(config_.format, OWN_NORM, width);
        thread.normed.ensure(config_.head_format, OWN_NORM, width);
    }
    plan_attention();
    plan_phases();
}

void Step::place_tokens() {
    kv_places_.resize(batch_.tokens);
    for (int row = 0; row < batch_.tokens; ++row) {
        const int s = sequence_of_[row];
        const int64_t position = batch_.context_len[s] - (batch_.query_start[s + 1] - row);
        const int64_t block = batch_.block_tables[static_cast<int64_t>(s) * batch_.table_stride + position / config_.block_tokens];
        kv_places_[row] = {pool_ + block * block_bytes_, position % config_.block_tokens};
    }
}

int Step::row_blocks(int64_t rows) const { return static_cast<int>((rows + ROW_BLOCK - 1) / ROW_BLOCK); }

void Step::plan_phases() {
    phases_.clear();
    const int tokens = batch_.tokens, samples = batch_.rows;
    const auto add = [this](PhaseKind kind, int layer, int64_t units) {
        if (units > MAX_UNITS)
            throw std::length_error("the step has " + std::to_string(units) + " units in one phase, at most " +
                                    std::to_string(MAX_UNITS) + " can be counted; give it fewer tokens or sequences");
        phases_.push_back({kind, layer, static_cast<int>(units)});
    };
    const auto norm = [&](PhaseKind kind, int layer, int64_t rows) {
        if (rows > OWN_NORM) add(kind, layer, (rows + NORM_ROWS - 1) / NORM_ROWS);
    };
    add(PhaseKind::embed, 0, (tokens + NORM_ROWS - 1) / NORM_ROWS);
    int64_t rows = tokens;
    for (int layer = 0; layer < config_.layers; ++layer) {
        const bool last = layer == config_.layers - 1;
        const OctavoLayer &w = layers_[layer];
        norm(PhaseKind::attn_norm, layer, rows);
        add(PhaseKind::qkv, layer, static_cast<int64_t>(row_blocks(rows)) * (config_.q_heads + 2 * config_.kv_heads));
        if (last && !samples) return;  // a chunk that samples nothing needs no more than its KV
        add(PhaseKind::attend, layer, static_cast<int64_t>(attends_.size()));
        if (last && compact_) {
            add(PhaseKind::gather, layer, samples);
            rows = samples;
        }
        add(PhaseKind::o, layer, row_blocks(rows) * (w.o.columns / PANEL));
        norm(PhaseKind::mlp_norm, layer, rows);
        add(PhaseKind::gate_up, layer, row_blocks(rows) * (w.gate_up.columns / (2 * PANEL)));
        add(PhaseKind::down, layer, row_blocks(rows) * (w.down.columns / PANEL));
    }
    norm(PhaseKind::final_norm, 0, rows);
    add(PhaseKind::head, 0, row_blocks(rows) * ((weights_.head.columns / PANEL + HEAD_PANELS - 1) / HEAD_PANELS));
    add(PhaseKind::sample, 0, samples);
}

Step::Weights Step::weights_of(int phase) const {
    const PhaseOf &at = phases_[phase];
    switch (at.kind) {
        case PhaseKind::qkv: return {&layers_[at.layer].qkv, wide_ / PANEL, config_.format};
        case PhaseKind::o: return {&layers_[at.layer].o, 1, config_.format};
        case PhaseKind::gate_up: return {&layers_[at.layer].gate_up, 2, config_.format};
        case PhaseKind::down: return {&layers_[at.layer].down, 1, config_.format};
        case PhaseKind::head: return {&weights_.head, HEAD_PANELS, config_.head_format};
        default: return {nullptr, 0, 0};
    }
}

// The beginning of the thread's share of the weights that come next, unless attention comes before them.
Ahead Step::ahead(int phase, int thread) const {
    for (int next = phase + 1; next < phases(); ++next) {
        if (phases_[next].kind == PhaseKind::attend) return {};
        const Weights weights = weights_of(next);
        if (!weights.matrix) continue;
        const int64_t panels = weights.matrix->columns / PANEL, items = (panels + weights.panels - 1) / weights.panels;
        const int64_t unit = share_start(phases_[next].units, thread, static_cast<int>(threads_.size())) % items;
        const int64_t panel = panel_bytes(weights.format, weights.matrix->depth), from = unit * weights.panels * panel;
        return {weights.matrix->data + from, std::min(AHEAD_BYTES, panels * panel - from)};
    }
    return {};
}

// Items of one row block come one after the other, so that its activations stay in the second cache.
Step::Tile Step::tile_of(int unit, int64_t rows, int64_t items) const {
    const int64_t blocks = row_blocks(rows), block = unit / items;
    const int64_t from = rows * block / blocks, to = rows * (block + 1) / blocks;
    return {from, to - from, unit % items};
}

void Step::work(int phase, int unit, int thread_index) {
    const PhaseOf &at = phases_[phase];
    Thread &thread = threads_[thread_index];
    const int64_t samples = batch_.rows;
    const float *final_x = residual(config_.layers - 1);
    switch (at.kind) {
        case PhaseKind::embed: return embed(unit);
        case PhaseKind::attn_norm: return norm(unit, x_.get(), layers_[at.layer].attn_norm, batch_.tokens, config_.format);
        case PhaseKind::qkv: return qkv(phase, at.layer, unit, thread);
        case PhaseKind::attend: return attend(at.layer, unit, thread);
        case PhaseKind::gather: return gather(unit);
        case PhaseKind::o: return o(at.layer, unit, thread);
        case PhaseKind::mlp_norm: 
            return norm(unit, residual(at.layer), layers_[at.layer].mlp_norm, rows_of(at.layer), config_.format);
        case PhaseKind::gate_up: return gate_up(phase, at.layer, unit, thread);
        case PhaseKind::down: return down(at.layer, unit, thread);
        case PhaseKind::final_norm: return norm(unit, final_x, weights_.norm, samples, config_.head_format);
        case PhaseKind::head: return head(phase, unit, thread);
        case PhaseKind::sample: return sample(sampled_row(unit), thread);
    }
}

}  // namespace octavo
