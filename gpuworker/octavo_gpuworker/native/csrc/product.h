// product: rows of activations times panels of a packed matrix, in tiles of as many rows as registers hold.
#pragma once
#include <algorithm>
#include <utility>

#include "kernels.h"
#include "pack.h"

namespace ISA {

using octavo::PANEL;

template <int AHEAD, int... R>
inline void bf16_rows(int rows, const uint16_t *x, int64_t x_stride, const uint8_t *panel, int64_t depth, bool more, float *out,
                      int64_t stride, std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? tile_bf16<R + 1, AHEAD>(x, x_stride, panel, depth, more, out, stride) : void()), ...);
}

template <int AHEAD, int... R>
inline void int8_rows(int rows, const Activations &x, int64_t row, const uint8_t *panel, int64_t first, int64_t last, float *out,
                      int64_t stride, std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? tile_int8<R + 1, AHEAD>(x, row, panel, first, last, out, stride) : void()), ...);
}

template <bool STREAM, int... R>
inline void int4_rows(int rows, const Activations &x, int64_t row, const uint8_t *panel, float *out, int64_t stride,
                      std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? tile_int4<R + 1, STREAM>(x, row, panel, out, stride) : void()), ...);
}

// One slice of a panel, from input k on, for one tile.
template <int AHEAD>
inline void one_slice(int format, const Activations &x, int64_t row, int rows, const uint8_t *panel, int64_t depth, int64_t k,
                      float *out, int64_t stride) {
    if (format == OCTAVO_BF16)
        bf16_rows<AHEAD>(rows, x.bf16 + row * x.depth + k, x.depth, panel, std::min(SLICE_DEPTH, depth - k), k > 0, out, stride,
                         std::make_integer_sequence<int, BF16_ROWS>());
    else
        int8_rows<AHEAD>(rows, x, row, panel, k / octavo::GROUP, std::min(k / octavo::GROUP + INT8_SLICE_GROUPS, depth / octavo::GROUP),
                         out, stride, std::make_integer_sequence<int, INT8_ROWS>());
}

// One panel for 2 or 3 tiles, slice by slice: the first tile asks for half of the next slice's lines, the second for the rest.
inline void sliced_panel(int format, const Activations &x, int64_t row, int64_t rows, int64_t tiles, const uint8_t *panel,
                         int64_t depth, float *out, int64_t stride) {
    const int64_t step = format == OCTAVO_BF16 ? SLICE_DEPTH : INT8_SLICE_GROUPS * octavo::GROUP;
    const int64_t bytes = format == OCTAVO_BF16 ? SLICE_BYTES : INT8_SLICE_BYTES;
    for (int64_t k = 0; k < depth; k += step, panel += bytes)
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t from = rows * tile / tiles, to = rows * (tile + 1) / tiles;
            const int count = static_cast<int>(to - from);
            float *sums = out + from * stride;
            if (tile == 0)
                one_slice<FIRST_LINES>(format, x, row + from, count, panel, depth, k, sums, stride);
            else if (tile == 1)
                one_slice<LAST_LINES>(format, x, row + from, count, panel, depth, k, sums, stride);
            else
                one_slice<NO_LINES>(format, x, row + from, count, panel, depth, k, sums, stride);
        }
}

template <bool STREAM>
inline void one_tile(int format, const Activations &x, int64_t row, int rows, const OctavoMatrix &w, const uint8_t *panel,
                     float *out, int64_t stride) {
    if (format == OCTAVO_BF16)
        bf16_rows<STREAM ? ALL_LINES : NO_LINES>(rows, x.bf16 + row * x.depth, x.depth, panel, w.depth, false, out, stride,
                          std::make_integer_sequence<int, BF16_ROWS>());
    else if (format == OCTAVO_INT8)
        int8_rows<STREAM ? ALL_LINES : NO_LINES>(rows, x, row, panel, 0, w.depth / octavo::GROUP, out, stride,
                                                 std::make_integer_sequence<int, INT8_ROWS>());
    else
        int4_rows<STREAM>(rows, x, row, panel, out, stride, std::make_integer_sequence<int, INT4_ROWS>());
}

// Tiles of equal height: 16 rows are 8 and 8, not 12 and 4. Only the first reads the panel from memory.
inline void product(int format, const Activations &x, int64_t row0, int64_t rows, const OctavoMatrix &w, int64_t panel0,
                    int64_t panels, float *out, int64_t stride) {
    const int64_t most = format == OCTAVO_BF16 ? BF16_ROWS : format == OCTAVO_INT8 ? INT8_ROWS : INT4_ROWS;
    const int64_t tiles = (rows + most - 1) / most, bytes = octavo::panel_bytes(format, w.depth);
    for (int64_t p = 0; p < panels; ++p) {
        const uint8_t *panel = w.data + (panel0 + p) * bytes;
        if (format != OCTAVO_INT4 && tiles > 1 && tiles <= SLICED_TILES) {
            sliced_panel(format, x, row0, rows, tiles, panel, w.depth, out + p * PANEL, stride);
            continue;
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t from = rows * tile / tiles, to = rows * (tile + 1) / tiles;
            float *at = out + from * stride + p * PANEL;
            if (tile == 0)
                one_tile<true>(format, x, row0 + from, static_cast<int>(to - from), w, panel, at, stride);
            else
                one_tile<false>(format, x, row0 + from, static_cast<int>(to - from), w, panel, at, stride);
        }
    }
}

}  // namespace ISA
