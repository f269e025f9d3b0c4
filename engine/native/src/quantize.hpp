// Weights as integers: the scale of each group, and codes for given scales.
#pragma once

#include "share.hpp"
#include "simd.hpp"

namespace batchdeck::LEVEL {

constexpr int64_t kQuantizePiece = 1 << 13;  // numbers

inline float widen_half(uint16_t value) { return _cvtsh_ss(value); }
inline uint16_t narrow_half(float value) {
  return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
}

// Codes less their zero reach as far down as possible, but for 8 bits no further than up: 127 times
// a scale that is rounded to bfloat16 is less than half a scale off, so that the code can be
// recovered.
constexpr float least_of(Coding coding) {
  return coding == Coding::int8 ? -127.0f : -float(middle_of(coding));
}
inline f32x16 code_of(f32x16 value, float inverse, float least, float most) {
  return max(min(round_nearest(value * inverse), splat(most)), splat(least));
}

// Codes by 1 / `inverse` lose least if they are multiplied by `scale`: then their squares, and
// those of the loss, sum to the group's. `kept` is the former.
struct Fit {
  float kept, scale;
};
template <class T>
inline Fit fit_of(const T* weight, int64_t count, float inverse, float least, float most) {
  f32x16 products = {}, squares = {};
  for (int64_t i = 0; i < count; i += 16) {
    const f32x16 value = load_first(weight + i, count - i);
    const f32x16 code = code_of(value, inverse, least, most);
    products = fma(value, code, products);
    squares = fma(code, code, squares);
  }
  const float product = sum_of(products), square = sum_of(squares);
  return square > 0 ? Fit{product * product / square, product / square} : Fit{0, 0};
}

// Codes of 4 bits reach one further on the negative side, so either sign of a scale may be better.
// There it pays to clip the greatest number, or not to use the last code; for 8 bits it does not.
template <class T>
inline float scale_of(const T* weight, int64_t count, Coding coding) {
  f32x16 most = {};
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += 16) {
    const f32x16 value = load_first(weight + i, count - i), size = max(value, -value);
    is_finite = is_finite && bits_of(less(size, splat(INFINITY))) == 0xffff;
    most = max(most, size);
  }
  const float greatest = max_of(most);
  if (!is_finite) return NAN;
  if (greatest < 1e-30f) return 0;
  const auto middle = float(middle_of(coding));
  Fit best = {0, 0};
  const auto attempt = [&](float end) {
    const Fit fit = fit_of(weight, count, end / greatest, least_of(coding), middle - 1);
    if (fit.kept > best.kept) best = fit;
  };
  if (coding == Coding::int8) {
    attempt(middle - 1);
  } else {
    for (float end = middle - 2; end <= middle + 1; end += 0.25f) {
      attempt(end);
      attempt(-end);
    }
  }
  return best.scale;
}

template <class T>
inline void quantize_share(const QuantizeArgs& args, Share share) {
  const Quantization& q = args.quantization;
  const auto middle = float(middle_of(q.coding));
  for (int64_t row = share.first; row < share.last; row++) {
    T* weight = static_cast<T*>(args.weight) + row * args.stride;
    uint16_t* scales = args.scales + row * args.scales_stride;
    for (int64_t k = 0; k < args.k; k += q.group, weight += q.group, scales++) {
      const int64_t count = min(q.group, args.k - k);
      *scales = narrow_half(scale_of(weight, count, q.coding));
      const float scale = widen_half(*scales), inverse = scale == 0 ? 0 : 1 / scale;
      for (int64_t i = 0; i < count; i += 16) {
        const f32x16 value = load_first(weight + i, count - i);
        const f32x16 code = code_of(value, inverse, least_of(q.coding), middle - 1);
        store_first(weight + i, code * scale, count - i);
      }
    }
  }
}

inline int64_t quantize_pieces(const QuantizeArgs& args, int) {
  return row_pieces(args.n, args.k, kQuantizePiece);
}

inline void quantize(const QuantizeArgs& args, int threads, int64_t piece, Scratch&) {
  const Share share = share_of(args.n, quantize_pieces(args, threads), piece);
  if (args.dtype == DType::f32) return quantize_share<float>(args, share);
  quantize_share<bf16>(args, share);
}

// Codes of kCodeUnit features of the rows of a panel.
using CodeSquare = uint8_t[kPanel][kCodeUnit];

