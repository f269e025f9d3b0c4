// Vectors of one register. Those of 16 floats are two registers of AVX2, and gcc 12 keeps
// long-lived ones in memory.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), aligned(4)));

// A vector's sum with zeros would be an addition, because 0 + -0 is 0.
inline Lanes broadcast(const float& value) {
#ifdef __AVX512F__
  return (Lanes)_mm512_set1_ps(value);
#else
  return (Lanes)_mm256_broadcast_ss(&value);
#endif
}

inline Lanes load_lanes(const float* from) { return load_as<Lanes>(from); }
inline Lanes load_lanes(const bf16* from) {
#ifdef __AVX512F__
  return (Lanes)((Words)_mm512_cvtepu16_epi32(load_as<__m256i>(from)) << 16);
#else
  return (Lanes)((Words)_mm256_cvtepu16_epi32(load_as<__m128i>(from)) << 16);
#endif
}
// Not by std::memcpy, which gcc 12 may implement by the stack and registers of 8 bytes.
inline void store_lanes(float* to, Lanes value) {
#ifdef __AVX512F__
  _mm512_storeu_ps(to, (__m512)value);
#else
  _mm256_storeu_ps(to, (__m256)value);
#endif
}

inline void store_words(void* to, Words value) { store_lanes(static_cast<float*>(to), (Lanes)value); }

// The nearest integers, ties to even, of numbers in the range of int32_t.
inline Ints whole_of(Lanes value) {
#ifdef __AVX512F__
  return (Ints)_mm512_cvtps_epi32((__m512)value);
#else
  return (Ints)_mm256_cvtps_epi32((__m256)value);
#endif
}
inline Ints max(Ints a, Ints b) {
#ifdef __AVX512F__
  return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
  return (Ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
}

// Over the lanes of a register.
inline int32_t max_of(Ints value) {
#ifdef __AVX512F__
  return _mm512_reduce_max_epi32((__m512i)value);
#else
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128((__m256i)value),
                               _mm256_extracti128_si256((__m256i)value, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
#endif
}
inline int32_t sum_of(Ints value) {
#ifdef __AVX512F__
  return _mm512_reduce_add_epi32((__m512i)value);
#else
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)value),
                               _mm256_extracti128_si256((__m256i)value, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
#endif
}

}  // namespace batchdeck::LEVEL
