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
    reaches_.resize(rows);
    any_harvested_ = false;
    bool all_plain = true;
    for (int row = 0; row < rows && !batch_.out_logits; ++row) {
        plain_[row] = plain_greedy(batch_, row);
        harvested_[row] = draws_from_few(batch_, row, config_.vocab);
        reaches_[row] = std::max(REACH, reach_of(batch_.min_p[row]));
        // a peaked row has fewer than k candidates
        const bool enough = harvested_[row] && spared && batch_.top_k[row] <= 0 && batch_.logprobs[row] < 0;
        written_[row] = !plain_[row] && !enough;
        any_harvested_ = any_harvested_ || harvested_[row];
        all_plain = all_plain && plain_[row];
    }
    if (!all_plain) logits_.ensure(static_cast<int64_t>(rows) * config_.vocab);
    for (auto &thread : threads_) {
        thread.found.assign(rows, Harvest{});
        if (any_harvested_) make_room(thread);
    }
    if (!any_harvested_) return;
    if (static_cast<int>(seen_.size()) < rows) seen_ = std::vector<std::atomic<float>>(rows);
    for (int row = 0; row < rows; ++row) seen_[row].store(-INFINITY, std::memory_order_relaxed);
}

void Step::make_room(Thread &thread) const {
    const int rows = batch_.rows;
    const auto room = std::max<int64_t>(KEPT_OF_PART, KEPT_OF_ROW / static_cast<int64_t>(threads_.size())), padded = room + 48;
    const int64_t items = (config_.vocab + HARVEST_COLUMNS - 1) / HARVEST_COLUMNS;
    float *values = thread.kept_values.ensure(rows * padded);
    int32_t *ids = thread.kept_ids.ensure(rows * padded), *units = thread.whole_units.ensure(rows * items);
    for (int row = 0; row < rows; ++row) {
        Harvest &found = thread.found[row];
        found.room = static_cast<int32_t>(room);
        found.values = values + row * padded;
        found.ids = ids + row * padded;
        found.units = units + row * items;
    }
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
        if (harvested_[row])
            harvest(row, tile, values, best, found);
        else if (written_[row])
            std::copy_n(values, tile.columns, left_of(row) + tile.column);
    }
}

// What the sampler would look for in one unit's logits of a row. What that is hangs on which unit comes first, but it is never less
// than what the sampler then takes.
void Step::harvest(int64_t row, const HeadTile &tile, const float *values, float best, Harvest &found) {
    const float temperature = batch_.temperature[row], seen = seen_[row].load(std::memory_order_relaxed);
    if (best > seen) seen_[row].store(best, std::memory_order_relaxed);  // another thread's may be lost: then more is kept than need be
    const float most = std::max(seen, best);
    const float least = most + (reaches_[row] - 0.001f) * temperature - std::fabs(most) * 1e-6f;  // divisions and differences are rounded
    kernels_.harvest(values, tile.columns, static_cast<int32_t>(tile.column / HARVEST_COLUMNS), best, least, 1.0f / temperature,
                     left_of(row) + tile.column, written_[row], found);
}

// Flat rows first, which take fifty times as long as the others: what is left over at the end of the phase is short.
int Step::sampled_row(int unit) const {
    const int rows = batch_.rows;
    if (rows > ORDERED_ROWS || !any_harvested_) return unit;
    int32_t found[ORDERED_ROWS] = {};
    for (const auto &thread : threads_)
        for (int row = 0; row < rows; ++row)
            found[row] += thread.found[row].kept + thread.found[row].whole * static_cast<int32_t>(HARVEST_COLUMNS);
    const auto of = [&found](int row) { return found[row]; };
    for (int row = 0; row < rows; ++row) {
        int before = 0;
        for (int other = 0; other < rows; ++other) before += of(other) > of(row) || (of(other) == of(row) && other < row);
        if (before == unit) return row;
    }
    return unit;
}

// A row's logits in one unit of the head, made once more: as the head did it, for all rows of the unit, so that the bits are the same.
const float *Step::head_unit(int64_t row, int64_t item, Thread &thread) {
    const int phase = phases() - 2, items = units(phase) / row_blocks(batch_.rows);
    HeadTile tile = head_tile(static_cast<int>(item));
    for (int64_t block = 1; row >= tile.row + tile.rows; ++block) tile = head_tile(static_cast<int>(block * items + item));
    return head_product(phase, tile, thread) + (row - tile.row) * tile.panels * PANEL;
}

// All of a row's logits where the head has not left them.
const float *Step::logits_of(int64_t row, Thread &thread) {
    missed_.store(true, std::memory_order_relaxed);
    float *logits = thread.logits.ensure(config_.vocab);
    for (int64_t column = 0; column < config_.vocab; column += HARVEST_COLUMNS)
        std::copy_n(head_unit(row, column / HARVEST_COLUMNS, thread), std::min(HARVEST_COLUMNS, config_.vocab - column), logits + column);
    return logits;
}

struct Step::FoundRow final : HarvestedRow {
    FoundRow(Step &step, int64_t row, Thread &thread, float best)
        : HarvestedRow(best, thread.parts, step.left_of(row), step.written_[row]), step(step), row(row), thread(thread) {}
    const float *unit(int64_t item) override { return step.head_unit(row, item, thread); }
    const float *logits() override { return step.logits_of(row, thread); }
    Step &step;
    int64_t row;
    Thread &thread;
};

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
    if (!harvested_[row]) return sample_row(batch_, row, left_of(row), config_.vocab, token, isa_, work);
    FoundRow harvested(*this, row, thread, best);
    sample_row(batch_, row, harvested, config_.vocab, isa_, work);
}

}  // namespace octavo
