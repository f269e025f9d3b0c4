// Products of rows of x and one panel of quantized weights, in integers.
//
// A row of x is kPlanes of codes, x_stride from each other. c[rows][kPanel] += x W^T over `count`
// groups, from 0 where `first`. Within a group sums are exact; groups are added in their order, in
// float32, whatever else is computed beside them. So all of these give the same, to the bit:
// - multiply_packed: up to kPackedRows rows, which unpack what they multiply as they go: memory is
//   the limit.
// - multiply_opened: up to kOpenedRows rows, with weights that `open_codes` has unpacked for all
//   rows: in vectors, or in tiles of bytes where the processor has any (AMX).
#pragma once

#include "codes.hpp"
#include "multiply.hpp"
#include "multiply_tiles.hpp"

namespace batchdeck::LEVEL {

// Rows that multiply packed weights at once: a row takes two registers for the sums of a group and
// plane, and two for the totals.
#ifdef __AVX512VNNI__
constexpr int64_t kPackedRows = 4;
#else
constexpr int64_t kPackedRows = kPlanes == 2 ? 2 : 3;
#endif

template <Coding C>
constexpr bool kHasUpper = bits_of(C) == 5 || bits_of(C) == 6;

// Panels are opened for more rows than these. A Zen 5 core then multiplies 83 numbers a nanosecond
// instead of 45 at AVX2 (512 rows of Q5_0, 896 -> 9728), where products that find all in L1 make
// 112, and 95 instead of 70 with AVX-VNNI. Codes without upper bits are unpacked as fast as they
// are opened, which does not pay off for few rows. With AVX-512 it never does: it has ports to
// spare beside the products, and opened, 512 rows took 3 % longer and 8 rows 9 %.
template <Coding C>
#ifdef __AMX_INT8__
constexpr int64_t kFewRows = kPackedRows;
#elif defined(__AVX512F__)
constexpr int64_t kFewRows = std::numeric_limits<int64_t>::max();
#else
constexpr int64_t kFewRows = kHasUpper<C> ? 2 : kPlanes == 1 ? 3 : 8;
#endif

// Adjacent codes, in four bytes, whose products an instruction sums.
constexpr int64_t kBeside = 4 / int64_t(sizeof(CodeOf));

inline Ints add_products(Ints sums, Words weights, Words x) {
#ifdef __AVX512VNNI__
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
#else
  return sums + (Ints)_mm256_madd_epi16((__m256i)weights, (__m256i)x);
#endif
}
inline Words four_bytes(const CodeOf* x) { return Words{} + load_as<uint32_t>(x); }

// Four codes of each of kLanes outputs, in the form for products.
struct Quads {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  explicit Quads(Words bytes) : parts{bytes} {}
#else
  explicit Quads(Words bytes) : parts{bytes & 0x00ff00ff, (Words)_mm256_srli_epi16((__m256i)bytes, 8)} {}
#endif
  Ints dot(Ints sums, const CodeOf* x) const {
    for (int i = 0; i < kParts; i++) sums = add_products(sums, parts[i], four_bytes(x + i * kBeside));
    return sums;
  }
  static constexpr int kParts = 4 / int(kBeside);
  Words parts[kParts];
};

// The upper bits of quad j of a word (kernels.hpp), at their place in a byte.
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

// The scales and zeros of a group, for kLanes outputs.
struct GroupScales {
  // Scales [kPanel] and zeros [kPanel], from an output on: packed, or opened.
  template <class T>
  GroupScales(const Quantization& q, const T* scales) : scale(widened(scales)), has_zeros(q.has_zeros) {
    if (has_zeros) zero = widened(scales + kPanel);
  }
  // The previous value plus sums of codes, less those with the zero in the middle.
  Lanes added(Lanes before, Ints sums, const CodedGroup& x) const {
    Lanes sum = __builtin_convertvector(sums, Lanes);
    if (has_zeros) sum -= zero * __builtin_convertvector(Ints{} + x.sum, Lanes);
    return before + sum * scale * broadcast(x.scale);
  }

