// Attention's softmax: powers of two, and reductions of 16 rows to one vector.
#pragma once

#include <utility>

#include "simd.hpp"

namespace batchdeck::LEVEL::attention {

constexpr float kLog2e = 1.44269504088896341f;

// 2^f for f in [0, 1], polynomials of least largest relative error: 7.5e-5, little beside
// the 3.9e-3 of rounding to bfloat16, and 7.5e-8.
template <class T>
inline f32x16 power_of_fraction(f32x16 f) {
  if constexpr (sizeof(T) == 2) {
    f32x16 p = splat(7.8024521e-2f);
    p = fma(p, f, splat(2.2606716e-1f));
    p = fma(p, f, splat(6.9583356e-1f));
    return fma(p, f, splat(9.9992520e-1f));
  } else {
    f32x16 p = splat(1.8775767e-3f);
    p = fma(p, f, splat(8.9893397e-3f));
    p = fma(p, f, splat(5.5826318e-2f));
    p = fma(p, f, splat(2.4015361e-1f));
    p = fma(p, f, splat(6.9315308e-1f));
    return fma(p, f, splat(9.9999994e-1f));
  }
}

// 2^x, as exact as T needs; below 2^-126 it may be 0, and for -inf it is; NaN for NaN.
template <class T>
inline f32x16 exp2(f32x16 x) {
#ifdef __AVX512DQ__
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const f32x16 fraction = (f32x16)_mm512_reduce_ps((__m512)x, kFloor);
  return (f32x16)_mm512_scalef_ps((__m512)power_of_fraction<T>(fraction), (__m512)x);
#else
  const f32x16 bounded = min(max(x, splat(-126.0f)), splat(128.0f));
  const f32x16 whole = round_nearest(bounded - 0.5f);
  const i32x16 power = (__builtin_convertvector(whole, i32x16) + 127) << 23;
  const f32x16 y = power_of_fraction<T>(bounded - whole) * (f32x16)power;
  const f32x16 ended = where<_CMP_LT_OQ>(x, splat(-126.0f), f32x16{}, y);
  return where<_CMP_UNORD_Q>(x, x, x, ended);
#endif
}

// Lanes in groups of 2 W: a group's first W lanes from `a`, its last from `b`; of each, the first
// or the last W of that group.
template <int W, int Shift, int... I>
inline f32x16 interleave(f32x16 a, f32x16 b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % (2 * W) < W ? I + Shift : 16 + I - W + Shift)...);
}
template <int W, class F>
inline void fold(f32x16* rows, const F& join) {
  using Lanes = std::make_integer_sequence<int, 16>;
  for (int i = 0; i < W; i++) {
    rows[i] = join(interleave<W, 0>(rows[i], rows[i + W], Lanes{}),
                   interleave<W, W>(rows[i], rows[i + W], Lanes{}));
  }
  if constexpr (W > 1) fold<W / 2>(rows, join);
}
// Lane i of the result is the most, or the sum, of the 16 lanes of row i. Rows are used up.
inline f32x16 most_of_each(f32x16 (&rows)[16]) {
  fold<8>(rows, [](f32x16 a, f32x16 b) { return max(a, b); });
  return rows[0];
}
inline f32x16 sum_of_each(f32x16 (&rows)[16]) {
  fold<8>(rows, [](f32x16 a, f32x16 b) { return a + b; });
  return rows[0];
}

}  // namespace batchdeck::LEVEL::attention
