// A step of attention: the blocks between two updates of the running maximum.
//
// Keys and values are read as units of 32 bits, a float or a pair of bfloat16: a block of keys is
// [depth in units][16 tokens], one of values [16 tokens in units][value_dim]. So the same loops
// serve both types; tiles process bfloat16 if the processor has them.
#pragma once

#include "multiply.hpp"

namespace batchdeck::LEVEL::attention {

// Blocks between two updates of the maximum: their scores, weights, keys and values take 56 KB for
// 32 rows of 64 dimensions in bfloat16.
constexpr int64_t kStepBlocks = 8;
constexpr int64_t kStep = kStepBlocks * kBlock;
// Rows that share a read of a step's keys and values: two tiles.
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
// Tiles process the values of two blocks at a time.
template <class T>
constexpr int64_t kBlocksAtOnce = kTiled<T> ? 2 : 1;

// The blocks of a step to read, by their places [low, high) in it.
struct Step {
  int64_t low, high;
  const uint32_t* keys[kStepBlocks];
  const uint32_t* values[kStepBlocks];
  // Blocks to read soon: the products' loops prefetch them, a few lines at a time, because
  // prefetching all in one go would stall.
  const uint32_t* next_keys[kStepBlocks];
  const uint32_t* next_values[kStepBlocks];
};

// The part of unit row `row` of values that remains if only the first `tokens` of the block count.
template <class T>
inline uint32_t seen(int64_t row, int64_t tokens) {
  if constexpr (kUnit<T> == 1) return row < tokens ? ~0u : 0u;
  const int64_t left = tokens - row * 2;
  return left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
}

}  // namespace batchdeck::LEVEL::attention
