// Rotary position embedding, in place.
#pragma once

#include "share.hpp"

namespace batchdeck::LEVEL {

constexpr int64_t kRotatePiece = 1 << 15;  // numbers

// 16 pairs of neighbours: the first of each, and the second of each.
inline void load_pairs(const bf16* from, f32x16& a, f32x16& b) {
  const u32x16 both = load_as<u32x16>(from);
  a = (f32x16)(both << 16);
  b = (f32x16)(both & 0xffff0000u);
}
inline void store_pairs(bf16* to, f32x16 a, f32x16 b) {
  const u32x16 both = __builtin_convertvector(narrow(a), u32x16) |
                      __builtin_convertvector(narrow(b), u32x16) << 16;
  std::memcpy(to, &both, sizeof both);
}
inline void load_pairs(const float* from, f32x16& a, f32x16& b) {
  const f32x16 low = load(from), high = load(from + 16);
  a = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  b = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
inline void store_pairs(float* to, f32x16 a, f32x16 b) {
  store(to, __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  store(to + 16,
        __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

template <class T>
inline void rotate_halves(T* x, const float* cos, const float* sin, int64_t half) {
  each_vector(0, half, [&](int64_t i, auto count) {
    const f32x16 c = load_first(cos + i, count), s = load_first(sin + i, count);
    const f32x16 a = load_first(x + i, count), b = load_first(x + half + i, count);
    store_first(x + i, a * c - b * s, count);
    store_first(x + half + i, b * c + a * s, count);
  });
}

template <class T>
inline void rotate_pairs(T* x, const float* cos, const float* sin, int64_t half) {
  each_vector(0, half, [&](int64_t i, auto count) {
    const f32x16 c = load_first(cos + i, count), s = load_first(sin + i, count);
    f32x16 a, b;
    T pairs[32] = {};
    std::memcpy(pairs, x + 2 * i, size_t(2 * count) * sizeof(T));
    load_pairs(pairs, a, b);
    store_pairs(pairs, a * c - b * s, b * c + a * s);
    std::memcpy(x + 2 * i, pairs, size_t(2 * count) * sizeof(T));
  });
}

template <class T>
inline void rotate_rows(const RotateArgs& args, Share share) {
  for (int64_t row = share.first; row < share.last; row++) {
    const int64_t angles = args.positions[row] * args.half;
    for (int64_t head = 0; head < args.heads; head++) {
      T* x = static_cast<T*>(args.x) + row * args.x_stride + head * args.head_dim;
      (args.interleaved ? rotate_pairs<T> : rotate_halves<T>)(x, args.cos + angles,
                                                              args.sin + angles, args.half);
    }
  }
}

inline int64_t rotate_pieces(const RotateArgs& args, int) {
  return row_pieces(args.rows, args.heads * 2 * args.half, kRotatePiece);
}

inline void rotate(const RotateArgs& args, int threads, int64_t piece, Scratch&) {
  const Share share = share_of(args.rows, rotate_pieces(args, threads), piece);
  if (args.dtype == DType::bf16) return rotate_rows<bf16>(args, share);
  rotate_rows<float>(args, share);
}

}  // namespace batchdeck::LEVEL
