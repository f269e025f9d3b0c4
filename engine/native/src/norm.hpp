// RMSNorm and LayerNorm.
#pragma once

#include "share.hpp"

namespace batchdeck::LEVEL {

// Numbers of a piece: about 10 us, twice the time to pass one to another core.
constexpr int64_t kNormPiece = 1 << 15;

// One group of one row. It is read once: widened, it stays in `wide`, which has space for whole
// vectors, and statistics and result are computed from it.
template <class T>
inline void norm_group(const NormArgs& args, const T* x, T* out, float* wide) {
  const int64_t width = args.width;
  f32x16 total = {}, squares = {};
  each_vector(0, width, [&](int64_t i, auto count) {
    const f32x16 value = load_first(x + i, count);
    store(wide + i, value);
    total += value;
    squares = fma(value, value, squares);
  });
  float mean = 0;
  if (args.center) {
    // Computed from the differences, because the mean of squares less the mean's square cancels.
    // The last vector's empty lanes are set to differ by 0.
    mean = sum_of(total) / float(width);
    for (int64_t i = width; i < round_up(width, 16); i++) wide[i] = mean;
    squares = f32x16{};
    for (int64_t i = 0; i < width; i += 16) {
      const f32x16 difference = load(wide + i) - mean;
      squares = fma(difference, difference, squares);
    }
  }
  const float* const weight = args.weight;
  const float* const bias = args.bias;
  const float scale = 1 / std::sqrt(sum_of(squares) / float(width) + args.eps);
  each_vector(0, width, [&](int64_t i, auto count) {
    f32x16 value = (load(wide + i) - mean) * scale;
    if (weight != nullptr) value *= load_first(weight + i, count);
    if (bias != nullptr) value += load_first(bias + i, count);
    store_first(out + i, value, count);
  });
}

template <class T>
inline void norm_rows(const NormArgs& args, Share share, float* wide) {
  const auto at = [&](auto* base, int64_t stride, int64_t row, int64_t group) {
    return base + row * stride + group * args.width;
  };
  for (int64_t row = share.first; row < share.last; row++) {
    for (int64_t group = 0; group < args.groups; group++) {
      norm_group<T>(args, at(static_cast<const T*>(args.x), args.x_stride, row, group),
                    at(static_cast<T*>(args.out), args.out_stride, row, group), wide);
    }
  }
}

inline int64_t norm_pieces(const NormArgs& args, int) {
  return row_pieces(args.rows, args.groups * args.width, kNormPiece);
}

inline void norm(const NormArgs& args, int threads, int64_t piece, Scratch& scratch) {
  const Share share = share_of(args.rows, norm_pieces(args, threads), piece);
  auto* wide = static_cast<float*>(scratch.get(size_t(round_up(args.width, 16)) * sizeof(float)));
  if (args.dtype == DType::bf16) return norm_rows<bf16>(args, share, wide);
  norm_rows<float>(args, share, wide);
}

}  // namespace batchdeck::LEVEL
