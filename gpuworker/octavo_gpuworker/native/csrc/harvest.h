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
    V sums[2] = {zero(), zero()};
    int32_t kept = 0;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int half = 0; half < 2; ++half) {
            const V value = load(x + i + half * 16);
            store(logits + i + half * 16, value);  // past the caches (streaming stores) measured 1% of a step slower
            sums[half] = sums[half] + exp(max((value - shift) * factor, low));
        }
    float total = ISA::sum(sums[0] + sums[1]);
    for (; i < count; ++i) {
        logits[i] = x[i];
        total += std::exp((x[i] - best) * scale);
    }
    // most units of most rows have none
    for (i = 0; best >= least && i + 16 <= count && kept <= HARVEST_KEPT; i += 16)
        kept += put_at_least(load(x + i), least, first + static_cast<int32_t>(i), values + kept, ids + kept);
    for (i = count / 16 * 16; i < count && kept <= HARVEST_KEPT; ++i)
        if (x[i] >= least) {
            values[kept] = x[i];
            ids[kept++] = first + static_cast<int32_t>(i);
        }
    *total_out = total;
    return kept;
}

}  // namespace ISA
