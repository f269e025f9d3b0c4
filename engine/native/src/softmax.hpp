// Attention's softmax: powers of two, in registers of floats.
#pragma once

#include "multiply.hpp"

namespace batchdeck::LEVEL {

#ifndef __AVX512F__
// As for vectors.
inline Lanes max(Lanes a, Lanes b) { return (Lanes)_mm256_max_ps((__m256)a, (__m256)b); }
#endif

namespace attention {

// Not memcpy, for which gcc 12 keeps AVX2's sums in memory all the time.
inline void put(float* to, Lanes numbers) {
  typedef Lanes Numbers __attribute__((may_alias));
  *reinterpret_cast<Numbers*>(to) = numbers;
}
#ifdef __AVX512BF16__
inline void put(bf16* to, Lanes numbers) { store(to, numbers); }
#endif

constexpr float kLog2e = 1.44269504088896341f;

// 2^f for f in [0, 1], polynomials of least largest relative error: 7.5e-5, little beside
// the 3.9e-3 of rounding to bfloat16, and 7.5e-8.
template <class T>
inline Lanes power_of_fraction(Lanes f) {
  if constexpr (sizeof(T) == 2) {
    Lanes p = f * 7.8024521e-2f + 2.2606716e-1f;
    p = p * f + 6.9583356e-1f;
    return p * f + 9.9992520e-1f;
  } else {
    Lanes p = f * 1.8775767e-3f + 8.9893397e-3f;
    p = p * f + 5.5826318e-2f;
    p = p * f + 2.4015361e-1f;
    p = p * f + 6.9315308e-1f;
    return p * f + 9.9999994e-1f;
  }
}

// 2^x, as exact as T needs; below 2^-126 it may be 0, and for -inf it is; NaN for NaN.
template <class T>
inline Lanes exp2(Lanes x) {
#ifdef __AVX512DQ__
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const Lanes fraction = (Lanes)_mm512_reduce_ps((__m512)x, kFloor);
  return (Lanes)_mm512_scalef_ps((__m512)power_of_fraction<T>(fraction), (__m512)x);
#else
  // Either bound is the result only if x is a number beyond it.
  const Lanes least = Lanes{} - 126, most = Lanes{} + 128;
  const __m256 bounded =
      _mm256_min_ps((__m256)most, _mm256_max_ps((__m256)least, (__m256)x));
  const __m256 whole = _mm256_floor_ps(bounded);
  const __m256i power = _mm256_slli_epi32(
      _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
  const Lanes y = power_of_fraction<T>((Lanes)bounded - (Lanes)whole) * (Lanes)power;
  return (Lanes)_mm256_andnot_ps(_mm256_cmp_ps((__m256)x, (__m256)least, _CMP_LT_OQ), (__m256)y);
#endif
}
template <class T>
inline float exp2(float x) { return exp2<T>(broadcast(x))[0]; }

// Lanes in groups of 2 W: a group's first W lanes from `a`, its last from `b`; of each, the first
// or the last W of that group.
template <int W, int Shift, int... I>
inline Lanes interleave(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % (2 * W) < W ? I + Shift : kLanes + I - W + Shift)...);
}
template <int W, class F>
inline void fold(Lanes* rows, const F& join) {
  using Numbers = std::make_integer_sequence<int, kLanes>;
  for (int i = 0; i < W; i++) {
    rows[i] = join(interleave<W, 0>(rows[i], rows[i + W], Numbers{}),
                   interleave<W, W>(rows[i], rows[i + W], Numbers{}));
  }
  if constexpr (W > 1) fold<W / 2>(rows, join);
}
// Lane i of the result is the maximum, or the sum, of the lanes of row i. Rows are overwritten.
inline Lanes maxima_of(Lanes (&rows)[kLanes]) {
  fold<kLanes / 2>(rows, [](Lanes a, Lanes b) { return max(a, b); });
  return rows[0];
}
inline Lanes sums_of(Lanes (&rows)[kLanes]) {
  fold<kLanes / 2>(rows, [](Lanes a, Lanes b) { return a + b; });
  return rows[0];
}

}  // namespace attention

}  // namespace batchdeck::LEVEL
