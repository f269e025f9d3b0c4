// Products of a few rows of x and one panel of quantized weights, in whole numbers.
//
// multiply_codes(x, x_stride, x_groups, groups_stride, rows, weight, q, count, first, c, ahead):
// c[rows][kPanel] += x W^T over `count` groups, from 0 where `first`; a row of x is kPlanes of codes,
// x_stride from each other; rows are at most kCodeRowsAtOnce: in vectors, or many of them in tiles of bytes, where the processor has any (AMX). Within a group sums
// are exact; groups are added in their order, in float32, whatever else is computed beside them.
#pragma once

#include "codes.hpp"
#include "multiply.hpp"
#include "multiply_tiles.hpp"

namespace batchdeck::LEVEL {

// In vectors. A row takes two registers for the sums of a group and plane, and two for the totals, which in
// groups of 32 is worth more than more rows would be: their totals would be loaded and stored with each group.
#ifdef __AVX512VNNI__
constexpr int64_t kCodeRows = 4;
#else
constexpr int64_t kCodeRows = kPlanes == 2 ? 2 : 3;
#endif

// Four codes of each of kLanes outputs, as they are multiplied.
struct Quads {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  explicit Quads(Words bytes) : bytes(bytes) {}
  Ints dot(Ints sums, const int8_t* x) const {
    const Words four = Words{} + load_as<uint32_t>(x);
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)four);
#else
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)bytes, (__m256i)four);
#endif
  }
  Words bytes;
#else
  explicit Quads(Words bytes)
      : even(bytes & 0x00ff00ff), odd((Words)_mm256_srli_epi16((__m256i)bytes, 8)) {}
  Ints dot(Ints sums, const int16_t* x) const {
    const Words first = Words{} + load_as<uint32_t>(x), second = Words{} + load_as<uint32_t>(x + 2);
    return sums + (Ints)_mm256_madd_epi16((__m256i)even, (__m256i)first) +
           (Ints)_mm256_madd_epi16((__m256i)odd, (__m256i)second);
  }
  Words even, odd;
#endif
};

// The upper bits of quad j of a word (kernels.hpp), where they belong in a byte.
template <Coding C>
inline Words upper_bits(Words word, int64_t j) {
  constexpr int kUpper = int(bits_of(C)) - 4;
  constexpr uint32_t kMask = 0x10101010u * ((1 << kUpper) - 1);
  const int64_t shift = kUpper * j - 4;
  return (shift < 0 ? word << uint32_t(-shift) : word >> uint32_t(shift)) & kMask;
}

inline Lanes load_half(const uint16_t* from) {
#ifdef __AVX512F__
  return (Lanes)_mm512_cvtph_ps(load_as<__m256i>(from));
#else
  return (Lanes)_mm256_cvtph_ps(load_as<__m128i>(from));
#endif
}

// The scales and zeros of a group, for kLanes outputs from `at` on.
struct GroupScales {
  GroupScales(const Quantization& q, const uint16_t* scales, int64_t at)
      : scale(load_half(scales + at)), has_zeros(q.has_zeros) {
    if (has_zeros) zero = load_half(scales + kPanel + at);
  }
  // What was there before, and sums of codes, less those with the zero in the middle.
  Lanes added(Lanes before, Ints sums, const CodedGroup& x) const {
    Lanes sum = __builtin_convertvector(sums, Lanes);
    if (has_zeros) sum -= zero * float(x.sum);
    return before + sum * scale * broadcast(x.scale);
  }

  Lanes scale, zero = {};
  bool has_zeros;
};

