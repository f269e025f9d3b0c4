// Causal convolution by column, with a state of each sequence's last rows.
#pragma once

#include "activation.hpp"
#include "share.hpp"

namespace batchdeck::LEVEL {

// Columns of a piece: two lines of bfloat16.
constexpr int64_t kConvolveColumns = 64;

// 16 columns, or the first `count` of them, through all rows.
template <class T, int kTaps>
inline void convolve_columns(const ConvolveArgs& args, int64_t column, int64_t count) {
  f32x16 weight[kTaps], past[kTaps];
  for (int j = 0; j < kTaps; j++) {
    weight[j] = load_first(args.weight + j * args.width + column, count);
  }
  const f32x16 bias = args.bias == nullptr ? f32x16{} : load_first(args.bias + column, count);
  const StateRows& rows = args.rows;
  for (int64_t row = 0; row < rows.rows; row++) {
    T* state = static_cast<T*>(args.state) + rows.slots[row] * (kTaps - 1) * args.width + column;
    for (int j = 0; j + 1 < kTaps; j++) {
      past[j + 1] = rows.starts[row] ? load_first(state + j * args.width, count) : f32x16{};
    }
    const T* x = static_cast<const T*>(args.x) + rows.offsets[row] * args.x_stride + column;
    T* out = static_cast<T*>(args.out) + rows.offsets[row] * args.out_stride + column;
    for (int64_t token = 0; token < rows.counts[row]; token++) {
      f32x16 sum = bias;
      for (int j = 0; j + 1 < kTaps; j++) {
        past[j] = past[j + 1];
        sum = fma(past[j], weight[j], sum);
      }
      past[kTaps - 1] = load_first(x + token * args.x_stride, count);
      sum = fma(past[kTaps - 1], weight[kTaps - 1], sum);
      store_first(out + token * args.out_stride, apply(args.activation, sum), count);
    }
    for (int j = 0; j + 1 < kTaps; j++) store_first(state + j * args.width, past[j + 1], count);
  }
}

template <class T>
inline void convolve_share(const ConvolveArgs& args, Share columns) {
  each_vector(columns.first, columns.last, [&](int64_t column, auto count) {
    switch (args.taps) {
      case 2: return convolve_columns<T, 2>(args, column, count);
      case 3: return convolve_columns<T, 3>(args, column, count);
      case 4: return convolve_columns<T, 4>(args, column, count);
      case 5: return convolve_columns<T, 5>(args, column, count);
      case 6: return convolve_columns<T, 6>(args, column, count);
      case 7: return convolve_columns<T, 7>(args, column, count);
      default: return convolve_columns<T, kMostTaps>(args, column, count);
    }
  });
}

inline int64_t convolve_pieces(const ConvolveArgs& args, int) {
  return ceil_div(args.width, kConvolveColumns);
}

inline void convolve(const ConvolveArgs& args, int, int64_t piece, Scratch&) {
  const int64_t first = piece * kConvolveColumns;
  const Share columns = {first, min(first + kConvolveColumns, args.width)};
  if (args.dtype == DType::bf16) return convolve_share<bf16>(args, columns);
  convolve_share<float>(args, columns);
}

}  // namespace batchdeck::LEVEL
