// Kernels: what each instruction set brings. One table per translation unit; model.cpp calls nothing else on the hot path.
#pragma once
#include <limits>

#include "api.h"

namespace octavo {

constexpr int PANEL = 32;  // output columns that lie together
constexpr int64_t HARVEST_COLUMNS = 256;
constexpr int32_t HARVEST_DENSE = 96;  // of so many candidates and more all logits are left: fewer bytes, and the row is a flat one
constexpr int GROUP = 32;  // elements of the inner axis with one activation scale (and one int4 weight scale)

// Activations of one matrix product, row-major. bf16 rows, or int8 rows with per-group scales.
struct Activations {
    uint16_t *bf16 = nullptr;      // [rows, depth]
    int8_t *codes = nullptr;       // [rows, depth]
    float *scales = nullptr;       // [rows, depth / GROUP]: x is about code * scale
    float *sums = nullptr;         // [rows, depth / GROUP]: scale * sum of codes
    int32_t *comp = nullptr;       // [rows, depth / GROUP]: -128 * sum of codes
    int64_t depth = 0;             // padded to GROUP with zeros
};

// One attention problem: query rows of a sequence's KV head over its block table.
struct AttentionInput {
    const uint16_t *q;          // bf16 [tokens, q_heads, q_stride] of the whole step
    const uint8_t *pool;
    int64_t block_bytes, layer_offset, scale_offset;  // of K of this layer inside a block; V follows; int8 scales
    const int32_t *table;
    int32_t block_tokens, head_dim, q_stride, q_heads, kv_heads, kv_head, kv_dtype, window;
    float scale;
    int32_t token0;     // first query token of the unit, a row of the step
    int32_t tokens;     // query tokens
    int32_t position0;  // position of the first query token
    int32_t next_head = -1;  // of attend_few: the KV head whose first keys come next and are asked for in advance, or -1
    bool asked = false;      // this one's were
};

// What a thread has found of a row's logits so far, in the units of the head that it took.
struct alignas(64) Harvest {
    float best = -std::numeric_limits<float>::infinity();  // the largest, and the first place of it
    int32_t at = 0;
    bool finite = true;  // all of them
    // Of a row that draws from a few:
    float shift = -std::numeric_limits<float>::infinity(), farthest = 0;  // the largest, and the largest |shift| that there was
    double sum = 0;        // of exp((x - shift) / temperature)
    int32_t kept = 0, room = 0, whole = 0;
    float *values = nullptr;   // logits that may be drawn and their ids, room for 16 more than `room`
    int32_t *ids = nullptr;
    int32_t *units = nullptr;  // [whole], those whose logits are left as they are: they are dense, or there was no room
};

struct Kernels {
    const char *name;
    // out[r * stride + c], columns [panel0 * 32, (panel0 + panels) * 32) of x W^T for rows [row0, row0 + rows); no bias.
    void (*product)(int format, const Activations &x, int64_t row0, int64_t rows, const OctavoMatrix &w, int64_t panel0,
                    int64_t panels, float *out, int64_t stride);
    // row of x [width] normalised (weight null: as it is) into row `row` of `out`.
    void (*norm_row)(const float *x, const float *weight, int64_t width, float eps, int format, Activations &out,
                     int64_t row);
    // One group of 32 values, columns [group * 32, ..) of `row`.
    void (*put_group)(const float *x, int format, Activations &out, int64_t row, int64_t group);
    // act(gate[i]) * up[i] of rows [rows, 64], 32 gates and then 32 ups each, as a group of rows [row0, row0 + rows) of `out`.
    void (*put_gated)(const float *gate_up, int64_t rows, int activation, int format, Activations &out, int64_t row0, int64_t group);
    // x[i] += y[i] (+ bias[i]).
    void (*add)(float *x, const float *y, const float *bias, int64_t count);
    void (*to_bf16)(const float *x, uint16_t *out, int64_t count);
    // One head of one token, [head_dim]: optional norm, rotation; as bf16 in `out`, or where that is null in place.
    void (*rotate)(float *head, const float *norm, float eps, const float *cos, const float *sin, int64_t head_dim, uint16_t *out);
    // Few queries per sequence: keys [first, last) into a partial result: out [tokens * group, head_dim] unscaled sums,
    // best and total [tokens * group].
    void (*attend_few)(const AttentionInput &in, int first, int last, float *out, float *best, float *total, float *scratch);
    // Many queries: whole context, out [tokens * group, head_dim] finished.
    void (*attend_many)(const AttentionInput &in, float *out, float *scratch);
    // Of count logits of a unit of the head, count <= HARVEST_COLUMNS, the largest of which is `best`: adds to the row's sum, `scale` is
    // one over the temperature, and keeps what is at least `least`. Leaves them in `logits` if `copied`, or if the unit is left whole.
    void (*harvest)(const float *x, int64_t count, int32_t unit, float best, float least, float scale, float *logits, bool copied, Harvest &row);
    // Largest of count values; returns whether all are finite.
    bool (*highest)(const float *x, int64_t count, float *best);
    // The first place of the largest of count values; 0 where there is none.
    int64_t (*first_of)(const float *x, int64_t count, float largest);
    double (*read_bytes)(const uint8_t *data, int64_t bytes);
    double (*burn)(int format, int64_t iterations);  // returns multiply-adds done
};

int64_t attend_few_scratch(int tokens, int group, int head_dim);   // floats
int64_t attend_many_scratch(int tokens, int group, int head_dim);  // floats

// Null where the compiler could not make them.
const Kernels *kernels_avx2();
const Kernels *kernels_avx512();
const Kernels *kernels_amx();
// Which table serves an OctavoIsa of supported_isas().
const Kernels &kernels_of(int isa);

}  // namespace octavo
