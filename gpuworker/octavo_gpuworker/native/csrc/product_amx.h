// bf16 products on tiles: two tiles of rows times the two halves of a panel. Tiles 0..3 are sums, 4 and 5 activations, 6 and 7 weights.
#pragma once
#include <algorithm>

#include "kernels.h"
#include "pack.h"
#include "tiles.h"

namespace ISA {

using octavo::Activations;
using octavo::PANEL;

constexpr int64_t TILE_DEPTH = 32;      // bf16 of one row of a tile
constexpr int64_t LEAST_ROWS = 4;       // below, a tile is mostly empty
constexpr int ATTEND_ROWS = 96;          // of attend_many beside a block of keys; whole pairs of tiles
constexpr int64_t AHEAD_BYTES = 4096;   // as in product_avx512.h

inline void configure(int64_t first, int64_t second) {
    TileConfig config;
    const int64_t rows[TILES] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < TILES; ++tile) {
        config.bytes_per_row[tile] = rows[tile] ? TILE_BYTES : 0;
        config.rows[tile] = static_cast<uint8_t>(rows[tile]);
    }
    configure_tiles(config);
}

// 16 rows or fewer, as configured, and where TWO is set as many more, times one panel. `stream`: the panel comes from memory.
template <bool TWO>
inline void tiles_of_panel(const uint16_t *x, int64_t depth, const uint8_t *panel, bool stream, float *out, int64_t stride) {
    zero_tile<0>();
    zero_tile<1>();
    if constexpr (TWO) {
        zero_tile<2>();
        zero_tile<3>();
    }
    for (int64_t k = 0; k < depth; k += TILE_DEPTH, panel += TILE_DEPTH * 64) {
        if (stream)
            for (int64_t line = 0; line < TILE_DEPTH * 64; line += 64)
                _mm_prefetch(reinterpret_cast<const char *>(panel) + AHEAD_BYTES + line, _MM_HINT_T0);
        load_tile<6>(panel, 128);
        load_tile<7>(panel + 64, 128);
        load_tile<4>(x + k, depth * 2);
        multiply_tiles<0, 4, 6>();
        multiply_tiles<1, 4, 7>();
        if constexpr (TWO) {
            load_tile<5>(x + TILE_ROWS * depth + k, depth * 2);
            multiply_tiles<2, 5, 6>();
            multiply_tiles<3, 5, 7>();
        }
    }
    store_tile<0>(out, stride * 4);
    store_tile<1>(out + 16, stride * 4);
    if constexpr (TWO) {
        store_tile<2>(out + TILE_ROWS * stride, stride * 4);
        store_tile<3>(out + TILE_ROWS * stride + 16, stride * 4);
    }
}

inline void product(int format, const Activations &x, int64_t row0, int64_t rows, const OctavoMatrix &w, int64_t panel0,
                    int64_t panels, float *out, int64_t stride) {
    if (format != OCTAVO_BF16 || rows < LEAST_ROWS)
        return octavo::kernels_avx512()->product(format, x, row0, rows, w, panel0, panels, out, stride);
    const int64_t bytes = octavo::panel_bytes(format, w.depth);
    int64_t configured = 0;
    for (int64_t r = 0; r < rows; r += 2 * TILE_ROWS) {
        const int64_t some = std::min<int64_t>(2 * TILE_ROWS, rows - r), first = std::min<int64_t>(TILE_ROWS, some);
        if (some != configured) configure(first, some - first);
        configured = some;
        const uint16_t *from = x.bf16 + (row0 + r) * x.depth;
        for (int64_t p = 0; p < panels; ++p) {
            const uint8_t *panel = w.data + (panel0 + p) * bytes;
            float *to = out + r * stride + p * PANEL;
            if (some > first)
                tiles_of_panel<true>(from, x.depth, panel, r == 0, to, stride);
            else
                tiles_of_panel<false>(from, x.depth, panel, r == 0, to, stride);
        }
    }
    release_tiles();  // tiles in use make every switch between threads save 8 KB
}

}  // namespace ISA
