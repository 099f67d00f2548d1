// Sampling of one row, bit for bit what ../../sampler.py does: the same recipe of exp and log, exact integer masses.
#pragma once
#include <cstdint>

#include "api.h"

namespace octavo {

// logits [vocab] raw, `largest` the first largest of them where they are known to be finite, else -1; `isa`
// changes the speed and no bit. Writes the results of `row`.
void sample_row(const OctavoBatch &, int row, const float *logits, int32_t vocab, int32_t largest, int isa, float *work);
// Floats of `work`.
constexpr int64_t sampling_work(int64_t vocab) { return 4 * (vocab + 16); }
// Whether the row is its largest logit and nothing else.
bool plain_greedy(const OctavoBatch &, int row);

}  // namespace octavo
