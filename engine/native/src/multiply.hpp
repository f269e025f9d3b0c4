// Products of a few rows of x and one panel of packed weights, in registers.
//
// multiply(x, x_stride, rows, weight, depth, first, c, cold, beside): c[rows][kPanel] += x W^T over
// `depth` features (bfloat16: a multiple of kDepth), from 0 where `first`; rows are at most kRows<T>.
// Each element is one sum in the order of the features, in float32, whatever else is computed beside
// it: a row's result depends neither on the other rows nor on how the product is cut into pieces.
// `cold` says that the weights come from memory. beside.some(n) is called n times in all, or
// beside.all() once: what is to be done while they come.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL {

// A register of floats; a panel is kVectors of them.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int kVectors = int(kPanel) / kLanes;
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), aligned(4)));

// How many rows the registers have room for: sums, x of each row and a weight take 25 of 32 with
// AVX-512, all 16 without; of bfloat16 that is widened, 14. Tiles: 2 x 2 of 8 hold sums.
#if defined(__AVX512F__)
template <class T>
constexpr int kRows = 8;
#else
template <class T>
constexpr int kRows = 3;
template <>
inline constexpr int kRows<bf16> = 2;
#endif
#ifdef __AMX_BF16__
template <>
inline constexpr int kRows<bf16> = 32;
#endif

template <int R>
inline void add_product(const float* x, int64_t x_stride, const float* weight, int64_t depth,
                        Lanes (&sums)[R][kVectors]) {
  for (int64_t k = 0; k < depth; k++, weight += kPanel) {
    for (int v = 0; v < kVectors; v++) {
      const auto w = load_as<Lanes>(weight + v * kLanes);
      for (int r = 0; r < R; r++) sums[r][v] += x[r * x_stride + k] * w;
    }
  }
}

#ifndef __AMX_BF16__
// A pair of features of x is 32 bits that lie beside each other, like a pair of a weight's.
template <int R>
inline void add_product(const bf16* x, int64_t x_stride, const bf16* weight, int64_t depth,
                        Lanes (&sums)[R][kVectors]) {
  constexpr int kPerTile = kVectors / 2;
  for (int64_t k = 0; k < depth; k += kDepth, weight += kPanel * kDepth) {
    for (int pair = 0; pair < kDepth / 2; pair++) {
      for (int v = 0; v < kVectors; v++) {
        const bf16* tile = weight + v / kPerTile * (kPanel / 2 * kDepth);
        const auto w = load_as<Words>(tile + pair * kPanel + v % kPerTile * 2 * kLanes);
        for (int r = 0; r < R; r++) {
          const Words both = Words{} + load_as<uint32_t>(x + r * x_stride + k + 2 * pair);
#ifdef __AVX512BF16__
          sums[r][v] = (Lanes)_mm512_dpbf16_ps((__m512)sums[r][v], (__m512bh)both, (__m512bh)w);
#else
          sums[r][v] += (Lanes)(both << 16) * (Lanes)(w << 16);
          sums[r][v] += (Lanes)(both & 0xffff0000) * (Lanes)(w & 0xffff0000);
#endif
        }
      }
    }
  }
}
#endif

template <int R, class T>
inline void multiply_rows(const T* x, int64_t x_stride, const T* weight, int64_t depth, bool first,
                          float* c) {
  Lanes sums[R][kVectors] = {};
  if (!first) std::memcpy(sums, c, sizeof sums);
  add_product<R>(x, x_stride, weight, depth, sums);
  std::memcpy(c, sums, sizeof sums);
}

template <class T, class Beside, int R = kRows<T>>
inline void multiply(const T* x, int64_t x_stride, int64_t rows, const T* weight, int64_t depth,
                     bool first, float* c, bool cold, Beside& beside) {
  if constexpr (R > 1) {
    if (rows < R) {
      return multiply<T, Beside, R - 1>(x, x_stride, rows, weight, depth, first, c, cold, beside);
    }
  }
  beside.all();
  multiply_rows<R>(x, x_stride, weight, depth, first, c);
}

#ifdef __AMX_BF16__
// The layout that ldtilecfg reads (Intel SDM vol. 1, 18.3).
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 hold sums, 4 and 5 x, 6 and 7 weights: of 16 rows and the rest.
inline void shape_tiles(int64_t rows) {
  const auto upper = uint8_t(min<int64_t>(rows, 16)), lower = uint8_t(rows > 16 ? rows - 16 : 16);
  TileShapes shapes;
  for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64;
  for (int tile : {0, 1, 4}) shapes.rows[tile] = upper;
  for (int tile : {2, 3, 5}) shapes.rows[tile] = lower;
  for (int tile : {6, 7}) shapes.rows[tile] = 16;
  // Not _tile_loadconfig: in gcc 12 it names 8 of the 64 bytes as read, and the others are not
  // written then.
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}

// Ordinary loads of a tile's lines ahead of the tile's own bring weights from memory faster than
// the tile's alone: 35 GB/s instead of 30, where a plain sum reads 38 (8 rows, 4864 -> 896, two
// Sapphire Rapids cores). Prefetching does not.
inline void touch_tile(const bf16* tile) {
  for (int line = 0; line < 16; line++) {
    uint32_t word;
    __asm__ volatile("movl %1, %0" : "=r"(word) : "m"(tile[line * 32]));
  }
}

// Wants shape_tiles(rows).
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

template <class Beside>
inline void multiply(const bf16* x, int64_t x_stride, int64_t rows, const bf16* weight,
                     int64_t depth, bool first, float* c, bool cold, Beside& beside) {
  const auto tiles = rows > 16 ? cold ? multiply_tiles<true, true, Beside>
                                      : multiply_tiles<true, false, Beside>
                     : cold    ? multiply_tiles<false, true, Beside>
                               : multiply_tiles<false, false, Beside>;
  tiles(x, x_stride, weight, depth, first, c, beside);
}
#endif

}  // namespace batchdeck::LEVEL
