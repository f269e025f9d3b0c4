// Vectors of 16 floats in the compiler's own vector types: one register of AVX-512, two of AVX2.
// Included once for each level, inside that level's namespace. All differences between levels, and
// operations that the compiler's operators do badly (comparisons, choices, reductions), are here
// and nowhere else.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels.hpp"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace batchdeck::LEVEL {

typedef float f32x16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i32x16 __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u32x16 __attribute__((vector_size(64), aligned(4)));
typedef uint16_t u16x16 __attribute__((vector_size(32), aligned(2)));

constexpr i32x16 kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline f32x16 splat(float value) { return f32x16{} + value; }

// Single numbers. Those of <algorithm> would be one function for all levels, compiled for any of
// them. As with the instructions, the result is `b` if either is NaN; so it is for the vectors
// below.
template <class T>
constexpr T min(T a, T b) { return a < b ? a : b; }
template <class T>
constexpr T max(T a, T b) { return a > b ? a : b; }

template <class V>
inline V load_as(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline f32x16 load(const float* from) { return load_as<f32x16>(from); }
inline void store(float* to, f32x16 value) { std::memcpy(to, &value, sizeof value); }

// Bypasses the caches, for data that is not read soon: `to` is aligned to 64 bytes. Other threads
// see it after a locked instruction of this one, such as the pool's count of finished pieces.
inline void stream(float* to, f32x16 value) {
#ifdef __AVX512F__
  _mm512_stream_ps(to, (__m512)value);
#else
  for (int i = 0; i < 16; i += 8) {
    _mm256_stream_ps(to + i, load_as<__m256>(reinterpret_cast<const float*>(&value) + i));
  }
#endif
}

// Prefetches the lines of [from, from + bytes), to read or to write soon.
inline void fetch(const void* from, int64_t bytes) {
  const auto* line = static_cast<const char*>(from);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i, 0, 2);
}
inline void claim(void* to, int64_t bytes) {
  // Not __builtin_prefetch: without -mprfchw it requests a line that others may share. Without such
  // an instruction, it does nothing.
  for (int64_t i = 0; i < bytes; i += 64) {
    __asm__ volatile("prefetchw %0" ::"m"(static_cast<char*>(to)[i]));
  }
}

inline float widen(bf16 value) {
  const uint32_t bits = uint32_t{value} << 16;
  return load_as<float>(&bits);
}
inline f32x16 widen(u16x16 value) {
  return (f32x16)(__builtin_convertvector(value, u32x16) << 16);
}
inline f32x16 load(const bf16* from) { return widen(load_as<u16x16>(from)); }

// gcc may not inline these in large callers. Always inlined, silu of a gated product takes 12 ns a
// vector, and took 105 before (AVX2, EPYC).
#define INLINE inline __attribute__((always_inline))

// A boolean for each of 16 lanes, for `select`, `bits_of` and `any`. For numbers in two registers
// gcc 12 compiles `?:` between its own vectors to sixteen comparisons, one after another.
#ifdef __AVX512F__
using Mask = __mmask16;
#else
struct Mask {
  __m256 half[2];
};
#endif

template <int kPredicate>  // _CMP_LT_OQ and its like
INLINE Mask compare(f32x16 a, f32x16 b) {
#ifdef __AVX512F__
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, kPredicate);
#else
  __m256 of[2][2];
  std::memcpy(of[0], &a, sizeof a);
  std::memcpy(of[1], &b, sizeof b);
  return {{_mm256_cmp_ps(of[0][0], of[1][0], kPredicate),
           _mm256_cmp_ps(of[0][1], of[1][1], kPredicate)}};
#endif
}
INLINE Mask less(f32x16 a, f32x16 b) { return compare<_CMP_LT_OQ>(a, b); }
INLINE Mask more(f32x16 a, f32x16 b) { return compare<_CMP_GT_OQ>(a, b); }
INLINE Mask at_least(f32x16 a, f32x16 b) { return compare<_CMP_GE_OQ>(a, b); }
INLINE Mask equal(f32x16 a, f32x16 b) { return compare<_CMP_EQ_OQ>(a, b); }
// Where either is NaN.
INLINE Mask unordered(f32x16 a, f32x16 b) { return compare<_CMP_UNORD_Q>(a, b); }
INLINE Mask is_nan(f32x16 a) { return unordered(a, a); }

// A bit for each lane, the first one's the lowest.
INLINE uint32_t bits_of(Mask mask) {
#ifdef __AVX512F__
  return mask;
#else
  return uint32_t(_mm256_movemask_ps(mask.half[0]) | _mm256_movemask_ps(mask.half[1]) << 8);
#endif
}
INLINE bool any(Mask mask) {
#ifdef __AVX512F__
  return mask != 0;
#else
  return _mm256_movemask_ps(_mm256_or_ps(mask.half[0], mask.half[1])) != 0;
#endif
}
// The lanes [first, last) of 16.
inline Mask lanes(int64_t first, int64_t last) {
  const auto from = int32_t(min(max<int64_t>(first, 0), int64_t{16}));
  const auto to = int32_t(min(max<int64_t>(last, 0), int64_t{16}));
#ifdef __AVX512F__
  return Mask(((1u << to) - 1) & ~((1u << from) - 1));
#else
  const i32x16 inside = (kLaneNumbers >= from) & (kLaneNumbers < to);
  return load_as<Mask>(&inside);
#endif
}

