// Rows of x as whole numbers.
#pragma once

#include <cfloat>

#include "share.hpp"
#include "simd.hpp"

namespace batchdeck::LEVEL {

// With VNNI four codes of x lie beside each other. Without, products are those of 16 bits, for sums of
// two of 8 by 8 bits do not fit there: four codes are (0, 2, 1, 3), as the even and the odd bytes of a
// weight's four.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
using Code = int8_t;
#else
using Code = int16_t;
#endif

constexpr int64_t kCodeRowsPiece = 1 << 13;  // numbers

inline int64_t code_rows_pieces(const CodeRowsArgs& args, int) {
  return row_pieces(args.rows, args.width, kCodeRowsPiece);
}

// [count] numbers, at most a group, as codes.
template <class T>
inline CodedGroup code_group(const T* x, int64_t count, int64_t group, Code* codes) {
  f32x16 most = {};
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += 16) {
    const f32x16 value = load_first(x + i, count - i);
    const f32x16 size = max(value, -value);
    is_finite = is_finite && bits_of(less(size, splat(INFINITY))) == 0xffff;
    most = max(most, size);
  }
  const float greatest = max_of(most);
  const float scale = is_finite ? greatest / 127 : NAN;
  // Of numbers so small that 127 over them is no float, nothing is left.
  const float inverse = greatest > 127 / FLT_MAX && is_finite ? 127 / greatest : 0;
  i32x16 sums = {};
  for (int64_t i = 0; i < group; i += 16) {
    f32x16 value = {};
    if (i < count && is_finite) value = load_first(x + i, count - i);
    const i32x16 whole = __builtin_convertvector(round_nearest(value * inverse), i32x16);
    sums += whole;
    typedef Code Codes __attribute__((vector_size(16 * sizeof(Code)), aligned(sizeof(Code))));
    Codes some = __builtin_convertvector(whole, Codes);
    if constexpr (sizeof(Code) == 2) {
      some = __builtin_shufflevector(some, some, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    }
    std::memcpy(codes + i, &some, sizeof some);
  }
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += sums[i];
  return {scale, sum};
}

template <class T>
inline void code_share(const CodeRowsArgs& args, Share share) {
  for (int64_t row = share.first; row < share.last; row++) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    Code* codes = reinterpret_cast<Code*>(args.codes) + row * args.stride;
    CodedGroup* groups = args.groups + row * args.groups_stride;
    for (int64_t k = 0; k < args.width; k += args.group, groups++) {
      *groups = code_group(x + k, min(args.group, args.width - k), args.group, codes + k);
    }
  }
}

inline void code_rows(const CodeRowsArgs& args, int threads, int64_t piece, Scratch&) {
  const Share share = share_of(args.rows, code_rows_pieces(args, threads), piece);
  if (args.dtype == DType::f32) return code_share<float>(args, share);
  code_share<bf16>(args, share);
}

}  // namespace batchdeck::LEVEL
