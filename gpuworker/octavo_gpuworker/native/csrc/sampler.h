// Sampling of one row, bit for bit what ../../sampler.py does: the same recipe of exp and log, exact integer masses.
#pragma once
#include <cstdint>

#include "api.h"

namespace octavo {

constexpr float REACH = -9.0f;  // how far below its best one, over the temperature, the candidates of a row are looked for at first

// What the head left of a row, unit by unit of HARVEST_COLUMNS logits: of each the largest, the sum of exp((x - largest) /
// temperature), how many candidates it found, and these, [units, HARVEST_ROOM].
struct Harvest {
    int64_t units;
    const float *best, *sums;
    const int32_t *kept, *ids;
    const float *values;
};

// logits [vocab] raw, `largest` the first largest of them where they are known to be finite, else -1; `isa`
// changes the speed and no bit, and neither does `harvest`, which may be null. Writes the results of `row`.
void sample_row(const OctavoBatch &, int row, const float *logits, int32_t vocab, int32_t largest, int isa, float *work,
                const Harvest *harvest = nullptr);
// Whether the row draws from a nucleus of logits as the head made them, so that a harvest is of use.
bool draws_from_nucleus(const OctavoBatch &, int row, int32_t vocab);
// Floats of `work`.
constexpr int64_t sampling_work(int64_t vocab) { return 4 * (vocab + 16); }
// Whether the row is its largest logit and nothing else.
bool plain_greedy(const OctavoBatch &, int row);

}  // namespace octavo
