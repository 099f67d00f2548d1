#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace octavo {
namespace {

void pack_bf16_column(const float *source, int64_t depth, uint8_t *panel, int64_t column) {
    auto *out = reinterpret_cast<uint16_t *>(panel);
    for (int64_t k = 0; k < depth; ++k) out[(k / 2 * 32 + column) * 2 + k % 2] = float_to_bf16(source[k]);
}

// 32 values as codes of one scale.
void put_int8_group(const float *values, uint16_t scale, uint8_t *group, int64_t column) {
    std::memcpy(group + INT8_CODES + column * 2, &scale, 2);
    const float step = half_to_float(scale);
    for (int k = 0; k < 32; ++k) {
        const float code = step > 0 ? std::clamp(std::nearbyint(values[k] / step), -127.0f, 127.0f) : 0.0f;
        group[(k / 4 * 32 + column) * 4 + k % 4] = static_cast<uint8_t>(static_cast<int>(code) + 128);
    }
}

float largest_size(const float *values) {
    float largest = 0;
    for (int k = 0; k < 32; ++k) largest = std::max(largest, std::fabs(values[k]));
    return largest;
}

// Symmetric: scale = largest / 127 in float16, as Q8_0 has it, so a matrix that was Q8_0 keeps its very values.
void pack_int8_column(const float *source, int64_t depth, uint8_t *panel, int64_t column) {
    for (int64_t start = 0; start < depth; start += 32) {
        const float largest = largest_size(source + start);
        uint16_t scale = float_to_half(largest / 127.0f);
        if (largest > 127.5f * half_to_float(scale)) ++scale;  // among its smallest numbers float16 may round far down
        put_int8_group(source + start, scale, panel + start / 32 * INT8_GROUP, column);
    }
}

// A step for 32 values step * code + offset with codes 0..15: a whole part of theirs, so that they lie on its grid but for what
// the offset leaves over; of all parts that reach the largest value, the one that leaves least.
uint16_t part_of_step(float step, float offset, float largest) {
    uint16_t found = float_to_half(largest / 127.0f);
    float least = std::numeric_limits<float>::max();
    for (int part = 1; part <= 64; ++part) {
        const uint16_t scale = float_to_half(step / static_cast<float>(part));
        const float fine = half_to_float(scale);
        if (fine < 6.103515625e-05f || largest > 127.5f * fine) break;  // float16's smallest numbers are no parts any more
        const float left = std::fabs(offset - std::nearbyint(offset / fine) * fine);
        if (left <= least) {
            least = left;
            found = scale;
        }
    }
    return found;
}

// Whether int8 or int4 can keep a row: all finite, every scale and offset within float16.
bool keepable(int format, const float *source, int64_t depth) {
    if (format == OCTAVO_BF16) return true;
    const float most = format == OCTAVO_INT4 ? 65504.0f : 65504.0f * 127.0f;
    for (int64_t k = 0; k < depth; ++k)
        if (!(std::fabs(source[k]) <= most)) return false;
    return true;
}

void put_int4_code(uint8_t *group, int64_t column, int k, int code) {
    const int quad = k / 4, half = quad / 4;
    uint8_t &byte = group[((quad % 4) * 32 + column) * 4 + k % 4];
    byte = half ? static_cast<uint8_t>((byte & 0x0f) | code << 4) : static_cast<uint8_t>((byte & 0xf0) | code);
}

int get_int4_code(const uint8_t *group, int64_t column, int k) {
    const int quad = k / 4;
    const uint8_t byte = group[((quad % 4) * 32 + column) * 4 + k % 4];
    return quad / 4 ? byte >> 4 : byte & 0x0f;
}

void put_int4_scales(uint8_t *group, int64_t column, uint16_t scale, uint16_t offset) {
    std::memcpy(group + INT4_CODES + column * 2, &scale, 2);
    std::memcpy(group + INT4_CODES + 64 + column * 2, &offset, 2);
}

// Least and largest of the group become codes 0 and 15, as Q4_1 does.
void pack_int4_column(const float *source, int64_t depth, uint8_t *panel, int64_t column) {
    for (int64_t start = 0; start < depth; start += 32) {
        uint8_t *group = panel + start / 32 * INT4_GROUP;
        const auto [low, high] = std::minmax_element(source + start, source + start + 32);
        const uint16_t scale = float_to_half((*high - *low) / 15.0f), offset = float_to_half(*low);
        const float step = half_to_float(scale), least = half_to_float(offset);
        put_int4_scales(group, column, scale, offset);
        for (int k = 0; k < 32; ++k) {
            const float code = step > 0 ? std::nearbyint((source[start + k] - least) / step) : 0.0f;
            put_int4_code(group, column, k, static_cast<int>(std::clamp(code, 0.0f, 15.0f)));
        }
    }
}

}  // namespace

float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        const float value = std::ldexp(static_cast<float>(mantissa), -24);
        return sign ? -value : value;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Round to nearest even; beyond the range: infinity.
uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const float size = std::fabs(value);
    if (!(size == size)) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.103515625e-05f) return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24)));
    bits &= 0x7fffffff;
    bits += 0xfff + (bits >> 13 & 1);
    return sign | static_cast<uint16_t>((bits >> 13) - (112 << 10));
}

uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

