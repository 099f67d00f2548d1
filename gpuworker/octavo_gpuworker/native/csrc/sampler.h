// Sampling of one row, bit for bit what ../../sampler.py does: the same recipe of exp and log, exact integer masses.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "api.h"
#include "kernels.h"

namespace octavo {

constexpr float REACH = -9.0f;  // how far below its best one, over the temperature, the candidates of a row are looked for at first

// How far the candidates of a row reach at first.
inline float reach_of(double min_p) { return min_p > 0 ? std::log(static_cast<float>(min_p)) - 0.01f : REACH; }

// What the head left of a row: its largest logit, what each thread found, and [vocab] its logits: all of them, or of the units alone
// that a thread left whole. At a price there are the others too.
struct HarvestedRow {
    HarvestedRow(float best, const std::vector<const Harvest *> &parts, const float *left, bool all) : best(best), parts(parts), left(left), all(all) {}
    virtual const float *unit(int64_t item) = 0;  // the logits of a unit, until the next call
    virtual const float *logits() = 0;            // [vocab]
    const float best;
    const std::vector<const Harvest *> &parts;
    const float *const left;
    const bool all;

  protected:
    ~HarvestedRow() = default;
};

// logits [vocab] raw, `largest` the first largest of them where they are known to be finite, else -1; `isa`
// changes the speed and no bit. Writes the results of `row`.
void sample_row(const OctavoBatch &, int row, const float *logits, int32_t vocab, int32_t largest, int isa, float *work);
// The same from what the head left of a row that draws from few, which is finite and whose first largest token is in its result. In both
// that token is the row's where its logit divided by the temperature leaves float32: nothing else is near it.
void sample_row(const OctavoBatch &, int row, HarvestedRow &, int32_t vocab, int isa, float *work);
// Whether the row draws from the best few of its logits as the head made them, so that a harvest is of use.
bool draws_from_few(const OctavoBatch &, int row, int32_t vocab);
// Floats of `work`.
constexpr int64_t sampling_work(int64_t vocab) { return 4 * (vocab + 16); }
// Whether the row is its largest logit and nothing else.
bool plain_greedy(const OctavoBatch &, int row);

}  // namespace octavo
