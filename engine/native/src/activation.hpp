// Activation functions of 16 floats. Largest relative errors against float64 from -5 up: silu
// 1.8e-7, sigmoid 1.5e-7, tanh 2.6e-7, softplus 2.7e-7, quick_gelu 7e-7, gelu 8e-7, gelu_tanh 2e-6;
// below, where the gelus vanish, the error from rounding exp's argument grows with it. NaN stays
// NaN; +inf, and -inf unless the formula multiplies it by 0, give the limit.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL {

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (exp(-x) + 1.0f); }

// Odd polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel; coefficients by weighted least
// squares towards the least maximum of the relative error.
inline f32x16 tanh(f32x16 x) {
  const f32x16 z = x * x;
  f32x16 p = splat(-6.0969256e-3f);
  p = fma(p, z, splat(2.0997344e-2f));
  p = fma(p, z, splat(-5.3850950e-2f));
  p = fma(p, z, splat(1.3332770e-1f));
  p = fma(p, z, splat(-3.3333329e-1f));
  const f32x16 near = fma(p * z, x, x);
  const f32x16 far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return select(less(z, splat(0.390625f)), near, far);
}

// x Phi(x). The tail Phi(-|x|) = e^(-x^2 / 2) t P(t) with t = 1 / (1 + 0.35 |x|), P fitted like
// tanh's on |x| <= 14, where the tail ends for float: relative error 3.2e-8. Taken for both signs,
// it keeps the left side from cancelling.
inline f32x16 gelu(f32x16 x) {
  const f32x16 size = max(x, -x);
  const f32x16 t = 1.0f / fma(size, splat(0.35f), splat(1.0f));
  f32x16 p = splat(-2.9146140e-2f);
  p = fma(p, t, splat(1.4397271e-1f));
  p = fma(p, t, splat(-2.5571632e-1f));
  p = fma(p, t, splat(1.5917649e-1f));
  p = fma(p, t, splat(-2.3111419e-2f));
  p = fma(p, t, splat(1.0550866e-1f));
  p = fma(p, t, splat(1.1983270e-1f));
  p = fma(p, t, splat(1.3986189e-1f));
  p = fma(p, t, splat(1.3962140e-1f));
  const f32x16 tail = exp(x * x * -0.5f) * t * p;
  return x * select(more(x, f32x16{}), 1.0f - tail, tail);
}

// With u = sqrt(2 / pi) (x + 0.044715 x^3): x (1 + tanh u) / 2 = x sigmoid(2 u).
inline f32x16 gelu_tanh(f32x16 x) {
  const f32x16 twice = x * fma(x * x, splat(0.0713548163f), splat(1.59576912f));
  return x * sigmoid(twice);
}

// max(x, 0) + log(1 + z) with z = e^-|x|, where log(1 + z) = 2 artanh(s) with s = z / (2 + z), by
// its series: for s up to 1 / 3, terms after s^17 are below float's rounding.
inline f32x16 softplus(f32x16 x) {
  const f32x16 zero = {};
  const f32x16 z = exp(-max(x, -x));
  const f32x16 s = z / (z + 2.0f);
  const f32x16 square = s * s;
  f32x16 p = splat(1.0f / 17);
  for (const float odd : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) {
    p = fma(p, square, splat(1.0f / odd));
  }
  return fma(s + s, p, select(less(x, zero), zero, x));
}

inline f32x16 apply(Activation activation, f32x16 x) {
  const f32x16 zero = {};
  switch (activation) {
    case Activation::none: return x;
    case Activation::silu: return x * sigmoid(x);
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::quick_gelu: return x * sigmoid(1.702f * x);
    case Activation::relu: return select(less(x, zero), zero, x);
    case Activation::relu2: return select(less(x, zero), zero, x * x);
    case Activation::tanh: return tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::softplus: return softplus(x);
  }
  __builtin_unreachable();
}

}  // namespace batchdeck::LEVEL
