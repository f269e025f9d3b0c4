// Activations, sums and products, number by number.
#pragma once

#include "activation.hpp"
#include "share.hpp"

namespace batchdeck::LEVEL {

// Numbers of a piece. From Python, silu(x) * y of 32 rows of 896 took 17.1 us on one thread and 12.5
// in two pieces on two (bf16, Sapphire Rapids).
constexpr int64_t kElementwisePiece = 1 << 14;

// A piece is some rows, or, if a row is long, a part of its columns.
inline int64_t column_parts(const ElementwiseArgs& args) {
  return args.width <= kElementwisePiece ? 1 : ceil_div(args.width, kElementwisePiece);
}

inline float widened(float value) { return value; }
inline float widened(bf16 value) { return widen(value); }

// The numbers of y for columns [i, i + 16), each used for `repeat` of them; those past the last of
// `width` columns are undefined.
template <class T>
inline f32x16 repeated(const T* y, int64_t i, int64_t repeat, int64_t width) {
  const int64_t first = i / repeat, last = min(i + 15, width - 1) / repeat;
  f32x16 result = splat(widened(y[first]));
  for (int64_t next = first + 1; next <= last; next++) {
    for (int64_t lane = next * repeat - i; lane < 16; lane++) result[lane] = widened(y[next]);
  }
  return result;
}

template <class T, class F>
inline void each_number(const ElementwiseArgs& args, Share rows, Share columns, const F& f) {
  for (int64_t row = rows.first; row < rows.last; row++) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* y = static_cast<const T*>(args.y);
    if (y != nullptr) y += row * args.y_stride;
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    each_vector(columns.first, columns.last, [&](int64_t i, auto count) {
      const f32x16 other = y == nullptr         ? f32x16{}
                           : args.y_repeat == 1 ? load_first(y + i, count)
                                                : repeated(y, i, args.y_repeat, args.width);
      store_first(out + i, f(load_first(x + i, count), other), count);
    });
  }
}

template <class T>
inline void elementwise_rows(const ElementwiseArgs& args, Share rows, Share columns) {
  const float alpha = args.alpha;
  const Activation activation = args.activation;
  switch (args.combine) {
    case Combine::none:
      return each_number<T>(args, rows, columns,
                            [=](f32x16 x, f32x16) { return apply(activation, alpha * x); });
    case Combine::add:
      return each_number<T>(args, rows, columns,
                            [=](f32x16 x, f32x16 y) { return fma(splat(alpha), y, x); });
    case Combine::multiply:
      return each_number<T>(args, rows, columns, [=](f32x16 x, f32x16 y) {
        return apply(activation, x) * y * alpha;
      });
  }
}

inline int64_t elementwise_pieces(const ElementwiseArgs& args, int) {
  const int64_t parts = column_parts(args);
  return parts > 1 ? args.rows * parts : row_pieces(args.rows, args.width, kElementwisePiece);
}

inline void elementwise(const ElementwiseArgs& args, int threads, int64_t piece, Scratch&) {
  const int64_t parts = column_parts(args);
  const int64_t row_shares = elementwise_pieces(args, threads) / parts;
  const Share rows = share_of(args.rows, row_shares, piece / parts);
  const Share columns = share_of(args.width, parts, piece % parts);
  if (args.dtype == DType::bf16) return elementwise_rows<bf16>(args, rows, columns);
  elementwise_rows<float>(args, rows, columns);
}

}  // namespace batchdeck::LEVEL
