// The tile registers of AMX. Under OCTAVO_EMULATE_TILES they are memory, and what the instructions fault on is an exception: so
// configurations, indices and layouts are tested on any CPU (Intel's manual, volume 2: LDTILECFG, TILELOADD, TDPBF16PS).
#pragma once
#include <cstdint>

#ifdef OCTAVO_EMULATE_TILES
#include <cstring>
#include <stdexcept>
#include <string>
#endif

namespace ISA {

constexpr int TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64;

// What LDTILECFG reads: 64 bytes.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

#ifndef OCTAVO_EMULATE_TILES

// By hand, since GCC's intrinsics (up to 12) tell the optimizer of 8 of the configuration's bytes and of no memory that a load reads.
inline void configure_tiles(const TileConfig &config) { __asm__ volatile("ldtilecfg %0" : : "m"(config)); }
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int T>
inline void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}

// Rows of `stride` bytes.
template <int T>
inline void load_tile(const void *from, int64_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(from), "r"(stride) : "memory");
}

template <int T>
inline void store_tile(void *to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(T), "r"(to), "r"(stride) : "memory");
}

// tile SUM [rows][16] float32 += tile A [rows][32] bf16 times tile B [16][16][2] bf16.
template <int SUM, int A, int B>
inline void multiply_tiles() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}

#else

struct TileRegisters {
    bool configured = false;
    int rows[TILES], bytes[TILES];
    uint8_t data[TILES][TILE_ROWS][TILE_BYTES];
};

inline TileRegisters &tile_registers() {
    static thread_local TileRegisters registers;
    return registers;
}

inline void need(bool holds, const char *what, int tile) {
    if (!holds) throw std::logic_error(std::string(what) + ", tile " + std::to_string(tile));
}

inline TileRegisters &used_tile(int tile) {
    TileRegisters &at = tile_registers();
    need(at.configured, "no configuration is loaded", tile);
    need(at.rows[tile] > 0, "the tile is not configured", tile);
    return at;
}

inline void configure_tiles(const TileConfig &config) {
    TileRegisters &at = tile_registers();
    need(config.palette == 1 && config.start_row == 0, "the palette is not 1, or a row to start from is given", -1);
    for (const uint8_t byte : config.reserved) need(byte == 0, "a reserved byte is set", -1);
    for (int tile = 0; tile < 16; ++tile) {
        const int rows = config.rows[tile], bytes = config.bytes_per_row[tile];
        need(rows <= TILE_ROWS && bytes <= TILE_BYTES && (rows == 0) == (bytes == 0) && bytes % 4 == 0, "the size is out of range", tile);
        need(tile < TILES || rows == 0, "there are 8 tiles", tile);
        if (tile >= TILES) continue;
        at.rows[tile] = rows;
        at.bytes[tile] = bytes;
    }
    std::memset(at.data, 0, sizeof at.data);
    at.configured = true;
}

inline void release_tiles() { tile_registers().configured = false; }

template <int T>
inline void zero_tile() {
    std::memset(used_tile(T).data[T], 0, sizeof tile_registers().data[T]);
}

template <int T>
inline void load_tile(const void *from, int64_t stride) {
    TileRegisters &at = used_tile(T);
    std::memset(at.data[T], 0, sizeof at.data[T]);
    for (int row = 0; row < at.rows[T]; ++row)
        std::memcpy(at.data[T][row], static_cast<const uint8_t *>(from) + row * stride, static_cast<size_t>(at.bytes[T]));
}

template <int T>
inline void store_tile(void *to, int64_t stride) {
    const TileRegisters &at = used_tile(T);
    for (int row = 0; row < at.rows[T]; ++row)
        std::memcpy(static_cast<uint8_t *>(to) + row * stride, at.data[T][row], static_cast<size_t>(at.bytes[T]));
}

inline float half_of(const uint8_t *row, int index) {
    uint16_t half;
    std::memcpy(&half, row + index * 2, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The even inputs' products are added up by themselves, so are the odd ones', then both go to the sum.
template <int SUM, int A, int B>
inline void multiply_tiles() {
    TileRegisters &at = used_tile(SUM);
    used_tile(A);
    used_tile(B);
    need(at.rows[SUM] == at.rows[A] && at.bytes[SUM] == at.bytes[B] && at.bytes[A] == at.rows[B] * 4, "sizes do not fit", SUM);
    static_assert(SUM != A && A != B && SUM != B);
    for (int m = 0; m < at.rows[SUM]; ++m)
        for (int n = 0; n < at.bytes[SUM] / 4; ++n) {
            float parts[2] = {0, 0}, sum;
            for (int k = 0; k < at.bytes[A] / 2; ++k)
                parts[k % 2] = __builtin_fmaf(half_of(at.data[A][m], k), half_of(at.data[B][k / 2], 2 * n + k % 2), parts[k % 2]);
            std::memcpy(&sum, at.data[SUM][m] + 4 * n, 4);
            sum += parts[0] + parts[1];
            std::memcpy(at.data[SUM][m] + 4 * n, &sum, 4);
        }
}

#endif

}  // namespace ISA