void unpack_column(int format, const uint8_t *data, int64_t column, int64_t depth, float *out) {
    const uint8_t *panel = data + column / 32 * panel_bytes(format, depth);
    const int64_t lane = column % 32;
    if (format == OCTAVO_BF16) {
        const auto *values = reinterpret_cast<const uint16_t *>(panel);
        for (int64_t k = 0; k < depth; ++k) out[k] = bf16_to_float(values[(k / 2 * 32 + lane) * 2 + k % 2]);
    } else if (format == OCTAVO_INT8) {
        for (int64_t k = 0; k < depth; ++k) {
            const uint8_t *group = panel + k / 32 * INT8_GROUP;
            uint16_t scale;
            std::memcpy(&scale, group + INT8_CODES + lane * 2, 2);
            const int code = group[(k % 32 / 4 * 32 + lane) * 4 + k % 4];
            out[k] = static_cast<float>(code - 128) * half_to_float(scale);
        }
    } else {
        for (int64_t start = 0; start < depth; start += 32) {
            const uint8_t *group = panel + start / 32 * INT4_GROUP;
            uint16_t scale, offset;
            std::memcpy(&scale, group + INT4_CODES + lane * 2, 2);
            std::memcpy(&offset, group + INT4_CODES + 64 + lane * 2, 2);
            for (int k = 0; k < 32; ++k)
                out[start + k] =
                    half_to_float(scale) * static_cast<float>(get_int4_code(group, lane, k)) + half_to_float(offset);
        }
    }
}

}  // namespace octavo

using namespace octavo;

int64_t octavo_packed_bytes(int32_t format, int64_t columns, int64_t depth) {
    if (format < OCTAVO_BF16 || format > OCTAVO_INT4 || columns < 1 || depth < 1) return -1;
    return (columns + 31) / 32 * panel_bytes(format, (depth + 31) / 32 * 32);
}

int32_t octavo_pack(int32_t format, const float *source, int64_t rows, int64_t depth, int64_t column0, int64_t columns,
                    int64_t padded_depth, uint8_t *data) {
    if (column0 < 0 || rows < 0 || column0 + rows > columns || depth > padded_depth || padded_depth % 32) return -1;
    std::vector<float> padded(padded_depth, 0.0f);
    for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(source + row * depth, depth, padded.data());
        if (!keepable(format, padded.data(), depth)) return -2;
        const int64_t column = column0 + row;
        uint8_t *panel = data + column / 32 * panel_bytes(format, padded_depth);
        if (format == OCTAVO_BF16) pack_bf16_column(padded.data(), padded_depth, panel, column % 32);
        if (format == OCTAVO_INT8) pack_int8_column(padded.data(), padded_depth, panel, column % 32);
        if (format == OCTAVO_INT4) pack_int4_column(padded.data(), padded_depth, panel, column % 32);
    }
    return 0;
}

int32_t octavo_pack_gguf_int4(int32_t type, const uint8_t *source, int64_t rows, int64_t depth, int64_t column0,
                              int64_t columns, int64_t padded_depth, uint8_t *data) {
    if ((type != 2 && type != 3) || depth % 32 || depth > padded_depth || column0 < 0 || column0 + rows > columns) return -1;
    const int64_t head = type == 3 ? 4 : 2;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t column = column0 + row;
        uint8_t *panel = data + column / 32 * panel_bytes(OCTAVO_INT4, padded_depth);
        for (int64_t start = 0; start < depth; start += 32, source += head + 16) {
            uint8_t *group = panel + start / 32 * INT4_GROUP;
            uint16_t scale, offset;
            std::memcpy(&scale, source, 2);
            std::memcpy(&offset, source + 2, 2);
            if (type == 2) offset = float_to_half(-8.0f * half_to_float(scale));
            put_int4_scales(group, column % 32, scale, offset);
            for (int k = 0; k < 32; ++k) {
                const uint8_t byte = source[head + k % 16];
                put_int4_code(group, column % 32, k, k < 16 ? byte & 0x0f : byte >> 4);
            }
        }
    }
    return 0;
}

int32_t octavo_pack_gguf_int8(int32_t type, const uint8_t *source, int64_t rows, int64_t depth, int64_t column0,
                              int64_t columns, int64_t padded_depth, uint8_t *data) {
    if ((type != 2 && type != 3) || depth % 32 || depth > padded_depth || column0 < 0 || column0 + rows > columns) return -1;
    const int64_t head = type == 3 ? 4 : 2;
    float values[32];
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t column = column0 + row;
        uint8_t *panel = data + column / 32 * panel_bytes(OCTAVO_INT8, padded_depth);
        for (int64_t start = 0; start < padded_depth; start += 32) {
            uint8_t *group = panel + start / 32 * INT8_GROUP;
            std::fill(values, values + 32, 0.0f);
            if (start >= depth) {
                put_int8_group(values, 0, group, column % 32);
                continue;
            }
            uint16_t halves[2] = {};
            std::memcpy(halves, source, static_cast<size_t>(head));
            const float step = half_to_float(halves[0]);
            const float offset = type == 2 ? -8.0f * step : half_to_float(halves[1]);
            for (int k = 0; k < 32; ++k) {
                const uint8_t byte = source[head + k % 16];
                values[k] = step * static_cast<float>(k < 16 ? byte & 0x0f : byte >> 4) + offset;
            }
            if (!keepable(OCTAVO_INT8, values, 32)) return -2;
            put_int8_group(values, part_of_step(std::fabs(step), offset, largest_size(values)), group, column % 32);
            source += head + 16;
        }
    }
    return 0;
}

void octavo_unpack(int32_t format, const uint8_t *data, int64_t columns, int64_t depth, float *out) {
    for (int64_t column = 0; column < columns; ++column)
        unpack_column(format, data, column, depth, out + column * depth);
}
