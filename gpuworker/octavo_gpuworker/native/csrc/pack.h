// Layouts of packed matrices; `columns` (outputs) and `depth` (inputs) are padded to 32 with zeros.
// A panel is 32 columns. bf16: [depth / 2][32][2].
// int8: per group of 32 inputs 1,024 bytes of codes, [8][32][4], stored as code + 128 (unsigned); then 32 float16 scales.
// int4: per group of 32 inputs 512 bytes of codes 0..15, [4][32][4], the low half of a byte from quad j, the high half from quad
// j + 4; then 32 float16 scales and 32 float16 offsets: w = scale * code + offset.
#pragma once
#include <cstdint>

#include "api.h"

namespace octavo {

constexpr int64_t INT8_CODES = 1024;
constexpr int64_t INT8_GROUP = INT8_CODES + 64;
constexpr int64_t INT4_CODES = 512;
constexpr int64_t INT4_GROUP = INT4_CODES + 128;

// Bytes of one panel.
static inline int64_t panel_bytes(int format, int64_t depth) {
    if (format == OCTAVO_BF16) return depth * 32 * 2;
    return depth / 32 * (format == OCTAVO_INT8 ? INT8_GROUP : INT4_GROUP);
}

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);
uint16_t float_to_bf16(float value);
float bf16_to_float(uint16_t value);
// Column `column` of a packed matrix, [depth] float32.
void unpack_column(int format, const uint8_t *data, int64_t column, int64_t depth, float *out);

}  // namespace octavo
