// Products of a few rows of x and one panel of quantized weights, in whole numbers.
//
// multiply_codes(x, x_stride, x_groups, groups_stride, rows, weight, q, count, first, c, ahead):
// c[rows][kPanel] += x W^T over `count` groups, from 0 where `first`; rows are at most kCodeRows. Within
// a group sums are exact; groups are added in their order, in float32, whatever else is computed
// beside them.
#pragma once

#include "codes.hpp"
#include "multiply.hpp"

namespace batchdeck::LEVEL {

// With AVX-512 sums, weights and x take 31 of 32 registers; without, 14 of 16, for weights of 16 bits take
// more.
#if defined(__AVX512VNNI__)
constexpr int64_t kCodeRows = 12;
#elif defined(__AVXVNNI__)
constexpr int64_t kCodeRows = 6;
#else
constexpr int64_t kCodeRows = 4;
#endif

// Four codes of each of kLanes outputs, as they are multiplied.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
struct Quads {
  explicit Quads(Words bytes) : bytes(bytes) {}
  Ints dot(Ints sums, const Code* x) const {
    const Words four = Words{} + load_as<uint32_t>(x);
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)four);
#else
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)bytes, (__m256i)four);
#endif
  }
  Words bytes;
};
#else
struct Quads {
  explicit Quads(Words bytes)
      : even(bytes & 0x00ff00ff), odd((Words)_mm256_srli_epi16((__m256i)bytes, 8)) {}
  Ints dot(Ints sums, const Code* x) const {
    const Words first = Words{} + load_as<uint32_t>(x), second = Words{} + load_as<uint32_t>(x + 2);
    return sums + (Ints)_mm256_madd_epi16((__m256i)even, (__m256i)first) +
           (Ints)_mm256_madd_epi16((__m256i)odd, (__m256i)second);
  }
  Words even, odd;
};
#endif

inline Lanes load_half(const uint16_t* from) {
#ifdef __AVX512F__
  return (Lanes)_mm512_cvtph_ps(load_as<__m256i>(from));
#else
  return (Lanes)_mm256_cvtph_ps(load_as<__m128i>(from));
#endif
}

template <int R, Coding C>
__attribute__((noinline)) void multiply_code_rows(const Code* x, int64_t x_stride,
                                                  const CodedGroup* x_groups, int64_t groups_stride,
                                                  const uint8_t* weight, const Quantization& q,
                                                  int64_t count, bool first, float* c,
                                                  const Ahead& ahead) {
  constexpr int64_t kFeatures = C == Coding::int8 ? 4 : 8;  // of a pair of lines
  const int64_t pairs = q.group / kFeatures, bytes = group_bytes(q);
  const bool has_zeros = q.has_zeros;
  const Ahead mine = ahead;
  for (int64_t group = 0; group < count; group++, weight += bytes, x += q.group, x_groups++) {
    const auto* scales = reinterpret_cast<const uint16_t*>(weight + pairs * 4 * kPanel);
    const bool is_first = first && group == 0;
    for (int strip = 0; strip < kStrips; strip++) {
      const int64_t at = strip * kPair * kLanes;
      Ints sums[R][kPair];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const int32_t sum = has_zeros ? 0 : middle_of(C) * x_groups[r * groups_stride].sum;
        for (int v = 0; v < kPair; v++) sums[r][v] = Ints{} - sum;
      }
      for (int64_t pair = 0; pair < pairs; pair++) {
        mine.ask(group * (pairs + 1) + pair, strip);
        Words w[kPair];
        for (int v = 0; v < kPair; v++) {
          w[v] = load_as<Words>(weight + pair * 4 * kPanel + 4 * (at + v * kLanes));
        }
        const Code* from = x + pair * kFeatures;
        if constexpr (C == Coding::int8) {
          const Quads quads[kPair] = {Quads(w[0]), Quads(w[1])};
#pragma GCC unroll 16
          for (int r = 0; r < R; r++) {
            for (int v = 0; v < kPair; v++) sums[r][v] = quads[v].dot(sums[r][v], from + r * x_stride);
          }
        } else {
          const Quads lower[kPair] = {Quads(w[0] & 0x0f0f0f0f), Quads(w[1] & 0x0f0f0f0f)};
#pragma GCC unroll 16
          for (int r = 0; r < R; r++) {
            for (int v = 0; v < kPair; v++) sums[r][v] = lower[v].dot(sums[r][v], from + r * x_stride);
          }
          const Quads upper[kPair] = {Quads(w[0] >> 4 & 0x0f0f0f0f), Quads(w[1] >> 4 & 0x0f0f0f0f)};
#pragma GCC unroll 16
          for (int r = 0; r < R; r++) {
            for (int v = 0; v < kPair; v++) {
              sums[r][v] = upper[v].dot(sums[r][v], from + r * x_stride + 4);
            }
          }
        }
      }
#pragma GCC unroll 16
      for (int v = 0; v < kPair; v++) {
        const Lanes scale = load_half(scales + at + v * kLanes);
        Lanes zero = {};
        if (has_zeros) zero = load_half(scales + kPanel + at + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const CodedGroup& of_row = x_groups[r * groups_stride];
          Lanes sum = __builtin_convertvector(sums[r][v], Lanes);
          if (has_zeros) sum -= zero * float(of_row.sum);
          float* to = c + r * kPanel + at + v * kLanes;
          Lanes before = {};
          if (!is_first) before = load_as<Lanes>(to);
          before += sum * scale * broadcast(of_row.scale);
          std::memcpy(to, &before, sizeof before);
        }
      }
    }
  }
}

template <Coding C, int R = kCodeRows>
inline void multiply_codes(const Code* x, int64_t x_stride, const CodedGroup* x_groups,
                           int64_t groups_stride, int64_t rows, const uint8_t* weight,
                           const Quantization& q, int64_t count, bool first, float* c,
                           const Ahead& ahead) {
  if constexpr (R > 1) {
    if (rows < R) {
      return multiply_codes<C, R - 1>(x, x_stride, x_groups, groups_stride, rows, weight, q, count,
                                      first, c, ahead);
    }
  }
  multiply_code_rows<R, C>(x, x_stride, x_groups, groups_stride, weight, q, count, first, c, ahead);
}

}  // namespace batchdeck::LEVEL
