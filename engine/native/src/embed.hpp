// Rows of an embedding table, plain or packed like the weights of a matrix product.
#pragma once

#include "quantize.hpp"
#include "share.hpp"

namespace batchdeck::LEVEL {

constexpr int64_t kEmbedPiece = 1 << 15;        // numbers
constexpr int64_t kEmbedPackedPiece = 1 << 12;  // numbers

// A packed row is a unit (two bfloat16, or a float) of every 64 bytes (128, of float32): one of 16
// (32) output features that share the line.
template <class T>
struct PackedRow {
  static constexpr int64_t kUnit = 4 / sizeof(T);  // columns
  static constexpr int64_t kLanes = sizeof(T) == 2 ? 16 : kPanel;

  PackedRow(const EmbedArgs& args, int64_t id)
      : panel(static_cast<const char*>(args.table) +
              id / kPanel * (kPanel * round_up(args.width, kDepth) * int64_t(sizeof(T)))),
        lane(id % kPanel) {}

  // Where unit `i` of the row is.
  const char* unit(int64_t i) const {
    if constexpr (sizeof(T) == 4) return panel + (i * kLanes + lane) * 4;
    const int64_t tile = i / 16 * 2 + lane / 16;
    return panel + ((tile * 16 + i % 16) * kLanes + lane % 16) * 4;
  }

  const char* panel;
  int64_t lane;
};

template <class T>
inline void embed_packed(const EmbedArgs& args, Share share) {
  using Row = PackedRow<T>;
  const int64_t units = ceil_div(args.width, Row::kUnit);
  const auto prefetch = [&](int64_t row) {
    const Row from(args, args.ids[row]);
    for (int64_t i = 0; i < units; i++) __builtin_prefetch(from.unit(i));
  };
  for (int64_t row = share.first; row < share.last; row++) {
    if (row + 1 < share.last) prefetch(row + 1);
    const Row from(args, args.ids[row]);
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    const int64_t whole = args.width / Row::kUnit;
    for (int64_t i = 0; i < whole; i++) std::memcpy(out + i * Row::kUnit, from.unit(i), 4);
    if (whole < units) std::memcpy(out + whole * Row::kUnit, from.unit(whole), sizeof(T));
  }
}

// A packed code of feature k of a group, of the row `lane` of its panel.
template <Coding C>
inline uint8_t code_at(const uint8_t* group, int64_t features, int64_t k, int64_t lane) {
  constexpr int64_t kLine = kPanel * 4;
  if constexpr (C == Coding::int8) return group[k / 4 * kLine + lane * 4 + k % 4];
  const uint8_t low = group[k / 8 * kLine + lane * 4 + k % 4] >> (k % 8 / 4 * 4) & 15;
  if constexpr (bits_of(C) <= 4) return low;
  constexpr int64_t kUpper = bits_of(C) - 4, kWord = unit_of(C);
  const uint8_t bits = group[(features / 8 + k / kWord) * kLine + lane * 4 + k % 4];
  return uint8_t(low | (bits >> (k % kWord / 4 * kUpper) & ((1 << kUpper) - 1)) << 4);
}

// As in a product: scale (code - zero), in float32, then rounded.
template <Coding C, class T>
inline void embed_coded(const EmbedArgs& args, Share share) {
  const Quantization& q = args.quantization;
  const int64_t groups = ceil_div(args.width, q.group), bytes = group_bytes(q);
  const int64_t lines = q.group * bits_of(C) / 32;  // of kPanel words
  const auto row_of = [&](int64_t id) {
    return static_cast<const uint8_t*>(args.table) + id / kPanel * groups * bytes;
  };
  const auto prefetch = [&](int64_t id) {
    for (int64_t group = 0; group < groups; group++) {
      const uint8_t* from = row_of(id) + group * bytes;
      for (int64_t i = 0; i < lines; i++) __builtin_prefetch(from + (i * kPanel + id % kPanel) * 4);
      __builtin_prefetch(from + lines * kPanel * 4 + id % kPanel * 2);
    }
  };
  for (int64_t row = share.first; row < share.last; row++) {
    if (row + 1 < share.last) prefetch(args.ids[row + 1]);
    const int64_t lane = args.ids[row] % kPanel;
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    for (int64_t group = 0; group < groups; group++) {
      const uint8_t* from = row_of(args.ids[row]) + group * bytes;
      const auto* scales = reinterpret_cast<const uint16_t*>(from + lines * kPanel * 4);
      const float scale = widen_half(scales[lane]);
      const float zero = q.has_zeros ? widen_half(scales[kPanel + lane]) : float(middle_of(C));
      const int64_t count = min(q.group, args.width - group * q.group);
      for (int64_t k = 0; k < count; k += 16) {
        f32x16 codes = {};
        for (int64_t i = 0; i < 16; i++) codes[i] = code_at<C>(from, q.group, k + i, lane);
        store_first(out + group * q.group + k, (codes - zero) * scale, count - k);
      }
    }
  }
}

template <class T>
inline void embed_from(const EmbedArgs& args, Share share) {
  switch (args.quantization.coding) {
    case Coding::int8:
      return embed_coded<Coding::int8, T>(args, share);
    case Coding::int4:
      return embed_coded<Coding::int4, T>(args, share);
    case Coding::int5:
      return embed_coded<Coding::int5, T>(args, share);
    case Coding::int6:
      return embed_coded<Coding::int6, T>(args, share);
    case Coding::none:
      return embed_packed<T>(args, share);
  }
}

inline int64_t embed_pieces(const EmbedArgs& args, int) {
  return row_pieces(args.rows, args.width, args.packed ? kEmbedPackedPiece : kEmbedPiece);
}

inline void embed(const EmbedArgs& args, int threads, int64_t piece, Scratch&) {
  const Share share = share_of(args.rows, embed_pieces(args, threads), piece);
  if (args.packed && args.dtype == DType::bf16) return embed_from<bf16>(args, share);
  if (args.packed) return embed_from<float>(args, share);
  const int64_t size = size_of(args.dtype);
  for (int64_t row = share.first; row < share.last; row++) {
    std::memcpy(static_cast<char*>(args.out) + row * args.out_stride * size,
                static_cast<const char*>(args.table) + args.ids[row] * args.width * size,
                size_t(args.width * size));
  }
}

}  // namespace batchdeck::LEVEL