template <int R, Coding C>
__attribute__((noinline)) void multiply_code_rows(const CodeOf* x, int64_t x_stride,
                                                  const CodedGroup* x_groups, int64_t groups_stride,
                                                  const uint8_t* weight, const Quantization& q,
                                                  int64_t count, bool first, float* c,
                                                  const Ahead& ahead) {
  constexpr int kCodes = R * int(kPlanes);
  constexpr bool kIsByte = C == Coding::int8;
  constexpr bool kHasUpper = bits_of(C) == 5 || bits_of(C) == 6;
  constexpr int64_t kFeatures = kIsByte ? 4 : 8;  // of a pair of lines
  constexpr int64_t kPairsAWord = unit_of(C) / kFeatures;
  constexpr int64_t kAtOnce = kHasUpper ? kPairsAWord : 1;  // pairs that are unrolled: those of a word
  const int64_t pairs = q.group / kFeatures, bytes = group_bytes(q);
  const Ahead mine = ahead;
  for (int strip = 0; strip < kStrips; strip++) {
    const int64_t at = strip * kPair * kLanes;
    Lanes totals[R][kPair];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < kPair; v++) {
        totals[r][v] = Lanes{};
        if (!first) totals[r][v] = load_as<Lanes>(c + r * kPanel + at + v * kLanes);
      }
    }
    const CodeOf* of_x = x;
    const CodedGroup* x_group = x_groups;
    const uint8_t* codes = weight;
    for (int64_t group = 0; group < count; group++, codes += bytes, of_x += q.group, x_group++) {
      // Of each plane of each row; the last one of a row begins with what the zero takes away.
      Ints sums[kCodes][kPair];
#pragma GCC unroll 16
      for (int r = 0; r < kCodes; r++) {
        const bool is_last = r % kPlanes == kPlanes - 1;
        const int32_t sum =
            q.has_zeros || !is_last ? 0 : middle_of(C) * x_group[r / kPlanes * groups_stride].sum;
        for (int v = 0; v < kPair; v++) sums[r][v] = Ints{} - sum;
      }
      const auto add = [&](Ints(&part)[kCodes][kPair], const Quads(&quads)[kPair], const CodeOf* from)
                           __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int r = 0; r < kCodes; r++) {
          for (int v = 0; v < kPair; v++) part[r][v] = quads[v].dot(part[r][v], from + r * x_stride);
        }
      };
      // Words of upper bits lie behind the pairs of lines.
      const auto multiply = [&](Ints(&part)[kCodes][kPair], int64_t pair, int64_t of_word, const Words(&upper)[kPair])
                                __attribute__((always_inline)) {
        mine.ask(group * (pairs + 1) + pair, strip);
        Words w[kPair];
        for (int v = 0; v < kPair; v++) {
          w[v] = load_as<Words>(codes + pair * 4 * kPanel + 4 * (at + v * kLanes));
        }
        const CodeOf* from = of_x + pair * kFeatures;
        if constexpr (kIsByte) {
          add(part, {Quads(w[0]), Quads(w[1])}, from);
        } else {
          Words low[kPair], high[kPair];
          for (int v = 0; v < kPair; v++) {
            low[v] = w[v] & 0x0f0f0f0f;
            if constexpr (kHasUpper) low[v] |= upper_bits<C>(upper[v], 2 * of_word);
          }
          add(part, {Quads(low[0]), Quads(low[1])}, from);
          for (int v = 0; v < kPair; v++) {
            high[v] = w[v] >> 4 & 0x0f0f0f0f;
            if constexpr (kHasUpper) high[v] |= upper_bits<C>(upper[v], 2 * of_word + 1);
          }
          add(part, {Quads(high[0]), Quads(high[1])}, from + 4);
        }
      };
      for (int64_t pair = 0; pair < pairs; pair += kAtOnce) {
        Words upper[kPair] = {};
        if constexpr (kHasUpper) {
          const uint8_t* words = codes + (pairs + pair / kPairsAWord) * 4 * kPanel;
          for (int v = 0; v < kPair; v++) upper[v] = load_as<Words>(words + 4 * (at + v * kLanes));
        }
        if constexpr (kAtOnce == 1) {
          multiply(sums, pair, 0, upper);
        } else {
#pragma GCC unroll 4
          for (int64_t i = 0; i < kAtOnce; i++) multiply(sums, pair + i, i, upper);
        }
      }
      const auto* scales =
          reinterpret_cast<const uint16_t*>(codes + kPanel * q.group * bits_of(C) / 8);
#pragma GCC unroll 16
      for (int v = 0; v < kPair; v++) {
        const GroupScales of_group(q, scales, at + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          Ints sum = sums[r * kPlanes][v];
          if constexpr (kPlanes == 2) sum = (sum << 7) + sums[2 * r + 1][v];
          totals[r][v] = of_group.added(totals[r][v], sum, x_group[r * groups_stride]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < kPair; v++) {
        std::memcpy(c + r * kPanel + at + v * kLanes, &totals[r][v], sizeof totals[r][v]);
      }
    }
  }
}

template <Coding C, int R = kCodeRows>
inline void multiply_codes_in_vectors(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                                      int64_t groups_stride, int64_t rows, const uint8_t* weight,
                                      const Quantization& q, int64_t count, bool first, float* c,
                                      const Ahead& ahead) {
  if constexpr (R > 1) {
    if (rows < R) {
      return multiply_codes_in_vectors<C, R - 1>(x, x_stride, x_groups, groups_stride, rows, weight, q,
                                                 count, first, c, ahead);
    }
  }
  multiply_code_rows<R, C>(x, x_stride, x_groups, groups_stride, weight, q, count, first, c, ahead);
}

#ifdef __AMX_INT8__
// Tiles of upper bytes, and of lower ones where the other half of the rows would be.
constexpr int64_t kCodeRowsAtOnce = kTileRows / 2;

