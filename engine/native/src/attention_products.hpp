// The two matrix products of attention, of up to kTileRows rows of queries and a step's blocks.
#pragma once

#include "attention_step.hpp"
#include "attention_tiles.hpp"
#include "attention_turning.hpp"

namespace batchdeck::LEVEL::attention {

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
      value[C - 1] = load_first(values + (C - 1) * 16, tail);
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
// slot past them may be NaN, and 0 * NaN is NaN. `memory` holds prepared_values<T>(cache).
template <class T>
constexpr int64_t prepared_values(const Cache& cache) {
  const int64_t turned = cache.values != nullptr ? 0 : kTiled<T> ? 1 : kStepBlocks - 1;
  const int64_t unit = value_unit(cache.value_dim);
  return ((kTiled<T> ? kStep * round_up(cache.value_dim, 16) : unit) + turned * unit) / kUnit<T>;
}
template <class T>
inline void prepare_values(Step& step, int64_t tokens, const Cache& cache, uint32_t* memory) {
  const int64_t value_dim = cache.value_dim;
  const bool are_in_keys = cache.values == nullptr;
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    uint32_t* turned = memory + kStep * round_up(value_dim, 16) / kUnit<T>;
    for (int64_t b = step.low / 2 * 2; b < round_up(step.high, 2); b++) {
      if (are_in_keys && step.values[b] != nullptr) {
        turn_block<T>(step.keys[b], value_dim, turned);
        step.values[b] = turned;
      }
      tile_values(step.values[b], tokens - b * kBlock, b, value_dim, step.next_values[b],
                  memory);
    }
    return;
  }
#endif
  const int64_t last = step.high - 1, unit = value_unit(value_dim) / kUnit<T>;
  if (are_in_keys) {
    for (int64_t b = step.low; b < step.high; b++) {
      turn_block<T>(step.keys[b], value_dim, memory + b * unit);
      step.values[b] = memory + b * unit;
    }
    memory += last * unit;
  }
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
