// Rows of x as integers.
#pragma once

#include <cfloat>
#include <type_traits>

#include "lanes.hpp"
#include "share.hpp"

namespace batchdeck::LEVEL {

// The type of x's codes in products. With VNNI four codes of a byte are adjacent, in planes of
// upper and of lower bytes. Without, products are of 16 bits, and so are codes, in the order (0, 2,
// 1, 3), like the even and the odd bytes of a weight's four: products of bytes, whose sums of 16
// bits overflow after a few, compute two thirds as many (32 rows of Q4_0, two Zen 5 cores limited
// to AVX2).
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
using CodeOf = int8_t;
#else
using CodeOf = int16_t;
#endif
constexpr int64_t kPlanes = kCodeBytes / int64_t(sizeof(CodeOf));

constexpr int64_t kCodeRowsPiece = 1 << 13;  // numbers

inline int64_t code_rows_pieces(const CodeRowsArgs& args, int) {
  return row_pieces(args.rows, args.width, kCodeRowsPiece);
}

// body(numbers, i) for each register of [count] numbers; the last is padded with zeros.
template <class T, class F>
inline void each_register(const T* x, int64_t count, const F& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(load_lanes(x + i), i);
  if (i == count) return;
  T last[kLanes] = {};
  std::memcpy(last, x + i, size_t(count - i) * sizeof(T));
  body(load_lanes(last), i);
}

#ifdef __AVX512F__
inline void store_codes(int8_t* to, Ints whole) {
  const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)whole);
  std::memcpy(to, &bytes, sizeof bytes);
}
#else
// `order` lists the bytes of each four numbers to keep, first.
template <class Code>
inline void store_codes(Code* to, Ints whole, __m128i order) {
  const __m256i codes = _mm256_shuffle_epi8((__m256i)whole, _mm256_broadcastsi128_si256(order));
  const __m128i half[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
  for (int i = 0; i < 2; i++) std::memcpy(to + 4 * i, &half[i], 4 * sizeof(Code));
}
inline void store_codes(int8_t* to, Ints whole) {
  store_codes(to, whole, _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
}
inline void store_codes(int16_t* to, Ints whole) {
  store_codes(to, whole, _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
}
#endif

// The codes of a register, from index `i` on: planes are `stride` codes apart.
#ifndef __AVX512F__
inline void put_codes(int16_t* codes, int64_t, int64_t i, Ints whole) { store_codes(codes + i, whole); }
#endif
inline void put_codes(int8_t* codes, int64_t stride, int64_t i, Ints whole) {
  const Ints upper = (whole + 64) >> 7;
  store_codes(codes + i, upper);
  store_codes(codes + stride + i, whole - (upper << 7));
}

// [count] numbers, at most a group, as codes.
template <class T, class Code>
inline CodedGroup code_group(const T* x, int64_t count, int64_t group, Code* codes, int64_t stride) {
  // Absolute values are ordered like their bits, NaN the last.
  Ints most = {};
  each_register(x, count, [&](Lanes value, int64_t) { most = max(most, (Ints)value & 0x7fffffff); });
  const int32_t bits = max_of(most);
  const auto greatest = load_as<float>(&bits);
  const bool is_finite = greatest < INFINITY;
  // Numbers so small that kMostCode over them overflows become 0.
  if (!is_finite || greatest <= kMostCode / FLT_MAX) {
    for (int64_t i = 0; i < group; i += kLanes) put_codes(codes, stride, i, Ints{});
    return {is_finite ? 0 : NAN, 0};
  }
  const Lanes inverse = broadcast(kMostCode / greatest);
  Ints sums = {};
  each_register(x, count, [&](Lanes value, int64_t i) {
    const Ints whole = whole_of(value * inverse);
    sums += whole;
    put_codes(codes, stride, i, whole);
  });
  for (int64_t i = round_up(count, kLanes); i < group; i += kLanes) put_codes(codes, stride, i, Ints{});
  return {greatest / kMostCode, sum_of(sums)};
}

template <class T, class Code>
inline void code_share(const CodeRowsArgs& args, Share share) {
  for (int64_t row = share.first; row < share.last; row++) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* codes = reinterpret_cast<Code*>(args.codes + row * args.stride * kCodeBytes);
    CodedGroup* groups = args.groups + row * args.groups_stride;
    for (int64_t k = 0; k < args.width; k += args.group, groups++) {
      *groups = code_group(x + k, min(args.group, args.width - k), args.group, codes + k, args.stride);
    }
  }
}

template <class Code>
inline void code_rows_as(const CodeRowsArgs& args, Share share) {
  if (args.dtype == DType::f32) return code_share<float, Code>(args, share);
  code_share<bf16, Code>(args, share);
}

inline void code_rows(const CodeRowsArgs& args, int threads, int64_t piece, Scratch&) {
  const Share share = share_of(args.rows, code_rows_pieces(args, threads), piece);
  code_rows_as<CodeOf>(args, share);
}

}  // namespace batchdeck::LEVEL
