// The two matrix products of attention, of up to kTileRows rows of queries and a step's blocks.
//
// Keys and values are read as units of 32 bits, a float or a pair of bfloat16: a block of keys is
// [depth in units][16 tokens], one of values [16 tokens in units][value_dim]. So the same loops do
// for both types; tiles take bfloat16 where there are any.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL::attention {

// Blocks between two looks at the maximum: their scores, weights, keys and values take 56 KB for 32
// rows of 64 dimensions in bfloat16.
constexpr int64_t kStepBlocks = 8;
constexpr int64_t kStep = kStepBlocks * kBlock;
// Rows that share what was read of a step's keys and values: two tiles.
constexpr int64_t kTileRows = 32;

template <class T>
constexpr int64_t kUnit = 4 / int64_t(sizeof(T));  // numbers of T in a unit
#ifdef __AMX_BF16__
template <class T>
constexpr bool kTiled = sizeof(T) == 2;
#else
template <class T>
constexpr bool kTiled = false;
#endif
// Tiles take the values of two blocks at a time.
template <class T>
constexpr int64_t kBlocksAtOnce = kTiled<T> ? 2 : 1;

// The blocks of a step that are read, by their places [low, high) in it.
struct Step {
  int64_t low, high;
  const uint32_t* keys[kStepBlocks];
  const uint32_t* values[kStepBlocks];
  // Blocks to be read soon: tiles' loops fetch them, a few lines at a time between products, which
  // would wait for all of them in one go.
  const uint32_t* next_keys[kStepBlocks];
  const uint32_t* next_values[kStepBlocks];
};

// The first `count` units of 16, the rest 0.
inline u32x16 load_units(const uint32_t* from, int64_t count) {
  if (count >= 16) return load_as<u32x16>(from);
#ifdef __AVX512F__
  return (u32x16)_mm512_maskz_loadu_epi32(__mmask16((1u << count) - 1), from);
#else
  u32x16 units = {};
  std::memcpy(&units, from, size_t(count) * sizeof(uint32_t));
  return units;
#endif
}

// What is kept of unit row `row` of values if only the first `tokens` of their block are seen.
template <class T>
inline uint32_t seen(int64_t row, int64_t tokens) {
  if constexpr (kUnit<T> == 1) return row < tokens ? ~0u : 0u;
  const int64_t left = tokens - row * 2;
  return left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
}

// total + many * one, both numbers of each unit.
template <class T>
inline f32x16 multiply_add(f32x16 total, u32x16 many, uint32_t one) {
  if constexpr (kUnit<T> == 1) {
    return fma((f32x16)many, splat(load_as<float>(&one)), total);
  } else {
#ifdef __AVX512BF16__
    return (f32x16)_mm512_dpbf16_ps((__m512)total, load_as<__m512bh>(&many),
                                    (__m512bh)_mm512_set1_epi32(int(one)));
#else
    const u32x16 pair = u32x16{} + one;
    total = fma((f32x16)(many << 16), (f32x16)(pair << 16), total);
    return fma((f32x16)(many & 0xffff0000), (f32x16)(pair & 0xffff0000), total);
#endif
  }
}

// Rows that a loop over vectors holds in registers.
#ifdef __AVX512F__
constexpr int kGang = 8;
#else
constexpr int kGang = 4;
#endif

// scores[r][token] of R rows and one block. `query` has rows of `depth` units.
template <class T, int R>
inline void score_block(const uint32_t* query, int64_t depth, const uint32_t* keys, float* scores) {
  f32x16 total[R] = {};
  for (int64_t d = 0; d < depth; d++) {
    const u32x16 key = load_as<u32x16>(keys + d * kBlock);
    for (int r = 0; r < R; r++) total[r] = multiply_add<T>(total[r], key, query[r * depth + d]);
  }
  for (int r = 0; r < R; r++) store(scores + r * kStep, total[r]);
}

