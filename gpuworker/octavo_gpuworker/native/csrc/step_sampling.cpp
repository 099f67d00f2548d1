// The end of a Step: the head, and the token of each row that samples.
#include <algorithm>
#include <cmath>

#include "sampler.h"
#include "step.h"

namespace octavo {

// Decides of each row what the head leaves of it.
void Step::plan_sampling() {
    const int rows = batch_.rows;
    if (missed_.exchange(false, std::memory_order_relaxed)) logits_for_ = LOGITS_AFTER_A_MISS;
    const bool spared = logits_for_ == 0;
    if (logits_for_ > 0) --logits_for_;
    plain_.assign(rows, false);
    harvested_.assign(rows, false);
    written_.assign(rows, true);
    any_harvested_ = false;
    bool any_written = false;
    for (int row = 0; row < rows && !batch_.out_logits; ++row) {
        plain_[row] = plain_greedy(batch_, row);
        harvested_[row] = draws_from_few(batch_, row, config_.vocab);
        written_[row] = !plain_[row] && !(harvested_[row] && spared && batch_.logprobs[row] < 0);
        any_harvested_ = any_harvested_ || harvested_[row];
        any_written = any_written || written_[row];
    }
    if (any_written) logits_.ensure(static_cast<int64_t>(rows) * config_.vocab);
    const auto room = std::max<int64_t>(KEPT_OF_PART, KEPT_OF_ROW / static_cast<int64_t>(threads_.size()));
    for (auto &thread : threads_) {
        thread.found.assign(rows, Harvest{});
        if (!any_harvested_) continue;
        float *values = thread.kept_values.ensure(rows * (room + 16));
        int32_t *ids = thread.kept_ids.ensure(rows * (room + 16));
        for (int row = 0; row < rows; ++row) {
            Harvest &found = thread.found[row];
            found.room = static_cast<int32_t>(room);
            found.values = values + row * (room + 16);
            found.ids = ids + row * (room + 16);
        }
    }
    if (!any_harvested_) return;
    if (static_cast<int>(seen_.size()) < rows) seen_ = std::vector<std::atomic<float>>(rows);
    for (int row = 0; row < rows; ++row) seen_[row].store(-INFINITY, std::memory_order_relaxed);
}

Step::HeadTile Step::head_tile(int unit) const {
    const int64_t panels = weights_.head.columns / PANEL, items = (panels + HEAD_PANELS - 1) / HEAD_PANELS;
    const Tile tile = tile_of(unit, batch_.rows, items);
    const int64_t panel = tile.item * HEAD_PANELS, count = std::min(HEAD_PANELS, panels - panel), column = panel * PANEL;
    return {tile.row, tile.rows, panel, count, column, std::min<int64_t>(count * PANEL, config_.vocab - column)};
}

// The logits of a unit in the thread's own memory, one row behind the other.
const float *Step::head_product(int phase, const HeadTile &tile, Thread &thread) {
    const float *x = residual(config_.layers - 1);
    const Activations &rows = normed(phase, x, weights_.norm, batch_.rows, config_.head_format, thread);
    float *out = thread.tile.get();
    kernels_.product(config_.head_format, rows, tile.row, tile.rows, weights_.head, tile.panel, tile.panels, out, tile.panels * PANEL);
    return out;
}

void Step::head(int phase, int unit, Thread &thread) {
    static_assert(HEAD_PANELS * PANEL == HARVEST_COLUMNS);
    const HeadTile tile = head_tile(unit);
    const float *values = head_product(phase, tile, thread);
    for (int64_t row = tile.row; row < tile.row + tile.rows; ++row, values += tile.panels * PANEL) {
        Harvest &found = thread.found[row];
        float best;
        if (!kernels_.highest(values, tile.columns, &best)) found.finite = false;
        if (best >= found.best) {
            const auto at = static_cast<int32_t>(tile.column + kernels_.first_of(values, tile.columns, best));
            if (best > found.best || at < found.at) found.at = at;
            found.best = best;
        }
        float *logits = nullptr;
        if (written_[row]) logits = (batch_.out_logits ? batch_.out_logits : logits_.get()) + row * config_.vocab + tile.column;
        if (harvested_[row])
            harvest(row, tile, values, best, logits, found);
        else if (logits)
            std::copy_n(values, tile.columns, logits);
    }
}

// What the sampler would look for in one unit's logits of a row. What that is hangs on which unit comes first, but it is never less
// than what the sampler then takes.
void Step::harvest(int64_t row, const HeadTile &tile, const float *values, float best, float *logits, Harvest &found) {
    const float temperature = batch_.temperature[row], seen = seen_[row].load(std::memory_order_relaxed);
    if (best > seen) seen_[row].store(best, std::memory_order_relaxed);  // another thread's may be lost: then more is kept than need be
    const float most = std::max(seen, best);
    const float least = most + (REACH - 0.001f) * temperature - std::fabs(most) * 1e-6f;  // divisions and differences are rounded
    kernels_.harvest(values, tile.columns, static_cast<int32_t>(tile.column), best, least, 1.0f / temperature, logits, found);
}

// Flat rows first, which take fifty times as long as the others: what is left over at the end of the phase is short.
int Step::sampled_row(int unit) const {
    const int rows = batch_.rows;
    if (rows > ORDERED_ROWS || !any_harvested_) return unit;
    int32_t found[ORDERED_ROWS] = {};
    for (const auto &thread : threads_)
        for (int row = 0; row < rows; ++row) found[row] += thread.found[row].kept;
    const auto of = [&found](int row) { return found[row]; };
    for (int row = 0; row < rows; ++row) {
        int before = 0;
        for (int other = 0; other < rows; ++other) before += of(other) > of(row) || (of(other) == of(row) && other < row);
        if (before == unit) return row;
    }
    return unit;
}

// A row's logits where the head has left them, else made once more: as it did it, all rows of the unit, so that the bits are the same.
const float *Step::logits_of(int64_t row, Thread &thread) {
    if (batch_.out_logits) return batch_.out_logits + row * config_.vocab;
    if (written_[row]) return logits_.get() + row * config_.vocab;
    missed_.store(true, std::memory_order_relaxed);
    const int phase = phases() - 2;
    float *logits = thread.logits.ensure(config_.vocab);
    for (int unit = 0; unit < units(phase); ++unit) {
        const HeadTile tile = head_tile(unit);
        if (row < tile.row || row >= tile.row + tile.rows) continue;
        const float *values = head_product(phase, tile, thread);
        std::copy_n(values + (row - tile.row) * tile.panels * PANEL, tile.columns, logits + tile.column);
    }
    return logits;
}

void Step::sample(int row, Thread &thread) {
    bool finite = true;
    float best = -INFINITY;
    int32_t token = 0;
    thread.parts.clear();
    for (const auto &other : threads_) {
        const Harvest &found = other.found[row];
        finite = finite && found.finite;
        if (found.best > best || (found.best == best && found.at < token)) {
            best = found.best;
            token = found.at;
        }
        thread.parts.push_back(&found);
    }
    batch_.out_tokens[row] = finite ? token : -1;
    if (!finite || plain_[row]) return;
    float *work = thread.scratch.ensure(sampling_work(config_.vocab));
    if (!harvested_[row]) return sample_row(batch_, row, logits_of(row, thread), config_.vocab, token, isa_, work);
    struct Found final : HarvestedRow {
        Found(Step &step, int64_t row, Thread &thread, float best)
            : HarvestedRow(best, thread.parts), step(step), row(row), thread(thread) {}
        const float *logits() override { return step.logits_of(row, thread); }
        Step &step;
        int64_t row;
        Thread &thread;
    } harvested(*this, row, thread, best);
    sample_row(batch_, row, harvested, config_.vocab, isa_, work);
}

}  // namespace octavo
