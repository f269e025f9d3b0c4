// Blocks as GGUF stores them, to packed codes and to floats.
#pragma once

#include "points.hpp"
#include "quantize.hpp"

namespace batchdeck::LEVEL {

// A block as w = scale code + offset, the codes counted from 0; scale and offset for each kCodeUnit
// features. Without zeros the offset is -scale middle, with the middle of the type's codes.
struct UnpackedBlock {
  uint8_t codes[kLargestBlock];
  float scales[kLargestBlock / kCodeUnit];
  float offsets[kLargestBlock / kCodeUnit];
};

constexpr int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float half_at(const uint8_t* from) { return widen_half(load_as<uint16_t>(from)); }

inline void set_scales(UnpackedBlock& out, int64_t first, int64_t count, float scale, float offset) {
  for (int64_t i = first; i < first + count; i++) {
    out.scales[i] = scale;
    out.offsets[i] = offset;
  }
}

// Lower and upper halves of `bytes` bytes: features [0, bytes) and [bytes, 2 bytes).
inline void put_halves(const uint8_t* from, int64_t bytes, uint8_t* codes) {
  for (int64_t i = 0; i < bytes; i++) codes[i] = from[i] & 15;
  for (int64_t i = 0; i < bytes; i++) codes[bytes + i] = from[i] >> 4;
}
inline void look_up(const int8_t (&table)[16], int middle, uint8_t* codes, int64_t count) {
  for (int64_t i = 0; i < count; i++) codes[i] = uint8_t(table[codes[i]] + middle);
}
// The fifth bits of 32 features.
inline void add_fifth(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; i++) codes[i] |= uint8_t((bits >> i & 1) << 4);
}

// The six bits of scale and of offset of 32 features of a K block, from 12 bytes.
inline uint8_t k_scale(const uint8_t* from, int64_t i) {
  return i < 4 ? from[i] & 63 : (from[i + 4] & 15) | (from[i - 4] >> 6) << 4;
}
inline uint8_t k_offset(const uint8_t* from, int64_t i) {
  return i < 4 ? from[i + 4] & 63 : (from[i + 4] >> 4) | (from[i] >> 6) << 4;
}

// Signs of eight features from seven bits: the eighth makes their number even.
inline uint8_t signs_of(uint32_t bits) {
  return uint8_t((bits & 127) | uint32_t(__builtin_parity(bits & 127)) << 7);
}
// The features of a point (points.hpp), by their sizes and signs.
template <int kFeatures, int kSizes>
inline void put_point(uint16_t point, const uint8_t (&sizes)[kSizes], uint8_t signs, int middle,
                      uint8_t* codes) {
  constexpr int kBits = kFeatures == 4 ? 3 : 2;
  for (int i = 0; i < kFeatures; i++) {
    const int size = sizes[point >> (kBits * i) & ((1 << kBits) - 1)];
    codes[i] = uint8_t(middle + (signs >> i & 1 ? -size : size));
  }
}
constexpr uint8_t kSizesOfIq2[3] = {8, 25, 43}, kHalvesOfIq3[8] = {2, 6, 10, 14, 18, 22, 26, 31};

// Unsigned, of four bits of exponent and three of mantissa; all bits except the sign are not a
// number.
inline float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (bits == 0x7f) return 0;
  return exponent == 0 ? ldexpf(float(mantissa), -9) : ldexpf(float(8 + mantissa), exponent - 10);
}

