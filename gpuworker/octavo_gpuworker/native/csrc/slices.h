// How a panel is cut for the two or three tiles of a few rows: slice by slice, so that memory is read beside all of
// them. Tile after tile over the whole panel, it would stand still from the second one on.
#pragma once
#include <cstdint>

#include "pack.h"

namespace ISA {

constexpr int64_t SLICE_DEPTH = 128;
constexpr int64_t SLICE_BYTES = SLICE_DEPTH * 64;
constexpr int64_t INT8_SLICE_GROUPS = 8;  // of 32 inputs
constexpr int64_t INT8_SLICE_BYTES = INT8_SLICE_GROUPS * octavo::INT8_GROUP;
constexpr int64_t SLICED_TILES = 3;
// Of each pair of lines, which are asked for in advance.
enum Lines : int { NO_LINES = 0, FIRST_LINES = 1, LAST_LINES = 2, ALL_LINES = 3 };

}  // namespace ISA