// Stores the square of that number at its place in a packed group.
template <Coding C>
inline void put_square(const CodeSquare& codes, int64_t square, int64_t features, uint8_t* group) {
  constexpr int64_t kBits = bits_of(C) == 8 ? 8 : 4;
  uint8_t* to = group + square * kPanel * kCodeUnit * kBits / 8;
  for (int64_t k = 0; k < kCodeUnit; k += C == Coding::int8 ? 4 : 8) {
    for (int64_t row = 0; row < kPanel; row++, to += 4) {
      auto four = load_as<uint32_t>(&codes[row][k]);
      if (C != Coding::int8) {
        four = (four & 0x0f0f0f0f) | (load_as<uint32_t>(&codes[row][k + 4]) & 0x0f0f0f0f) << 4;
      }
      std::memcpy(to, &four, sizeof four);
    }
  }
  if constexpr (C == Coding::int5 || C == Coding::int6) {
    constexpr int kUpper = int(bits_of(C)) - 4;
    constexpr uint32_t kMask = 0x01010101u * ((1 << kUpper) - 1);
    constexpr int64_t kSquares = unit_of(C) / kCodeUnit;  // of a word
    uint8_t* words = group + features * kPanel / 2 + square / kSquares * kPanel * 4;
    const int first = int(square % kSquares) * 4;
    for (int64_t row = 0; row < kPanel; row++) {
      uint32_t word = 0;
      if (first > 0) std::memcpy(&word, words + 4 * row, sizeof word);
      for (int quad = 0; quad < 4; quad++) {
        const auto four = load_as<uint32_t>(&codes[row][4 * quad]);
        word |= (four >> 4 & kMask) << (kUpper * (first + quad));
      }
      std::memcpy(words + 4 * row, &word, sizeof word);
    }
  }
}

inline void put_square(const CodeSquare& codes, int64_t square, const Quantization& q, uint8_t* group) {
  switch (q.coding) {
    case Coding::int4:
      return put_square<Coding::int4>(codes, square, q.group, group);
    case Coding::int5:
      return put_square<Coding::int5>(codes, square, q.group, group);
    case Coding::int6:
      return put_square<Coding::int6>(codes, square, q.group, group);
    default:
      return put_square<Coding::int8>(codes, square, q.group, group);
  }
}

// Stores scales and zeros after the codes of a packed group.
inline void put_scales(const uint16_t (&of_rows)[2][kPanel], const Quantization& q, uint8_t* group) {
  std::memcpy(group + kPanel * q.group * bits_of(q.coding) / 8, of_rows,
              sizeof of_rows[0] * (q.has_zeros ? 2 : 1));
}

template <class T>
inline void pack_coded_panel(const PackCodedArgs& args, int64_t panel) {
  const Quantization& q = args.quantization;
  const int64_t groups = ceil_div(args.k, q.group), first = panel * kPanel;
  const int64_t rows = min(kPanel, args.n - first);
  const auto middle = float(middle_of(q.coding)), most = 2 * middle - 1;
  uint8_t* to = args.packed + panel * groups * group_bytes(q);
  for (int64_t group = 0; group < groups; group++) {
    uint16_t of_rows[2][kPanel] = {};
    for (int64_t row = 0; row < rows; row++) {
      const int64_t at = (first + row) * args.scales_stride + group;
      of_rows[0][row] = args.scales[at];
      if (q.has_zeros) of_rows[1][row] = args.zeros[at];
    }
    for (int64_t k = 0; k < q.group; k += kCodeUnit) {
      CodeSquare codes;
      std::memset(codes, int(middle), sizeof codes);
      const int64_t from = group * q.group + k, width = min(kCodeUnit, args.k - from);
      for (int64_t row = 0; row < rows; row++) {
        const T* weight = static_cast<const T*>(args.weight) + (first + row) * args.stride + from;
        const float scale = widen_half(of_rows[0][row]), inverse = scale == 0 ? 0 : 1 / scale;
        const float zero = q.has_zeros ? widen_half(of_rows[1][row]) : middle;
        if (width <= 0) continue;
        const f32x16 sum = load_first(weight, width) * inverse + zero;
        const f32x16 code = max(min(round_nearest(sum), splat(most)), f32x16{});
        typedef uint8_t Bytes __attribute__((vector_size(16)));
        const Bytes bytes = __builtin_convertvector(__builtin_convertvector(code, i32x16), Bytes);
        std::memcpy(codes[row], &bytes, sizeof bytes);
      }
      put_square(codes, k / kCodeUnit, q, to);
    }
    put_scales(of_rows, q, to);
    to += group_bytes(q);
  }
}

inline void pack_coded(const PackCodedArgs& args, int64_t panel) {
  if (args.dtype == DType::f32) return pack_coded_panel<float>(args, panel);
  pack_coded_panel<bf16>(args, panel);
}

}  // namespace batchdeck::LEVEL