template <BlockType T>
inline void unpack_block(const uint8_t* from, UnpackedBlock& out) {
  uint8_t* codes = out.codes;
  if constexpr (T == BlockType::q4_0 || T == BlockType::iq4_nl) {
    const float scale = half_at(from);
    put_halves(from + 2, 16, codes);
    if (T == BlockType::iq4_nl) look_up(kNonlinear, 128, codes, 32);
    set_scales(out, 0, 2, scale, (T == BlockType::iq4_nl ? -128 : -8) * scale);
  } else if constexpr (T == BlockType::q4_1) {
    put_halves(from + 4, 16, codes);
    set_scales(out, 0, 2, half_at(from), half_at(from + 2));
  } else if constexpr (T == BlockType::q5_0) {
    const float scale = half_at(from);
    put_halves(from + 6, 16, codes);
    add_fifth(load_as<uint32_t>(from + 2), codes);
    set_scales(out, 0, 2, scale, -16 * scale);
  } else if constexpr (T == BlockType::q5_1) {
    put_halves(from + 8, 16, codes);
    add_fifth(load_as<uint32_t>(from + 4), codes);
    set_scales(out, 0, 2, half_at(from), half_at(from + 2));
  } else if constexpr (T == BlockType::q8_0) {
    const float scale = half_at(from);
    for (int i = 0; i < 32; i++) codes[i] = uint8_t(from[2 + i] ^ 0x80);
    set_scales(out, 0, 2, scale, -128 * scale);
  } else if constexpr (T == BlockType::q2_k) {
    const float scale = half_at(from + 80), least = half_at(from + 82);
    for (int64_t i = 0; i < 256; i++) codes[i] = from[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    for (int64_t i = 0; i < 16; i++) {
      set_scales(out, i, 1, scale * float(from[i] & 15), -least * float(from[i] >> 4));
    }
  } else if constexpr (T == BlockType::q3_k) {
    const float scale = half_at(from + 108);
    const uint8_t *upper = from, *lower = from + 32, *scales = from + 96;
    for (int64_t i = 0; i < 256; i++) {
      const int low = lower[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      codes[i] = uint8_t(low + (upper[i % 32] >> (i / 32) & 1) * 4 + 4);  // 8 means 0
    }
    for (int64_t i = 0; i < 16; i++) {
      const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
      const int six = low | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
      set_scales(out, i, 1, scale * float(six - 32), -8 * (scale * float(six - 32)));
    }
  } else if constexpr (T == BlockType::q4_k || T == BlockType::q5_k) {
    const float scale = half_at(from), least = half_at(from + 2);
    const uint8_t* lower = from + (T == BlockType::q4_k ? 16 : 48);
    for (int64_t i = 0; i < 4; i++) put_halves(lower + 32 * i, 32, codes + 64 * i);
    if constexpr (T == BlockType::q5_k) {
      const uint8_t* upper = from + 16;
      for (int64_t i = 0; i < 256; i++) codes[i] |= uint8_t((upper[i % 32] >> (i / 32) & 1) << 4);
    }
    for (int64_t i = 0; i < 8; i++) {
      set_scales(out, 2 * i, 2, scale * float(k_scale(from + 4, i)), -least * float(k_offset(from + 4, i)));
    }
  } else if constexpr (T == BlockType::q6_k) {
    const float scale = half_at(from + 208);
    const uint8_t *lower = from, *upper = from + 128;
    for (int64_t half = 0; half < 2; half++) {
      for (int64_t i = 0; i < 32; i++) {
        const uint8_t first = lower[64 * half + i], second = lower[64 * half + 32 + i];
        const uint8_t bits = upper[32 * half + i];
        uint8_t* to = codes + 128 * half + i;
        to[0] = uint8_t((first & 15) | (bits & 3) << 4);
        to[32] = uint8_t((second & 15) | (bits >> 2 & 3) << 4);
        to[64] = uint8_t(first >> 4 | (bits >> 4 & 3) << 4);
        to[96] = uint8_t(second >> 4 | (bits >> 6) << 4);
      }
    }
    for (int64_t i = 0; i < 16; i++) {
      const float of_group = scale * float(int8_t(from[192 + i]));
      set_scales(out, i, 1, of_group, -32 * of_group);
    }
  } else if constexpr (T == BlockType::iq4_xs) {
    const float scale = half_at(from);
    const auto upper = load_as<uint16_t>(from + 2);
    for (int64_t i = 0; i < 8; i++) {
      put_halves(from + 8 + 16 * i, 16, codes + 32 * i);
      const int six = (from[4 + i / 2] >> (i % 2 * 4) & 15) | (upper >> (2 * i) & 3) << 4;
      set_scales(out, 2 * i, 2, scale * float(six - 32), -128 * (scale * float(six - 32)));
    }
    look_up(kNonlinear, 128, codes, 256);
  } else if constexpr (T == BlockType::tq2_0) {
    const float scale = half_at(from + 64);
    for (int64_t i = 0; i < 256; i++) {
      codes[i] = uint8_t((from[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) + 7);  // 1 means 0
    }
    set_scales(out, 0, 16, scale, -8 * scale);
  } else if constexpr (T == BlockType::mxfp4) {
    const float scale = ldexpf(1, int(from[0]) - 128);
    put_halves(from + 1, 16, codes);
    look_up(kTwiceE2M1, 16, codes, 32);
    set_scales(out, 0, 2, scale, -16 * scale);
  } else if constexpr (T == BlockType::nvfp4) {
    for (int64_t i = 0; i < 4; i++) {
      const float scale = e4m3(from[i]) / 2;
      put_halves(from + 4 + 8 * i, 8, codes + 16 * i);
      set_scales(out, i, 1, scale, -32 * scale);
    }
    look_up(kTwiceE2M1, 32, codes, 64);
  } else if constexpr (T == BlockType::tq1_0) {
    // A byte is five numbers from 0 to 2, the digits of a fraction of base 3; the last four bytes
    // have four.
    const auto put = [&](const uint8_t* bytes, int64_t count, int digits, uint8_t* to) {
      for (int64_t i = 0; i < count; i++) {
        uint8_t rest = bytes[i];
        for (int digit = 0; digit < digits; digit++, rest = uint8_t(rest * 3)) {
          to[digit * count + i] = uint8_t((rest * 3 >> 8) + 7);  // 8 means 0
        }
      }
    };
    put(from, 32, 5, codes);
    put(from + 32, 16, 5, codes + 160);
    put(from + 48, 4, 4, codes + 240);
    const float scale = half_at(from + 52);
    set_scales(out, 0, 16, scale, -8 * scale);
  } else if constexpr (T == BlockType::iq3_s) {
    const uint8_t *lower = from + 2, *upper = from + 66, *signs = from + 74, *scales = from + 106;
    for (int64_t i = 0; i < 64; i++) {
      const int point = kPointsIq3S[lower[i] | (upper[i / 8] >> (i % 8) & 1) << 8];
      for (int64_t j = 0; j < 4; j++) {
        const int half = point >> (3 * j) & 7;  // of the size less 1
        codes[4 * i + j] = uint8_t(signs[i / 2] >> (i % 2 * 4 + j) & 1 ? 7 - half : 8 + half);
      }
    }
    for (int64_t i = 0; i < 8; i++) {
      const float scale = half_at(from) * float(1 + 2 * (scales[i / 2] >> (i % 2 * 4) & 15));
      set_scales(out, 2 * i, 2, 2 * scale, -15 * scale);
    }
  } else if constexpr (T == BlockType::iq3_xxs) {
    for (int64_t i = 0; i < 8; i++) {
      const auto word = load_as<uint32_t>(from + 66 + 4 * i);
      for (int64_t j = 0; j < 8; j++) {
        const auto signs = uint8_t(signs_of(word >> (j / 2 * 7)) >> (j % 2 * 4));
        put_point<4>(kPointsIq3Xxs[from[2 + 8 * i + j]], kHalvesOfIq3, signs, 32, codes + 32 * i + 4 * j);
      }
      const float scale = half_at(from) * (0.5f + float(word >> 28));
      set_scales(out, 2 * i, 2, scale, -32 * scale);
    }
  } else if constexpr (T == BlockType::iq2_s) {
    const uint8_t *lower = from + 2, *signs = from + 34, *upper = from + 66, *scales = from + 74;
    for (int64_t i = 0; i < 32; i++) {
      const int at = lower[i] | (upper[i / 4] >> (i % 4 * 2) & 3) << 8;
      put_point<8>(kPointsIq2S[at], kSizesOfIq2, signs[i], 128, codes + 8 * i);
    }
    for (int64_t i = 0; i < 16; i++) {
      const float scale = half_at(from) * (0.5f + float(scales[i / 2] >> (i % 2 * 4) & 15)) / 4;
      set_scales(out, i, 1, scale, -128 * scale);
    }
  } else if constexpr (T == BlockType::iq2_xs) {
    for (int64_t i = 0; i < 32; i++) {
      const auto both = load_as<uint16_t>(from + 2 + 2 * i);
      put_point<8>(kPointsIq2Xs[both & 511], kSizesOfIq2, signs_of(both >> 9), 128, codes + 8 * i);
    }
    for (int64_t i = 0; i < 16; i++) {
      const float scale = half_at(from) * (0.5f + float(from[66 + i / 2] >> (i % 2 * 4) & 15)) / 4;
      set_scales(out, i, 1, scale, -128 * scale);
    }
  } else if constexpr (T == BlockType::iq2_xxs) {
    for (int64_t i = 0; i < 8; i++) {
      const auto word = load_as<uint32_t>(from + 6 + 8 * i);
      for (int64_t j = 0; j < 4; j++) {
        put_point<8>(kPointsIq2Xxs[from[2 + 8 * i + j]], kSizesOfIq2, signs_of(word >> (7 * j)), 128,
                     codes + 32 * i + 8 * j);
      }
      const float scale = half_at(from) * (0.5f + float(word >> 28)) / 4;
      set_scales(out, 2 * i, 2, scale, -128 * scale);
    }
  } else if constexpr (T == BlockType::iq1_m) {
    uint16_t of_all = 0;  // in the upper bits of four words
    for (int64_t i = 0; i < 4; i++) {
      of_all = uint16_t(of_all | (load_as<uint16_t>(from + 48 + 2 * i) >> 12) << (4 * i));
    }
    for (int64_t i = 0; i < 32; i++) {
      const int upper = from[32 + i / 2] >> (i % 2 * 4), point = kPointsIq1[from[i] | (upper & 7) << 8];
      // Eighths of a scale, from -9 to 9, the odd ones.
      for (int64_t j = 0; j < 8; j++) {
        codes[8 * i + j] = uint8_t((point >> (2 * j) & 3) * 4 + (upper & 8 ? 0 : 1));
      }
    }
    for (int64_t i = 0; i < 16; i++) {
      const int three = load_as<uint16_t>(from + 48 + i / 4 * 2) >> (i % 4 * 3) & 7;
      const float eighth = widen_half(of_all) * float(2 * three + 1) / 8;
      set_scales(out, i, 1, 2 * eighth, -9 * eighth);
    }
  } else if constexpr (T == BlockType::iq1_s) {
    for (int64_t i = 0; i < 8; i++) {
      const auto upper = load_as<uint16_t>(from + 34 + 2 * i);
      for (int64_t j = 0; j < 4; j++) {
        const int point = kPointsIq1[from[2 + 4 * i + j] | (upper >> (3 * j) & 7) << 8];
        for (int64_t k = 0; k < 8; k++) codes[32 * i + 8 * j + k] = uint8_t(point >> (2 * k) & 3);
      }
      const float scale = half_at(from) * float(2 * (upper >> 12 & 7) + 1);
      set_scales(out, 2 * i, 2, scale, (upper & 0x8000 ? -1.125f : -0.875f) * scale);
    }
  }
}

inline void unpack_block(BlockType type, const uint8_t* from, UnpackedBlock& out) {
  switch (type) {
    case BlockType::q4_0: return unpack_block<BlockType::q4_0>(from, out);
    case BlockType::q4_1: return unpack_block<BlockType::q4_1>(from, out);
    case BlockType::q5_0: return unpack_block<BlockType::q5_0>(from, out);
    case BlockType::q5_1: return unpack_block<BlockType::q5_1>(from, out);
    case BlockType::q8_0: return unpack_block<BlockType::q8_0>(from, out);
    case BlockType::q2_k: return unpack_block<BlockType::q2_k>(from, out);
    case BlockType::q3_k: return unpack_block<BlockType::q3_k>(from, out);
    case BlockType::q4_k: return unpack_block<BlockType::q4_k>(from, out);
    case BlockType::q5_k: return unpack_block<BlockType::q5_k>(from, out);
    case BlockType::q6_k: return unpack_block<BlockType::q6_k>(from, out);
    case BlockType::iq4_nl: return unpack_block<BlockType::iq4_nl>(from, out);
    case BlockType::iq4_xs: return unpack_block<BlockType::iq4_xs>(from, out);
    case BlockType::tq2_0: return unpack_block<BlockType::tq2_0>(from, out);
    case BlockType::mxfp4: return unpack_block<BlockType::mxfp4>(from, out);
    case BlockType::nvfp4: return unpack_block<BlockType::nvfp4>(from, out);
    case BlockType::tq1_0: return unpack_block<BlockType::tq1_0>(from, out);
    case BlockType::iq3_s: return unpack_block<BlockType::iq3_s>(from, out);
    case BlockType::iq3_xxs: return unpack_block<BlockType::iq3_xxs>(from, out);
    case BlockType::iq2_s: return unpack_block<BlockType::iq2_s>(from, out);
    case BlockType::iq2_xs: return unpack_block<BlockType::iq2_xs>(from, out);
    case BlockType::iq2_xxs: return unpack_block<BlockType::iq2_xxs>(from, out);
    case BlockType::iq1_m: return unpack_block<BlockType::iq1_m>(from, out);
    case BlockType::iq1_s: return unpack_block<BlockType::iq1_s>(from, out);
  }
}

inline void unpack_blocks(const UnpackBlocksArgs& args) {
  const BlockLayout& layout = layout_of(args.type);
  UnpackedBlock block;
  const uint8_t* from = args.blocks;
  for (int64_t k = 0; k < args.k; k += layout.features, from += layout.bytes) {
    unpack_block(args.type, from, block);
    for (int64_t i = 0; i < layout.features; i += kCodeUnit) {
      typedef uint8_t Bytes __attribute__((vector_size(16)));
      const i32x16 codes = __builtin_convertvector(load_as<Bytes>(block.codes + i), i32x16);
      const f32x16 value = fma(__builtin_convertvector(codes, f32x16), splat(block.scales[i / kCodeUnit]),
                               splat(block.offsets[i / kCodeUnit]));
      if (args.dtype == DType::f32) {
        store(static_cast<float*>(args.out) + k + i, value);
      } else {
        store(static_cast<bf16*>(args.out) + k + i, value);
      }
    }
  }
}

// A part of a row, as long as the largest block, in codes of the packed quantization.
struct CodedPart {
  uint8_t codes[kLargestBlock];
  uint16_t scales[kLargestBlock / kCodeUnit];
  uint16_t zeros[kLargestBlock / kCodeUnit];
};

// Returns whether float16 can represent all scales.
inline bool code_part(const BlockRow& row, int64_t first, int64_t last, const Quantization& q,
                      CodedPart& out) {
  const BlockLayout& layout = layout_of(row.type);
  const int middle = 1 << (layout.bits - 1), shift = layout.has_zeros ? 0 : middle_of(q.coding) - middle;
  const uint16_t of_middle = narrow_half(float(middle_of(q.coding)));
  bool fits = true;
  UnpackedBlock block;
  for (int64_t k = first; k < last; k += layout.features) {
    unpack_block(row.type, row.blocks + k / layout.features * layout.bytes, block);
    uint8_t* codes = out.codes + (k - first);
    for (int64_t i = 0; i < layout.features; i++) codes[i] = uint8_t(block.codes[i] + shift);
    for (int64_t i = 0; i < layout.features / kCodeUnit; i++) {
      const int64_t at = (k - first) / kCodeUnit + i;
      float scale = block.scales[i], zero = float(middle_of(q.coding));
      if (layout.has_zeros) {
        zero = -block.offsets[i] / scale;
        if (!(fabsf(zero) <= 65504)) {  // all that float16 has: the codes change next to nothing
          scale = block.offsets[i];
          zero = 0;
          std::memset(codes + i * kCodeUnit, 1, size_t(kCodeUnit));
        }
      }
      out.scales[at] = narrow_half(scale);
      out.zeros[at] = layout.has_zeros ? narrow_half(zero) : of_middle;
      fits = fits && (out.scales[at] & 0x7c00) != 0x7c00;
    }
  }
  return fits;
}

inline bool pack_blocks(const PackBlocksArgs& args, int64_t panel) {
  const Quantization& q = args.quantization;
  const int64_t groups = ceil_div(args.k, q.group), first = panel * kPanel;
  uint8_t* packed = args.packed + panel * groups * group_bytes(q);
  const auto middle = uint8_t(middle_of(q.coding));
  CodedPart parts[kPanel];
  bool fits = true;
  for (int64_t from = 0; from < args.k; from += kLargestBlock) {
    const int64_t to = min(args.k, from + kLargestBlock);
    for (int64_t row = 0; row < kPanel; row++) {
      CodedPart& part = parts[row];
      if (first + row < args.n && args.rows[first + row].blocks != nullptr) {
        fits = code_part(args.rows[first + row], from, to, q, part) && fits;
        continue;
      }
      std::memset(part.codes, middle, sizeof part.codes);
      std::memset(part.scales, 0, sizeof part.scales);
      std::memset(part.zeros, 0, sizeof part.zeros);
    }
    for (int64_t k = from; k < to; k += q.group, packed += group_bytes(q)) {
      uint16_t of_rows[2][kPanel];
      for (int64_t row = 0; row < kPanel; row++) {
        of_rows[0][row] = parts[row].scales[(k - from) / kCodeUnit];
        of_rows[1][row] = parts[row].zeros[(k - from) / kCodeUnit];
      }
      for (int64_t i = 0; i < q.group; i += kCodeUnit) {
        CodeSquare codes;
        for (int64_t row = 0; row < kPanel; row++) {
          std::memcpy(codes[row], parts[row].codes + (k - from) + i, size_t(kCodeUnit));
        }
        put_square(codes, i / kCodeUnit, q, packed);
      }
      put_scales(of_rows, q, packed);
    }
  }
  return fits;
}

}  // namespace batchdeck::LEVEL
