// Sampling of one row, bit for bit what ../../sampler.py does: the same recipe of exp and log, exact integer masses.
#pragma once
#include <cstdint>

#include "api.h"

namespace octavo {

// logits [vocab] raw; `work` [3 * vocab + 64] floats. Writes the results of `row`.
void sample_row(const OctavoBatch &, int row, const float *logits, int32_t vocab, float *work);
// Whether the row is its largest logit and nothing else.
bool plain_greedy(const OctavoBatch &, int row);

}  // namespace octavo
