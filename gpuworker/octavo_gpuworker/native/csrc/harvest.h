// harvest: what the sampler needs of a piece of a row's logits, taken while they lie in the first cache.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace ISA {

using octavo::Harvest;

// 2^y within 3e-6 of it: the least largest relative error of a polynomial of degree 4 on [-1/2, 1/2] is 2.6e-6.
inline V power_of_two_nearly(V y) {
    const V n = round(y), r = y - n;
    V p = fma(set1(9.570102e-3f), r, set1(5.591786e-2f));
    for (const float c : {2.4024744e-1f, 6.931218e-1f, 9.999993e-1f}) p = fma(p, r, set1(c));
    return scale_by_power(p, n);
}

// The sum of exp((x - best) * scale), beside which the values are copied to `logits` where that is not null.
template <bool copied>
inline float sum_of_powers(const float *x, int64_t count, float best, float scale, float *logits) {
    const float factor = scale * 1.44269504088896341f;
    const V factors = set1(factor), shift = set1(-best * factor), low = set1(-150.0f);
    V sums[2] = {zero(), zero()};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int half = 0; half < 2; ++half) {
            const V value = load(x + i + half * 16);
            if constexpr (copied) store(logits + i + half * 16, value);  // past the caches (streaming stores) measured 1% of a step slower
            sums[half] = sums[half] + power_of_two_nearly(max(fma(value, factors, shift), low));
        }
    float sum = ISA::sum(sums[0] + sums[1]);
    for (; i < count; ++i) {
        if constexpr (copied) logits[i] = x[i];
        sum += std::exp((x[i] - best) * scale);
    }
    return sum;
}

inline void harvest(const float *x, int64_t count, int32_t unit, float best, float least, float scale, float *logits, bool copied, Harvest &row) {
    if (best > row.shift) {
        if (row.sum > 0) row.sum *= std::exp((static_cast<double>(row.shift) - static_cast<double>(best)) * static_cast<double>(scale));
        row.shift = best;
        row.farthest = std::max(row.farthest, std::fabs(best));
    }
    const float sum = copied ? sum_of_powers<true>(x, count, row.shift, scale, logits) : sum_of_powers<false>(x, count, row.shift, scale, nullptr);
    row.sum += static_cast<double>(sum);
    if (!(best >= least)) return;  // most units of most rows have none
    int32_t kept = 0;
    if (row.kept + count <= row.room) {
        float *const values = row.values + row.kept;
        int32_t *const ids = row.ids + row.kept, first = unit * static_cast<int32_t>(octavo::HARVEST_COLUMNS);
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) kept += put_at_least(load(x + i), least, first + static_cast<int32_t>(i), values + kept, ids + kept);
        for (; i < count; ++i)
            if (x[i] >= least) {
                values[kept] = x[i];
                ids[kept++] = first + static_cast<int32_t>(i);
            }
        if (kept < octavo::HARVEST_DENSE) {
            row.kept += kept;
            return;
        }
    }
    row.units[row.whole++] = unit;
    if (!copied) std::copy_n(x, count, logits);
}

}  // namespace ISA