// [depth / 4][kPanel][4 of k] codes of a byte, of `depth` features from `first` on.
template <Coding C>
inline const uint8_t* bytes_of(const uint8_t* group, int64_t features, int64_t first, int64_t depth,
                               uint8_t* memory) {
  constexpr int64_t kLine = kPanel * 4;
  if (C == Coding::int8) return group + first / 4 * kLine;
  constexpr int64_t kPairsAWord = unit_of(C) / 8;
  const uint8_t *codes = group + first / 8 * kLine, *words = group + features / 8 * kLine;
  for (int64_t pair = 0; pair < depth / 8; pair++) {
    // Of eight features the first four are a line of the panel, and the last four the next one.
    uint8_t* to = memory + pair * 2 * kLine;
    const int64_t of_all = first / 8 + pair;
    for (int64_t at = 0; at < kLine; at += 64) {
      const auto both = load_as<Words>(codes + pair * kLine + at);
      Words lower = both & 0x0f0f0f0f, upper = both >> 4 & 0x0f0f0f0f;
      if constexpr (bits_of(C) == 5 || bits_of(C) == 6) {
        const auto word = load_as<Words>(words + of_all / kPairsAWord * kLine + at);
        lower |= upper_bits<C>(word, of_all % kPairsAWord * 2);
        upper |= upper_bits<C>(word, of_all % kPairsAWord * 2 + 1);
      }
      std::memcpy(to + at, &lower, sizeof lower);
      std::memcpy(to + kLine + at, &upper, sizeof upper);
    }
  }
  return memory;
}

// As in vectors, to the bit.
template <Coding C>
inline void multiply_codes_in_tiles(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                                    int64_t groups_stride, int64_t rows, const uint8_t* weight,
                                    const Quantization& q, int64_t count, bool first, float* c,
                                    const Ahead& ahead) {
  constexpr int64_t kLine = kPanel * 4;  // bytes of a panel's four features
  const int64_t depth = q.group % 64 == 0 ? 64 : q.group % 32 == 0 ? 32 : 16;
  const int64_t steps = q.group / depth;
  alignas(64) int32_t sums[kTileRows * kPanel];
  alignas(64) uint8_t memory[16 * kLine];
  const int64_t asked = ceil_div(group_bytes(q), 128);
  shape_tiles(rows, rows, depth);
  for (int64_t group = 0; group < count; group++, x += q.group, x_groups++) {
    for (int64_t i = 0; i < asked; i++) ahead.ask(group * asked + i, 0);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; step++) {
      const uint8_t* codes = bytes_of<C>(weight, q.group, step * depth, depth, memory);
      const CodeOf* from = x + step * depth;
      _tile_loadd(6, codes, kLine);
      _tile_loadd(7, codes + 64, kLine);
      _tile_loadd(4, from, 2 * x_stride);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
      _tile_loadd(5, from + x_stride, 2 * x_stride);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    constexpr int64_t kRow = kPanel * sizeof(int32_t);
    _tile_stored(0, sums, kRow);
    _tile_stored(1, sums + 16, kRow);
    _tile_stored(2, sums + 16 * kPanel, kRow);
    _tile_stored(3, sums + 16 * kPanel + 16, kRow);
    const auto* scales =
        reinterpret_cast<const uint16_t*>(weight + kPanel * q.group * bits_of(C) / 8);
    for (int64_t at = 0; at < kPanel; at += kLanes) {
      const GroupScales of_group(q, scales, at);
      for (int64_t r = 0; r < rows; r++) {
        const CodedGroup& of_row = x_groups[r * groups_stride];
        const int32_t middle = q.has_zeros ? 0 : middle_of(C) * of_row.sum;
        float* to = c + r * kPanel + at;
        Lanes before = {};
        if (!first || group > 0) before = load_as<Lanes>(to);
        const auto upper = load_as<Ints>(sums + r * kPanel + at);
        const auto lower = load_as<Ints>(sums + (16 + r) * kPanel + at);
        before = of_group.added(before, (upper << 7) + (lower - middle), of_row);
        std::memcpy(to, &before, sizeof before);
      }
    }
    weight += group_bytes(q);
  }
  _tile_release();
}
#else
constexpr int64_t kCodeRowsAtOnce = kCodeRows;
#endif

// Of at most kCodeRowsAtOnce rows.
template <Coding C>
inline void multiply_codes(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                           int64_t groups_stride, int64_t rows, const uint8_t* weight,
                           const Quantization& q, int64_t count, bool first, float* c,
                           const Ahead& ahead) {
#ifdef __AMX_INT8__
  if (rows > kCodeRows) {
    return multiply_codes_in_tiles<C>(x, x_stride, x_groups, groups_stride, rows, weight, q, count,
                                      first, c, ahead);
  }
#endif
  multiply_codes_in_vectors<C>(x, x_stride, x_groups, groups_stride, rows, weight, q, count, first, c,
                               ahead);
}

}  // namespace batchdeck::LEVEL
