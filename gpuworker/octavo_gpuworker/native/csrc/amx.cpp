// The kernels of AMX: bf16 products of 4 rows and more on tiles; everything else is AVX-512's.
#define ISA octavo_amx
// clang-format off
#include "vec_avx512.h"
// clang-format on

#include <algorithm>

#include "kernels.h"
#include "pack.h"

namespace octavo {
namespace {

constexpr int64_t TILE_ROWS = 16, TILE_DEPTH = 32;  // one tile: 16 rows of 32 bf16
constexpr int64_t LEAST_ROWS = 4;                   // below, a tile is mostly empty

// Tiles 0..3 accumulate [2 x 16 rows][2 x 16 columns], 4 and 5 hold activations, 6 and 7 weights.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
};

void configure(int64_t first, int64_t second) {
    TileConfig config;
    const int64_t rows[8] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < 8; ++tile) {
        config.bytes_per_row[tile] = rows[tile] ? 64 : 0;
        config.rows[tile] = static_cast<uint8_t>(rows[tile]);
    }
    _tile_loadconfig(&config);
}

// Rows from `row` on of x times one panel: 16 or fewer, as configured, and `second` more.
void tiles(const Activations &x, int64_t row, int64_t second, const uint8_t *panel, float *out, int64_t stride) {
    _tile_zero(0);
    _tile_zero(1);
    if (second) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const uint16_t *from = x.bf16 + row * x.depth;
    for (int64_t k = 0; k < x.depth; k += TILE_DEPTH) {
        _tile_loadd(6, panel + k * 64, 128);
        _tile_loadd(7, panel + k * 64 + 64, 128);
        _tile_loadd(4, from + k, x.depth * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (second) {
            _tile_loadd(5, from + TILE_ROWS * x.depth + k, x.depth * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, stride * 4);
    _tile_stored(1, out + 16, stride * 4);
    if (second) {
        _tile_stored(2, out + TILE_ROWS * stride, stride * 4);
        _tile_stored(3, out + TILE_ROWS * stride + 16, stride * 4);
    }
}

void product_amx(int format, const Activations &x, int64_t row0, int64_t rows, const OctavoMatrix &w, int64_t panel0,
                 int64_t panels, float *out, int64_t stride) {
    if (format != OCTAVO_BF16 || rows < LEAST_ROWS)
        return kernels_avx512().product(format, x, row0, rows, w, panel0, panels, out, stride);
    const int64_t bytes = panel_bytes(format, w.depth);
    for (int64_t r = 0; r < rows; r += 2 * TILE_ROWS) {
        const int64_t first = std::min(TILE_ROWS, rows - r), second = std::min(TILE_ROWS, rows - r - first);
        configure(first, second);
        for (int64_t p = 0; p < panels; ++p)
            tiles(x, row0 + r, second, w.data + (panel0 + p) * bytes, out + r * stride + p * PANEL, stride);
    }
    _tile_release();
}

}  // namespace

const Kernels &kernels_amx() {
    static const Kernels table = [] {
        Kernels kernels = kernels_avx512();
        kernels.name = "amx";
        kernels.product = product_amx;
        return kernels;
    }();
    return table;
}

}  // namespace octavo
