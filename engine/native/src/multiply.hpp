// Products of a few rows of x and one panel of packed weights, in vectors.
//
// multiply(x, x_stride, rows, weight, depth, first, c, ahead): c[rows][kPanel] += x W^T over
// `depth` features (bfloat16: a multiple of kDepth), from 0 where `first`; rows are at most kRows.
// Each element is one sum in the order of the features, in float32: a row's result depends neither
// on the other rows nor on how the product is divided into pieces.
#pragma once

#include <type_traits>

#include "lanes.hpp"

namespace batchdeck::LEVEL {

// Sums of a row are in two registers; a panel is kStrips such pairs.
constexpr int kPair = 2;
constexpr int kStrips = int(kPanel) / (kPair * kLanes);

// How many rows fit into registers: sums, a weight for each register of a row and a number of x
// take 31 of 32 with AVX-512, all 16 without: there a weight is two, one for each of its features.
#ifdef __AVX512F__
constexpr int64_t kRows = 14;
#else
constexpr int64_t kRows = 5;
#endif

// x as the products read it. Without AVX512_BF16 bfloat16 is widened, once a piece.
#ifdef __AVX512BF16__
template <class T>
using Operand = T;
#else
template <class T>
using Operand = float;
#endif

// The next weights, in cache lines from `from` on. Each pair of lines that is multiplied prefetches
// two of them, `apart` bytes from each other; the next pair those `step` bytes on. By itself the
// processor does not read as far ahead as a core is fast: products of 8 rows read 17 to 23 GB/s and
// now 30 to 37, of 32 rows 12 to 13 and now 17 to 25 (benchmarks.linear, two Zen 5 cores).
struct Ahead {
  const char* from;
  int64_t step, apart;

  // Inlined, because gcc otherwise finds that it changes nothing, and drops the call.
  __attribute__((always_inline)) void ask(int64_t pair, int strip) const {
    __builtin_prefetch(from + pair * step + (strip == 0 ? 0 : apart), 0, 3);
    if (kStrips == 1) __builtin_prefetch(from + pair * step + apart, 0, 3);
  }
};

// For one strip of the panel.
template <int R>
inline void add_product(const float* x, int64_t x_stride, const float* weight, int64_t depth,
                        int strip, Lanes (&sums)[R][kPair], const Ahead& ahead) {
  weight += strip * kPair * kLanes;
  for (int64_t k = 0; k < depth; k++, weight += kPanel) {
    ahead.ask(k, strip);
    Lanes w[kPair];
    for (int v = 0; v < kPair; v++) w[v] = load_as<Lanes>(weight + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Lanes one = broadcast(x[r * x_stride + k]);
      for (int v = 0; v < kPair; v++) sums[r][v] += one * w[v];
    }
  }
}

// Pairs of features of 16 outputs, a tile, are in one line.
template <int R>
inline void add_product(const Operand<bf16>* x, int64_t x_stride, const bf16* weight, int64_t depth,
                        int strip, Lanes (&sums)[R][kPair], const Ahead& ahead) {
  constexpr int64_t kTile = kPanel / 2 * kDepth;
  weight += strip * kTile;
  for (int64_t k = 0; k < depth; k += kDepth, weight += 2 * kTile) {
    for (int64_t pair = 0; pair < kDepth / 2; pair++) {
      ahead.ask(k / 2 + pair, strip);
      Words w[kPair];
      for (int v = 0; v < kPair; v++) {
        w[v] = load_as<Words>(weight + pair * kPanel + v * (kStrips == 1 ? kTile : 2 * kLanes));
      }
#ifdef __AVX512BF16__
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        // A pair of x is 32 adjacent bits, like one of a weight's.
        const Words both = Words{} + load_as<uint32_t>(x + r * x_stride + k + 2 * pair);
        for (int v = 0; v < kPair; v++) {
          sums[r][v] = (Lanes)_mm512_dpbf16_ps((__m512)sums[r][v], (__m512bh)both, (__m512bh)w[v]);
        }
      }
#else
      Lanes even[kPair], odd[kPair];
      for (int v = 0; v < kPair; v++) even[v] = (Lanes)(w[v] << 16);
      for (int v = 0; v < kPair; v++) odd[v] = (Lanes)(w[v] & 0xffff0000);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const Lanes one = broadcast(x[r * x_stride + k + 2 * pair]);
        for (int v = 0; v < kPair; v++) sums[r][v] += one * even[v];
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const Lanes one = broadcast(x[r * x_stride + k + 2 * pair + 1]);
        for (int v = 0; v < kPair; v++) sums[r][v] += one * odd[v];
      }
#endif
    }
  }
}

// A separate function for each number of rows: together in one, gcc 12 moves sums between
// registers.
template <int R, class T>
__attribute__((noinline)) void multiply_rows(const Operand<T>* x, int64_t x_stride, const T* weight,
                                             int64_t depth, bool first, float* c,
                                             const Ahead& ahead) {
  const Ahead mine = ahead;
  for (int strip = 0; strip < kStrips; strip++, c += kPair * kLanes) {
    Lanes sums[R][kPair] = {};
    if (!first) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        for (int v = 0; v < kPair; v++) sums[r][v] = load_as<Lanes>(c + r * kPanel + v * kLanes);
      }
    }
    add_product<R>(x, x_stride, weight, depth, strip, sums, mine);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) std::memcpy(c + r * kPanel, sums[r], sizeof sums[r]);
  }
}

template <class T, int R = kRows>
inline void multiply(const Operand<T>* x, int64_t x_stride, int64_t rows, const T* weight,
                     int64_t depth, bool first, float* c, const Ahead& ahead) {
  if constexpr (R > 1) {
    if (rows < R) return multiply<T, R - 1>(x, x_stride, rows, weight, depth, first, c, ahead);
  }
  multiply_rows<R>(x, x_stride, weight, depth, first, c, ahead);
}

}  // namespace batchdeck::LEVEL
