// Attention's softmax: powers of two.
#pragma once

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
  return select(is_nan(x), x, select(less(x, splat(-126.0f)), f32x16{}, y));
#endif
}

}  // namespace batchdeck::LEVEL::attention
