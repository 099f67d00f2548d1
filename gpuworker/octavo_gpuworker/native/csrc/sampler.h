// Sampling of one row, bit for bit what ../../sampler.py does: the same recipe of exp and log, exact integer masses.
#pragma once
#include <cstdint>
#include <vector>

#include "api.h"
#include "kernels.h"

namespace octavo {

constexpr float REACH = -9.0f;  // how far below its best one, over the temperature, the candidates of a row are looked for at first

// What the head left of a row: its largest logit, what each thread found, and, at a price, all logits.
struct HarvestedRow {
    HarvestedRow(float best, const std::vector<const Harvest *> &parts) : best(best), parts(parts) {}
    virtual const float *logits() = 0;  // [vocab], the same ones each time
    const float best;
    const std::vector<const Harvest *> &parts;

  protected:
    ~HarvestedRow() = default;
};

// logits [vocab] raw, `largest` the first largest of them where they are known to be finite, else -1; `isa`
// changes the speed and no bit. Writes the results of `row`.
void sample_row(const OctavoBatch &, int row, const float *logits, int32_t vocab, int32_t largest, int isa, float *work);
// The same from what the head left of a row that draws from few, which is finite.
void sample_row(const OctavoBatch &, int row, HarvestedRow &, int32_t vocab, int isa, float *work);
// Whether the row draws from the best few of its logits as the head made them, so that a harvest is of use.
bool draws_from_few(const OctavoBatch &, int row, int32_t vocab);
// Floats of `work`.
constexpr int64_t sampling_work(int64_t vocab) { return 4 * (vocab + 16); }
// Whether the row is its largest logit and nothing else.
bool plain_greedy(const OctavoBatch &, int row);

}  // namespace octavo
