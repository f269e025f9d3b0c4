// Blocks as GGUF stores them, to packed codes and to floats.
#pragma once

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

// Unsigned, of four bits of exponent and three of mantissa; all bits but the sign are no number.
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

// A part of a row, as long as the largest block, in codes of the quantization that is packed.
struct CodedPart {
  uint8_t codes[kLargestBlock];
  uint16_t scales[kLargestBlock / kCodeUnit];
  uint16_t zeros[kLargestBlock / kCodeUnit];
};

// Returns whether float16 has all scales.
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