  static Lanes widened(const uint16_t* from) { return load_half(from); }
  static Lanes widened(const float* from) { return load_lanes(from); }

  Lanes scale, zero = {};
  bool has_zeros;
};

template <int R, Coding C>
__attribute__((noinline)) void multiply_packed_rows(const CodeOf* x, int64_t x_stride,
                                                    const CodedGroup* x_groups, int64_t groups_stride,
                                                    const uint8_t* weight, const Quantization& q,
                                                    int64_t count, bool first, float* c,
                                                    const Ahead& ahead) {
  constexpr int kCodes = R * int(kPlanes);
  constexpr bool kIsByte = C == Coding::int8;
  constexpr int64_t kFeatures = kIsByte ? 4 : 8;  // of a pair of lines
  constexpr int64_t kPairsAWord = unit_of(C) / kFeatures;
  constexpr int64_t kAtOnce = kHasUpper<C> ? kPairsAWord : 1;  // pairs that are unrolled: those of a word
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
      // For each plane of each row; a row's last one begins with the zero's part subtracted.
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
      // Words of upper bits follow the pairs of lines.
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
            if constexpr (kHasUpper<C>) low[v] |= upper_bits<C>(upper[v], 2 * of_word);
          }
          add(part, {Quads(low[0]), Quads(low[1])}, from);
          for (int v = 0; v < kPair; v++) {
            high[v] = w[v] >> 4 & 0x0f0f0f0f;
            if constexpr (kHasUpper<C>) high[v] |= upper_bits<C>(upper[v], 2 * of_word + 1);
          }
          add(part, {Quads(high[0]), Quads(high[1])}, from + 4);
        }
      };
      for (int64_t pair = 0; pair < pairs; pair += kAtOnce) {
        Words upper[kPair] = {};
        if constexpr (kHasUpper<C>) {
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
        const GroupScales of_group(q, scales + at + v * kLanes);
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

template <Coding C, int R = kPackedRows>
inline void multiply_packed(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                            int64_t groups_stride, int64_t rows, const uint8_t* weight,
                            const Quantization& q, int64_t count, bool first, float* c,
                            const Ahead& ahead) {
  if constexpr (R > 1) {
    if (rows < R) {
      return multiply_packed<C, R - 1>(x, x_stride, x_groups, groups_stride, rows, weight, q, count, first,
                                       c, ahead);
    }
  }
  multiply_packed_rows<R, C>(x, x_stride, x_groups, groups_stride, weight, q, count, first, c, ahead);
}

// Groups of a panel, unpacked.
struct Opened {
  const uint8_t* codes;  // [groups] of [group / kBeside][kPanel] codes for `add_products`,
  int64_t bytes;         // distance of groups
  const float* scales;   // [groups][scales, and zeros where there are some][kPanel]
};

// Signed codes of 16 bits have the middle subtracted.
constexpr bool kIsCentred = kBeside == 2;
// Bytes are multiplied as packed.
template <Coding C>
constexpr bool kIsOpen = C == Coding::int8 && kBeside == 4;

constexpr int64_t opened_scales(const Quantization& q) { return kPanel * (q.has_zeros ? 2 : 1); }

template <Coding C>
constexpr int64_t opened_codes(const Quantization& q) {
  return kIsOpen<C> ? 0 : q.group * kPanel * int64_t(sizeof(CodeOf));
}
template <Coding C>
constexpr int64_t opened_bytes(const Quantization& q, int64_t groups) {
  return groups * (opened_codes<C>(q) + opened_scales(q) * int64_t(sizeof(float)));
}

// Stores four codes of each of kLanes outputs, less `middle`, among opened ones.
inline void put_opened(uint8_t* to, Words bytes, int middle) {
  typedef int16_t Shorts __attribute__((vector_size(sizeof(Words))));
  const Quads quads(bytes);
#pragma GCC unroll 2
  for (int i = 0; i < Quads::kParts; i++) {
    Words part = quads.parts[i];
    if (kIsCentred) part = (Words)((Shorts)part - int16_t(middle));
    store_words(to + i * 4 * kPanel, part);
  }
}

// Into memory of opened_bytes.
template <Coding C>
__attribute__((noinline)) Opened open_codes(const uint8_t* weight, const Quantization& q, int64_t count,
                                            void* memory) {
  constexpr int64_t kLine = 4 * kPanel, kFeatures = C == Coding::int8 ? 4 : 8;  // of a line of packed codes
  constexpr int64_t kAtOnce = kHasUpper<C> ? unit_of(C) / kFeatures : 1;        // lines: those of a word
  constexpr int64_t kQuad = kLine * Quads::kParts;
  const int64_t lines = q.group / kFeatures, step = group_bytes(q);
  const int middle = q.has_zeros ? 0 : middle_of(C);
  auto* scales = static_cast<float*>(memory);
  auto* codes = static_cast<uint8_t*>(memory) + count * opened_scales(q) * int64_t(sizeof(float));
  const Opened opened = kIsOpen<C> ? Opened{weight, step, scales} : Opened{codes, opened_codes<C>(q), scales};
  for (int64_t group = 0; group < count; group++, weight += step) {
    const uint8_t* words = weight + lines * kLine;
    for (int64_t line = 0; line < lines && !kIsOpen<C>; line += kAtOnce, words += kLine) {
      for (int64_t at = 0; at < kLine; at += int64_t(sizeof(Words))) {
        Words word = {};
        if constexpr (kHasUpper<C>) word = load_as<Words>(words + at);
#pragma GCC unroll 4
        for (int64_t i = 0; i < kAtOnce; i++) {
          const auto packed = load_as<Words>(weight + (line + i) * kLine + at);
          if constexpr (C == Coding::int8) {
            put_opened(codes + at, packed, middle);
          } else {
            Words lower = packed & 0x0f0f0f0f, upper = packed >> 4 & 0x0f0f0f0f;
            if constexpr (kHasUpper<C>) lower |= upper_bits<C>(word, 2 * i);
            if constexpr (kHasUpper<C>) upper |= upper_bits<C>(word, 2 * i + 1);
            put_opened(codes + 2 * i * kQuad + at, lower, middle);
            put_opened(codes + (2 * i + 1) * kQuad + at, upper, middle);
          }
        }
      }
      codes += kAtOnce * kFeatures / 4 * kQuad;
    }
    const auto* halves = reinterpret_cast<const uint16_t*>(weight + kPanel * q.group * bits_of(C) / 8);
    for (int64_t at = 0; at < opened_scales(q); at += kLanes, scales += kLanes) {
      store_lanes(scales, load_half(halves + at));
    }
  }
  return opened;
}

#ifdef __AMX_INT8__
// Tiles of upper bytes, and of lower ones in place of the other half of the rows.
constexpr int64_t kOpenedRows = kTileRows / 2;

template <Coding C>
inline void multiply_opened(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                            int64_t groups_stride, int64_t rows, const Opened& opened,
                            const Quantization& q, int64_t count, bool first, float* c,
                            const Ahead& ahead) {
  constexpr int64_t kLine = kPanel * 4;  // bytes of a panel's four features
  const int64_t depth = q.group % 64 == 0 ? 64 : q.group % 32 == 0 ? 32 : 16;
  alignas(64) int32_t sums[kTileRows * kPanel];
  const int64_t asked = ceil_div(group_bytes(q), 128);
  shape_tiles(rows, rows, depth);
  for (int64_t group = 0; group < count; group++, x += q.group, x_groups++) {
    for (int64_t i = 0; i < asked; i++) ahead.ask(group * asked + i, 0);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < q.group; step += depth) {
      const uint8_t* codes = opened.codes + group * opened.bytes + step / 4 * kLine;
      const CodeOf* from = x + step;
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
    for (int64_t at = 0; at < kPanel; at += kLanes) {
      const GroupScales of_group(q, opened.scales + group * opened_scales(q) + at);
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
  }
  _tile_release();
}
#else
// Sums take 12 of 16 registers; totals are loaded and stored with each group.
constexpr int64_t kOpenedRows = 6 / kPlanes;

template <int R>
__attribute__((noinline)) void multiply_opened_rows(const CodeOf* x, int64_t x_stride,
                                                    const CodedGroup* x_groups, int64_t groups_stride,
                                                    const Opened& opened, const Quantization& q,
                                                    int64_t count, int32_t middle, float* c,
                                                    const Ahead& ahead) {
  constexpr int kCodes = R * int(kPlanes);
  const Ahead mine = ahead;
  // Prefetch a line once, however small the part of these rows.
  const int64_t asked = ceil_div(group_bytes(q), 128);
  const int64_t every = 64 / max<int64_t>(1, min<int64_t>(64, ahead.step));
  for (int strip = 0; strip < kStrips; strip++) {
    const int64_t at = strip * kPair * kLanes;
    const CodeOf* of_x = x;
    const CodedGroup* x_group = x_groups;
    const float* scales = opened.scales + at;
    float* to = c + at;
    for (int64_t group = 0; group < count; group++, x_group++, scales += opened_scales(q)) {
      for (int64_t i = 0; i < asked; i += every) mine.ask(group * asked + i, strip);
      // For each plane of each row; a row's last one begins with the middle's part subtracted.
      Ints sums[kCodes][kPair];
#pragma GCC unroll 16
      for (int r = 0; r < kCodes; r++) {
        const bool is_last = r % kPlanes == kPlanes - 1;
        for (int v = 0; v < kPair; v++) {
          sums[r][v] = Ints{};
          if (!kIsCentred && is_last) sums[r][v] -= middle * x_group[r / kPlanes * groups_stride].sum;
        }
      }
      const uint8_t* codes = opened.codes + group * opened.bytes + 4 * at;
      for (int64_t k = 0; k < q.group; k += kBeside, of_x += kBeside, codes += 4 * kPanel) {
        Words w[kPair];
        for (int v = 0; v < kPair; v++) w[v] = load_as<Words>(codes + 4 * v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kCodes; r++) {
          const Words four = four_bytes(of_x + r * x_stride);
          for (int v = 0; v < kPair; v++) sums[r][v] = add_products(sums[r][v], w[v], four);
        }
      }
      const GroupScales of_group[kPair] = {{q, scales}, {q, scales + kLanes}};
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < kPair; v++) {
          Ints sum = sums[r * kPlanes][v];
          if constexpr (kPlanes == 2) sum = (sum << 7) + sums[2 * r + 1][v];
          float* of_row = to + r * kPanel + v * kLanes;
          store_lanes(of_row, of_group[v].added(load_lanes(of_row), sum, x_group[r * groups_stride]));
        }
      }
    }
  }
}

template <Coding C, int R = kOpenedRows>
inline void multiply_opened(const CodeOf* x, int64_t x_stride, const CodedGroup* x_groups,
                            int64_t groups_stride, int64_t rows, const Opened& opened,
                            const Quantization& q, int64_t count, bool first, float* c,
                            const Ahead& ahead) {
  if constexpr (R > 1) {
    if (rows < R) {
      return multiply_opened<C, R - 1>(x, x_stride, x_groups, groups_stride, rows, opened, q, count, first, c,
                                       ahead);
    }
  }
  if (first) std::memset(c, 0, size_t(R * kPanel) * sizeof(float));
  multiply_opened_rows<R>(x, x_stride, x_groups, groups_stride, opened, q, count,
                          q.has_zeros ? 0 : middle_of(C), c, ahead);
}
#endif

}  // namespace batchdeck::LEVEL