INLINE f32x16 select(Mask mask, f32x16 yes, f32x16 no) {
#ifdef __AVX512F__
  return (f32x16)_mm512_mask_blend_ps(mask, (__m512)no, (__m512)yes);
#else
  __m256 of[2][2];
  std::memcpy(of[0], &yes, sizeof yes);
  std::memcpy(of[1], &no, sizeof no);
  for (int i = 0; i < 2; i++) of[0][i] = _mm256_blendv_ps(of[1][i], of[0][i], mask.half[i]);
  return load_as<f32x16>(of[0]);
#endif
}

// To the nearest, ties to even; a NaN stays one.
inline bf16 narrow(float value) {
  const uint32_t bits = load_as<uint32_t>(&value);
  if (value != value) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
INLINE u16x16 narrow(f32x16 value) {
#ifdef __AVX512BF16__
  const __m256bh half = _mm512_cvtneps_pbh((__m512)value);
  return load_as<u16x16>(&half);
#else
  const u32x16 bits = (u32x16)value;
  const u32x16 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const u32x16 quiet = bits >> 16 | 0x40;
  return __builtin_convertvector(
      (u32x16)select(is_nan(value), (f32x16)quiet, (f32x16)rounded), u16x16);
#endif
}
inline void store(bf16* to, f32x16 value) {
  const u16x16 half = narrow(value);
  std::memcpy(to, &half, sizeof half);
}

#ifdef __AVX512F__
inline Mask first_lanes(int64_t count) { return Mask((1u << count) - 1); }
#endif

// The first `count` of 16, the rest 0; all from 16 on.
template <class T>
inline f32x16 load_first(const T* from, int64_t count) {
  if (count >= 16) return load(from);
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 4) return (f32x16)_mm512_maskz_loadu_ps(first_lanes(count), from);
  return widen((u16x16)_mm256_maskz_loadu_epi16(first_lanes(count), from));
#else
  T whole[16] = {};
  std::memcpy(whole, from, size_t(count) * sizeof(T));
  return load(whole);
#endif
}
inline u32x16 load_first(const uint32_t* from, int64_t count) {
  if (count >= 16) return load_as<u32x16>(from);
#ifdef __AVX512F__
  return (u32x16)_mm512_maskz_loadu_epi32(first_lanes(count), from);
#else
  u32x16 whole = {};
  std::memcpy(&whole, from, size_t(count) * sizeof(uint32_t));
  return whole;
#endif
}
// As above, the rest -inf.
inline f32x16 load_first_or_least(const float* from, int64_t count) {
  if (count >= 16) return load(from);
#ifdef __AVX512F__
  return (f32x16)_mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first_lanes(count), from);
#else
  float whole[16];
  for (int64_t i = 0; i < 16; i++) whole[i] = i < count ? from[i] : -INFINITY;
  return load(whole);
#endif
}
template <class T>
inline void store_first(T* to, f32x16 value, int64_t count) {
  if (count >= 16) return store(to, value);
#ifdef __AVX512F__
  const Mask first = first_lanes(count);
  if constexpr (sizeof(T) == 4) return _mm512_mask_storeu_ps(to, first, (__m512)value);
  _mm256_mask_storeu_epi16(to, first, (__m256i)narrow(value));
#else
  T whole[16];
  store(whole, value);
  std::memcpy(to, whole, size_t(count) * sizeof(T));
#endif
}

// Writes the numbers whose bit is set one after another; `to` may be anywhere up to the source of
// `value`, and has space for 16.
template <class V, class T>
inline void compress(V value, uint32_t bits, T* to) {
#ifdef __AVX512F__
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(bits), (__m512i)value));
#else
  for (; bits != 0; bits &= bits - 1) *to++ = value[__builtin_ctz(bits)];
#endif
}

INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#ifdef __AVX512F__
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}
INLINE f32x16 max(f32x16 a, f32x16 b) { return select(more(a, b), a, b); }
INLINE f32x16 min(f32x16 a, f32x16 b) { return select(less(a, b), a, b); }

// Over the 16 lanes.
inline float sum_of(f32x16 value) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)value);
#else
  float total = 0;
  for (int i = 0; i < 16; i++) total += value[i];
  return total;
#endif
}
inline float max_of(f32x16 value) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)value);
#else
  float most = value[0];
  for (int i = 1; i < 16; i++) most = value[i] > most ? value[i] : most;
  return most;
#endif
}

INLINE f32x16 round_nearest(f32x16 value) {
#ifdef __AVX512F__
  return (f32x16)_mm512_roundscale_ps((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23
  return (value + magic) - magic;
#endif
}

// e^x, relative error below 2e-7 where it is a normal number; 0 below, +inf above, NaN for NaN.
INLINE f32x16 exp(f32x16 x) {
  // The ends are 0 and +inf; for a number beyond them the remainder r would be meaningless.
  const f32x16 within = max(min(x, splat(89.0f)), splat(-104.0f));
  const f32x16 n = round_nearest(within * 1.44269504088896341f);
  f32x16 r = fma(n, splat(-0.693359375f), within);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
#ifdef __AVX512F__
  const f32x16 y = (f32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // 2^128 is not a float, so the last factor 2 is separate.
  const i32x16 power = (__builtin_convertvector(max(n, splat(-125.0f)), i32x16) + 126) << 23;
  const f32x16 scaled = p * (f32x16)power * 2.0f;
  const f32x16 y = select(less(within, splat(-87.3f)), f32x16{}, scaled);
#endif
  return select(is_nan(x), x, y);
}

#undef INLINE

}  // namespace batchdeck::LEVEL