// out[r][columns] += weights[r][tokens] * values[tokens][columns], for R rows and C vectors of
// columns of which the last has `tail`. Rows of values are `value_dim` units apart.
template <class T, int R, int C>
inline void add_values(const uint32_t* weights, const Step& step, int64_t column, int64_t tail,
                       int64_t value_dim, float* out, int64_t out_stride) {
  constexpr int64_t kRows = kBlock / kUnit<T>;
  constexpr int64_t kWeights = kStep / kUnit<T>;
  f32x16 total[R][C];
  for (int r = 0; r < R; r++) {
    for (int c = 0; c < C; c++) total[r][c] = load(out + r * out_stride + column + c * 16);
  }
  for (int64_t b = step.low; b < step.high; b++) {
    const uint32_t* values = step.values[b] + column;
    for (int64_t i = 0; i < kRows; i++, values += value_dim) {
      u32x16 value[C];
      for (int c = 0; c < C - 1; c++) value[c] = load_as<u32x16>(values + c * 16);
      value[C - 1] = load_units(values + (C - 1) * 16, tail);
      for (int r = 0; r < R; r++) {
        const uint32_t weight = weights[r * kWeights + b * kRows + i];
        for (int c = 0; c < C; c++) total[r][c] = multiply_add<T>(total[r][c], value[c], weight);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int c = 0; c < C; c++) store(out + r * out_stride + column + c * 16, total[r][c]);
  }
}

template <class T, int R>
inline void score_rows(const uint32_t* query, int64_t depth, const Step& step, float* scores) {
  for (int64_t b = step.low; b < step.high; b++) {
    score_block<T, R>(query, depth, step.keys[b], scores + b * kBlock);
  }
}
template <class T, int R>
inline void weigh_rows(const uint32_t* weights, const Step& step, int64_t value_dim, float* out,
                       int64_t out_stride) {
  constexpr int C = R * 4 <= 2 * kGang ? 4 : R * 2 <= 2 * kGang && kGang > 4 ? 2 : 1;
  int64_t column = 0;
  for (; column + C * 16 <= value_dim; column += C * 16) {
    add_values<T, R, C>(weights, step, column, 16, value_dim, out, out_stride);
  }
  for (; column < value_dim; column += 16) {
    add_values<T, R, 1>(weights, step, column, value_dim - column, value_dim, out, out_stride);
  }
}

// Calls body.template operator()<R>() for R = rows, at most Most.
template <int Most, class F>
inline void with_rows(int64_t rows, const F& body) {
  if constexpr (Most > 1) {
    if (rows < Most) return with_rows<Most - 1>(rows, body);
  }
  body.template operator()<Most>();
}

#ifdef __AMX_BF16__

// What was written before is in memory: the compiler does not know that tiles read it.
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

// Units from row to row of a tile that lies by itself.
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
        units = load_units(values + i * value_dim + c * 16, value_dim - c * 16) & mask;
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

// scores [rows][kStep] of the step's blocks.
template <class T>
inline void score(const uint32_t* query, int64_t rows, int64_t depth, const Step& step,
                  float* scores) {
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    return rows > 16 ? score_with_tiles<2>(query, depth, step, scores)
                     : score_with_tiles<1>(query, depth, step, scores);
  }
#endif
  for (int64_t row = 0; row < rows; row += kGang) {
    with_rows<kGang>(rows - row, [&]<int R>() {
      score_rows<T, R>(query + row * depth, depth, step, scores + row * kStep);
    });
  }
}

// Makes the step's values ready for `weigh`; the first `tokens` are the context's. What lies in a
// slot past them may be NaN, and 0 * NaN is NaN. `memory` holds prepared_values<T>(value_dim).
template <class T>
constexpr int64_t prepared_values(int64_t value_dim) {
  return (kTiled<T> ? kStep * round_up(value_dim, 16) : value_unit(value_dim)) / kUnit<T>;
}
template <class T>
inline void prepare_values(Step& step, int64_t tokens, int64_t value_dim, uint32_t* memory) {
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    for (int64_t b = step.low / 2 * 2; b < round_up(step.high, 2); b++) {
      tile_values(step.values[b], tokens - b * kBlock, b, value_dim, step.next_values[b],
                  memory);
    }
    return;
  }
#endif
  const int64_t last = step.high - 1;
  if (step.high * kBlock <= tokens) return;
  for (int64_t i = 0; i < kBlock / kUnit<T>; i++) {
    const uint32_t mask = seen<T>(i, tokens - last * kBlock);
    for (int64_t d = i * value_dim; d < (i + 1) * value_dim; d++) {
      memory[d] = step.values[last][d] & mask;
    }
  }
  step.values[last] = memory;
}

// out [rows][out_stride] += weights [rows][kStep] times the step's values.
template <class T>
inline void weigh(const uint32_t* weights, int64_t rows, const Step& step, int64_t value_dim,
                  [[maybe_unused]] const uint32_t* tiles, float* out, int64_t out_stride) {
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    return rows > 16 ? weigh_with_tiles<2>(weights, step, value_dim, tiles, out, out_stride)
                     : weigh_with_tiles<1>(weights, step, value_dim, tiles, out, out_stride);
  }
#endif
  for (int64_t row = 0; row < rows; row += kGang) {
    with_rows<kGang>(rows - row, [&]<int R>() {
      weigh_rows<T, R>(weights + row * kStep / kUnit<T>, step, value_dim, out + row * out_stride,
                       out_stride);
    });
  }
}

}  // namespace batchdeck::LEVEL::attention
