// The two matrix products of attention, of up to kTileRows rows of queries and a step's blocks.
#pragma once

#include "attention_step.hpp"
#include "attention_tiles.hpp"
#include "attention_turning.hpp"
#include "softmax.hpp"

namespace batchdeck::LEVEL::attention {

// Rows that a loop over registers processes at once, and the number of sums that fit into
// registers.
constexpr int kGang = 8;
#ifdef __AVX512F__
constexpr int kSums = 16;
#else
constexpr int kSums = 10;
#endif
// Registers for each of R rows, so that a loaded value serves several and enough sums run in
// parallel.
template <int R>
constexpr int kBeside = R * 4 <= kSums ? 4 : R * 2 <= kSums ? 2 : 1;

// sums[r] += x[r][numbers of a unit] * units, for R rows of x.
template <class T, int R, int V>
inline void add_units(const Operand<T>* x, int64_t x_stride, const Words (&units)[V],
                      Lanes (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    if constexpr (kUnit<T> == 1) {
      const Lanes one = broadcast(x[r * x_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) sums[r][v] += one * (Lanes)units[v];
    } else {
#ifdef __AVX512BF16__
      const Words pair = Words{} + load_as<uint32_t>(x + r * x_stride);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) {
        sums[r][v] =
            (Lanes)_mm512_dpbf16_ps((__m512)sums[r][v], (__m512bh)pair, (__m512bh)units[v]);
      }
#else
      const Lanes even = broadcast(x[r * x_stride]), odd = broadcast(x[r * x_stride + 1]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) {
        sums[r][v] += even * (Lanes)(units[v] << 16);
        sums[r][v] += odd * (Lanes)(units[v] & 0xffff0000);
      }
#endif
    }
  }
}

// The first `count` of a register, the rest 0; all from kLanes on.
inline Words load_words(const uint32_t* from, int64_t count) {
  if (count >= kLanes) return load_as<Words>(from);
  const u32x16 words = load_first(from, count);
  return load_as<Words>(&words);
}

// Registers of a row of a block.
constexpr int kParts = int(kBlock) / kLanes;

// Both products prefetch the blocks that `Step` lists as next, a line for each that they read:
// prefetching a step's blocks in one go would stall before the computation. Contexts of 2,048
// tokens of 32 sequences were read so at 12 GB/s, and now are at 26 (benchmarks.attention, AVX-512,
// two Zen 5 cores).

// scores[r][tokens] of R rows and the V registers of tokens from `first` on in the step. `query` has
// rows of `depth` units.
template <class T, int R, int V>
inline void score_tokens(const Operand<T>* query, int64_t depth, const Step& step, int64_t first,
                         float* scores) {
  const uint32_t *keys[V], *next[V];
  for (int v = 0; v < V; v++) {
    keys[v] = step.keys[(first + v) / kParts] + (first + v) % kParts * kLanes;
    next[v] = step.next_keys[(first + v) / kParts];
  }
  const int64_t stride = depth * kUnit<T>;
  Lanes sums[R][V] = {};
  for (int64_t d = 0; d < depth; d++, query += kUnit<T>) {
    Words key[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) {
      key[v] = load_as<Words>(keys[v] + d * kBlock);
      if (v % kParts == 0) fetch(next[v] + d * kBlock, kBlock * 4);
    }
    add_units<T>(query, stride, key, sums);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) put(scores + r * kStep + (first + v) * kLanes, sums[r][v]);
  }
}

// out[r][columns] += weights[r][tokens] * values[tokens][columns], for R rows and V registers of
// columns of which the last has `tail`, which may be a compile-time constant. Rows of values are
// `value_dim` units apart.
template <class T, int R, int V, class Tail>
inline void add_values(const Operand<T>* weights, const Step& step, int64_t column, Tail tail,
                       int64_t value_dim, float* out, int64_t out_stride) {
  Lanes sums[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) {
      sums[r][v] = load_as<Lanes>(out + r * out_stride + column + v * kLanes);
    }
  }
  for (int64_t b = step.low; b < step.high; b++) {
    const uint32_t* values = step.values[b] + column;
    const uint32_t* next = step.next_values[b] + column;
    const Operand<T>* weight = weights + b * kBlock;
    for (int64_t i = 0; i < kBlock; i += kUnit<T>) {
      Words value[V];
#pragma GCC unroll 16
      for (int v = 0; v < V - 1; v++) value[v] = load_as<Words>(values + v * kLanes);
      value[V - 1] = load_words(values + (V - 1) * kLanes, tail);
      fetch(next, V * kLanes * 4);
      add_units<T>(weight + i, kStep, value, sums);
      values += value_dim;
      next += value_dim;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) put(out + r * out_stride + column + v * kLanes, sums[r][v]);
  }
}

// A separate function for each number of rows: together in one, gcc 12 moves sums between
// registers.
template <class T, int R>
__attribute__((noinline)) void score_rows(const Operand<T>* query, int64_t depth, const Step& step,
                                          float* scores) {
  constexpr int V = kBeside<R>;
  const int64_t last = step.high * kParts;
  int64_t at = step.low * kParts;
  for (; at + V <= last; at += V) score_tokens<T, R, V>(query, depth, step, at, scores);
  for (; at < last; at++) score_tokens<T, R, 1>(query, depth, step, at, scores);
}
template <class T, int R>
__attribute__((noinline)) void weigh_rows(const Operand<T>* weights, const Step& step,
                                          int64_t value_dim, float* out, int64_t out_stride) {
  constexpr int V = kBeside<R>;
  constexpr std::integral_constant<int64_t, kLanes> kWhole;
  int64_t at = 0;
  for (; at + V * kLanes <= value_dim; at += V * kLanes) {
    add_values<T, R, V>(weights, step, at, kWhole, value_dim, out, out_stride);
  }
  for (; at < value_dim; at += kLanes) {
    add_values<T, R, 1>(weights, step, at, value_dim - at, value_dim, out, out_stride);
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
inline void score(const Operand<T>* query, int64_t rows, int64_t depth, const Step& step,
                  float* scores) {
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    const auto* units = reinterpret_cast<const uint32_t*>(query);
    return rows > 16 ? score_with_tiles<2>(units, depth, step, scores)
                     : score_with_tiles<1>(units, depth, step, scores);
  }
#endif
  for (int64_t row = 0; row < rows; row += kGang) {
    with_rows<kGang>(rows - row, [&]<int R>() {
      score_rows<T, R>(query + row * depth * kUnit<T>, depth, step, scores + row * kStep);
    });
  }
}

// Prepares the step's values for `weigh`; the first `tokens` are the context's. Slots past them may
// contain NaN, and 0 * NaN is NaN. `memory` holds prepared_values<T>(cache).
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
inline void weigh(const Operand<T>* weights, int64_t rows, const Step& step, int64_t value_dim,
                  [[maybe_unused]] const uint32_t* tiles, float* out, int64_t out_stride) {
#ifdef __AMX_BF16__
  if constexpr (kTiled<T>) {
    const auto* units = reinterpret_cast<const uint32_t*>(weights);
    return rows > 16 ? weigh_with_tiles<2>(units, step, value_dim, tiles, out, out_stride)
                     : weigh_with_tiles<1>(units, step, value_dim, tiles, out, out_stride);
  }
#endif
  for (int64_t row = 0; row < rows; row += kGang) {
    with_rows<kGang>(rows - row, [&]<int R>() {
      weigh_rows<T, R>(weights + row * kStep, step, value_dim, out + row * out_stride,
                       out_stride);
    });
  }
}

}  // namespace batchdeck::LEVEL::attention
