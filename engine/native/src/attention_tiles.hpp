// The matrix products of attention in tiles of bfloat16, if the processor has them (AMX).
#pragma once

#include "attention_step.hpp"

namespace batchdeck::LEVEL::attention {

#ifdef __AMX_BF16__

// Forces earlier writes to memory: the compiler does not know that tiles read it.
inline void settle() { __asm__ volatile("" ::: "memory"); }

// All eight tiles are whole: 16 rows of 64 bytes.
class Tiles {
 public:
  Tiles() {
    alignas(64) static constexpr struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } kWhole;
    _tile_loadconfig(&kWhole);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { _tile_release(); }
};

// Units between rows of a separate tile.
constexpr int64_t kTileUnits = 256;

// scores of M tiles of 16 rows and two blocks. `query` has rows of `depth` units.
template <int M>
inline void score_tiles(const uint32_t* query, int64_t depth, const uint32_t* keys,
                        const uint32_t* more_keys, const uint32_t* next, const uint32_t* more_next,
                        float* scores) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (M == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t d = 0; d < depth; d += 16) {
    _tile_loadd(4, query + d, depth * 4);
    _tile_loadd(6, keys + d * kBlock, 64);
    _tile_loadd(7, more_keys + d * kBlock, 64);
    fetch(next + d * kBlock, kTileUnits * 4);
    _tile_dpbf16ps(0, 4, 6);
    fetch(more_next + d * kBlock, kTileUnits * 4);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (M == 2) {
      _tile_loadd(5, query + 16 * depth + d, depth * 4);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, scores, kStep * 4);
  _tile_stored(1, scores + kBlock, kStep * 4);
  if constexpr (M == 2) {
    _tile_stored(2, scores + 16 * kStep, kStep * 4);
    _tile_stored(3, scores + 16 * kStep + kBlock, kStep * 4);
  }
}

// out of M tiles of 16 rows and N of 16 columns, for pairs [first, last) of blocks. Values are
// tiles, those of the next pair of blocks `apart` units on.
template <int M, int N>
inline void weigh_tiles(const uint32_t* weights, int64_t first, int64_t last,
                        const uint32_t* values, int64_t apart, float* out, int64_t out_stride) {
  constexpr int64_t kWeights = kStep / 2;
  float* lower = out + 16 * out_stride;
  _tile_loadd(0, out, out_stride * 4);
  if constexpr (N == 2) _tile_loadd(1, out + 16, out_stride * 4);
  if constexpr (M == 2) _tile_loadd(2, lower, out_stride * 4);
  if constexpr (M == 2 && N == 2) _tile_loadd(3, lower + 16, out_stride * 4);
  for (int64_t pair = first; pair < last; pair++) {
    _tile_loadd(4, weights + pair * 16, kWeights * 4);
    _tile_loadd(6, values + pair * apart, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (N == 2) {
      _tile_loadd(7, values + pair * apart + kTileUnits, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (M == 2) {
      _tile_loadd(5, weights + 16 * kWeights + pair * 16, kWeights * 4);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (M == 2 && N == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, out_stride * 4);
  if constexpr (N == 2) _tile_stored(1, out + 16, out_stride * 4);
  if constexpr (M == 2) _tile_stored(2, lower, out_stride * 4);
  if constexpr (M == 2 && N == 2) _tile_stored(3, lower + 16, out_stride * 4);
}

// Values of pairs of blocks as tiles, [pair][value_dim / 16][16 rows][16 units]; `values` may be
// null for a block of zeros. A block alone would fill half a tile.
inline void tile_values(const uint32_t* values, int64_t tokens, int64_t block, int64_t value_dim,
                        const uint32_t* next, uint32_t* tiles) {
  constexpr int64_t kRows = kBlock / 2;
  const int64_t columns = ceil_div(value_dim, 16);
  tiles += block / 2 * columns * kTileUnits + block % 2 * kRows * 16;
  for (int64_t i = 0; i < kRows; i++) {
    const uint32_t mask = seen<bf16>(i, tokens);
    fetch(next + i * value_dim, value_dim * 4);
    for (int64_t c = 0; c < columns; c++) {
      u32x16 units = {};
      if (values != nullptr) {
        units = load_first(values + i * value_dim + c * 16, value_dim - c * 16) & mask;
      }
      std::memcpy(tiles + c * kTileUnits + i * 16, &units, sizeof units);
    }
  }
}

template <int M>
inline void score_with_tiles(const uint32_t* query, int64_t depth, const Step& step,
                             float* scores) {
  settle();
  for (int64_t b = step.low; b < step.high; b += 2) {
    score_tiles<M>(query, depth, step.keys[b], step.keys[b + 1], step.next_keys[b],
                   step.next_keys[b + 1], scores + b * kBlock);
  }
}
template <int M>
inline void weigh_with_tiles(const uint32_t* weights, const Step& step, int64_t value_dim,
                             const uint32_t* tiles, float* out, int64_t out_stride) {
  const int64_t columns = ceil_div(value_dim, 16);
  int64_t c = 0;
  settle();
  for (; c + 2 <= columns; c += 2) {
    weigh_tiles<M, 2>(weights, step.low / 2, step.high / 2, tiles + c * kTileUnits,
                      columns * kTileUnits, out + c * 16, out_stride);
  }
  if (c < columns) {
    weigh_tiles<M, 1>(weights, step.low / 2, step.high / 2, tiles + c * kTileUnits,
                      columns * kTileUnits, out + c * 16, out_stride);
  }
}

#else

struct Tiles {};

#endif

}  // namespace batchdeck::LEVEL::attention
