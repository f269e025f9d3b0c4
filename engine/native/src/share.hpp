// How kernels that process a matrix by rows are divided into pieces.
#pragma once

#include <type_traits>

#include "simd.hpp"

namespace batchdeck::LEVEL {

// Rows [first, last) of one piece.
struct Share {
  int64_t first, last;
};

// Pieces of whole rows, as even as possible, of about `piece` numbers each.
inline int64_t row_pieces(int64_t rows, int64_t width, int64_t piece) {
  return min(ceil_div(rows * width, piece), rows);
}
inline Share share_of(int64_t rows, int64_t pieces, int64_t piece) {
  return {rows * piece / pieces, rows * (piece + 1) / pieces};
}

// body(i, count) for the numbers [i, i + count) of [first, last). The whole vectors come first,
// with a count that is a constant where body is inlined: only the last pays for being partial.
template <class F>
inline void each_vector(int64_t first, int64_t last, const F& body) {
  int64_t i = first;
  for (; i + 16 <= last; i += 16) body(i, std::integral_constant<int64_t, 16>());
  if (i < last) body(i, last - i);
}

}  // namespace batchdeck::LEVEL
