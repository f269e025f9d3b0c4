// Products of up to kTileRows rows of x and one panel of packed weights, in tiles of bfloat16, if
// the processor has them (AMX).
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL {

#ifdef __AMX_BF16__

// Four of the eight tiles hold sums: 2 x 2.
constexpr int64_t kTileRows = 32;

// The layout that ldtilecfg reads (Intel SDM vol. 1, 18.3).
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 hold sums, 4 and 5 x, 6 and 7 weights: of 16 rows and the rest. `depth` bytes of a
// row of x are multiplied at once.
inline void shape_tiles(int64_t upper, int64_t lower, int64_t depth) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64;
  for (int tile : {4, 5}) shapes.bytes[tile] = uint16_t(depth);
  for (int tile : {0, 1, 4}) shapes.rows[tile] = uint8_t(upper);
  for (int tile : {2, 3, 5}) shapes.rows[tile] = uint8_t(lower);
  for (int tile : {6, 7}) shapes.rows[tile] = uint8_t(depth / 4);
#ifdef EMULATED_TILES  // by a test, if the processor has none
  emulated::shape(shapes.rows, shapes.bytes);
#else
  // Not _tile_loadconfig: in gcc 12 it declares only 8 of the 64 bytes as read, and the others are
  // then not written.
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
#endif
}

inline void shape_tiles(int64_t rows) {
  shape_tiles(min<int64_t>(rows, 16), rows > 16 ? rows - 16 : 16, 64);
}

// Ordinary loads of a tile's lines before the tile's own load fetch weights from memory faster than
// the tile's alone: 35 GB/s instead of 30, where a plain sum reads 38 (8 rows, 4864 -> 896, two
// Sapphire Rapids cores). Prefetching does not.
inline void touch_tile(const bf16* tile) {
  for (int line = 0; line < 16; line++) {
    uint32_t word;
    __asm__ volatile("movl %1, %0" : "=r"(word) : "m"(tile[line * 32]));
  }
}

// Requires shape_tiles(rows).
template <bool Lower, bool Cold, class Beside>
inline void multiply_tiles(const bf16* x, int64_t x_stride, const bf16* weight, int64_t depth,
                           bool first, float* c, Beside& beside) {
  constexpr int kStride = kPanel * sizeof(float), kTile = kPanel / 2 * kDepth;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    if (Lower) _tile_zero(2);
    if (Lower) _tile_zero(3);
  } else {
    _tile_loadd(0, c, kStride);
    _tile_loadd(1, c + 16, kStride);
    if (Lower) _tile_loadd(2, c + 16 * kPanel, kStride);
    if (Lower) _tile_loadd(3, c + 16 * kPanel + 16, kStride);
  }
  const int64_t steps = depth / kDepth;
  for (int64_t k = 0; k < depth; k += kDepth, weight += 2 * kTile) {
    beside.some(steps);
    if (Cold) {
      touch_tile(weight);
      touch_tile(weight + kTile);
    }
    _tile_loadd(6, weight, 64);
    _tile_loadd(4, x + k, x_stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (Lower) {
      _tile_loadd(5, x + 16 * x_stride + k, x_stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kStride);
  _tile_stored(1, c + 16, kStride);
  if (Lower) _tile_stored(2, c + 16 * kPanel, kStride);
  if (Lower) _tile_stored(3, c + 16 * kPanel + 16, kStride);
}

// c[rows][kPanel] += x W^T over `depth` features, a multiple of kDepth, from 0 if `first`, each
// element one sum in the order of the features. `cold` says that the weights come from memory.
// beside.some(n) is called n times in all, for work to do while they are loaded.
template <class Beside>
inline void multiply_in_tiles(const bf16* x, int64_t x_stride, int64_t rows, const bf16* weight,
                              int64_t depth, bool first, float* c, bool cold, Beside& beside) {
  const auto tiles = rows > 16 ? cold ? multiply_tiles<true, true, Beside>
                                      : multiply_tiles<true, false, Beside>
                     : cold    ? multiply_tiles<false, true, Beside>
                               : multiply_tiles<false, false, Beside>;
  tiles(x, x_stride, weight, depth, first, c, beside);
}

#endif

}  // namespace batchdeck::LEVEL
