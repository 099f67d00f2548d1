// harvest: what the sampler needs of a piece of a row's logits, taken while they lie in the first cache.
#pragma once
#include <cstring>

#include "kernels.h"

namespace ISA {

using octavo::HARVEST_COLUMNS;
using octavo::HARVEST_KEPT;

inline int32_t harvest(const float *x, int64_t count, float best, float scale, float least, int32_t first, float *logits, float *total_out,
                       int32_t *ids, float *values) {
    const V shift = set1(best), factor = set1(scale), low = set1(-87.0f);
    V sums = zero();
    int32_t kept = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const V value = load(x + i);
        store(logits + i, value);  // past the caches (streaming stores) measured 1% of a step slower
        sums = sums + exp(max((value - shift) * factor, low));
        if (kept <= HARVEST_KEPT) kept += put_at_least(value, least, first + static_cast<int32_t>(i), values + kept, ids + kept);
    }
    float total = ISA::sum(sums);
    for (; i < count; ++i) {
        logits[i] = x[i];
        total += std::exp((x[i] - best) * scale);
        if (kept <= HARVEST_KEPT && x[i] >= least) {
            values[kept] = x[i];
            ids[kept++] = first + static_cast<int32_t>(i);
        }
    }
    *total_out = total;
    return kept;
}

}  // namespace ISA
