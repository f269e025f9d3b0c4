// The product with packed weights. A decode step reads all weights once, whatever its rows: then
// the speed of memory is the limit, and a piece is a contiguous run of panels. With more rows the
// matrix rate is: a piece is some rows by some panels, whose shares of x, of weights and of sums
// stay in L2 while it goes through the features in chunks, and a few rows of x in L1 (blocking
// after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 34(3),
// 2008).
#pragma once

#include <algorithm>

#include "activation.hpp"
#include "multiply.hpp"

namespace batchdeck::LEVEL {

// At most these rows and panels make a piece, and these features a chunk: x of as many rows as are
// multiplied at once and a panel's weights take at most 40 of the 48 KB of L1; those of a piece and
// its sums 0.8 MB (float32: 1.2) of the 2 MB of L2.
constexpr int64_t kMostRows = 256;
constexpr int64_t kMostPanels = 14;
constexpr int64_t kDepthChunk = 256;
// Of few rows, what a core reads in about 60 us.
constexpr int64_t kMostBytes = 1 << 20;
// Memory stands still while an epilogue computes and writes, unless it was asked before: for the
// lines that it writes, when the product begins, and for the next weights, at its end. 8 rows,
// 896 -> 9728: 31 GB/s instead of 29, where a plain sum reads 31.4.
constexpr int64_t kFetched = 8 << 10;
// Numbers of an output of float32 (logits) that goes past the caches: a line that is written whole
// need not be read. 8 rows, 896 -> 32000: 33.1 GB/s instead of 29.5; 32 rows: 27.7 instead of 25.
constexpr int64_t kStreamed = 1 << 17;
// Whoever takes the last piece leaves the others idle for a sixteenth of its work at most.
constexpr int64_t kPiecesAThread = 16;

// Rows and panels of a piece, features of a chunk.
struct LinearBlocks {
  int64_t rows, panels, depth;
  int64_t row_blocks, panel_blocks;
};

template <class T>
inline LinearBlocks linear_blocks(const LinearArgs& args, int threads) {
  const int64_t depth = round_up(args.k, kDepth), panels = ceil_div(args.n, kPanel);
  LinearBlocks blocks;
  blocks.rows = round_up(ceil_div(args.m, ceil_div(args.m, kMostRows)), kRows<T>);
  blocks.row_blocks = ceil_div(args.m, blocks.rows);
  // Rows that are multiplied at once need no sums kept from chunk to chunk.
  const int64_t chunks = args.m <= kRows<T> ? 1 : ceil_div(depth, kDepthChunk);
  blocks.depth = round_up(ceil_div(depth, chunks), kDepth);
  const int64_t share = ceil_div(panels * blocks.row_blocks, kPiecesAThread * threads);
  int64_t most = kMostPanels;
  if (args.m <= kRows<T>) {
    most = std::max<int64_t>(1, kMostBytes / (kPanel * depth * int64_t(sizeof(T))));
  }
  blocks.panels = std::clamp<int64_t>(share, 1, most);
  blocks.panel_blocks = ceil_div(panels, blocks.panels);
  return blocks;
}

inline int64_t linear_pieces(const LinearArgs& args, int threads) {
  if (args.m == 0) return 0;
  const LinearBlocks blocks = args.dtype == DType::bf16 ? linear_blocks<bf16>(args, threads)
                                                        : linear_blocks<float>(args, threads);
  return blocks.row_blocks * blocks.panel_blocks;
}

// What a panel writes: columns [column, column + count) of the output.
struct Columns {
  int64_t column, count;
};
inline Columns columns_of(const LinearArgs& args, int64_t panel) {
  const int64_t width = args.gated ? kPanel / 2 : kPanel, column = panel * width;
  return {column, std::min(width, (args.gated ? args.n / 2 : args.n) - column)};
}

// Whether an output is written past the caches: whole lines, more than a core's share of L2.
inline bool is_streamed(const LinearArgs& args) {
  return args.out_dtype == DType::f32 && !args.gated && args.residual == nullptr &&
         args.m * args.n >= kStreamed && args.out_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(args.out) % 64 == 0;
}

// The epilogue of rows [row, row + rows) of a panel, whose sums are c[rows][kPanel].
template <class T, class Out>
inline void finish(const LinearArgs& args, int64_t row, int64_t rows, int64_t panel,
                   const float* c) {
  const auto [column, count] = columns_of(args, panel);
  const bool streamed = is_streamed(args);
  f32x16 bias[2] = {};
  if (args.bias != nullptr) {
    for (int half = 0; half < 2; half++) {
      const int64_t at = panel * kPanel + half * 16;
      if (at < args.n) bias[half] = load_first(args.bias + at, args.n - at);
    }
  }
  auto* out = static_cast<Out*>(args.out) + row * args.out_stride + column;
  const auto* residual = static_cast<const T*>(args.residual);
  if (residual != nullptr) residual += row * args.residual_stride + column;
  for (int64_t r = 0; r < rows; r++, c += kPanel, out += args.out_stride) {
    if (args.gated) {
      const f32x16 gate = load(c) + bias[0], up = load(c + 16) + bias[1];
      store(out, apply(args.activation, gate) * up);
      continue;
    }
    for (int half = 0; half * 16 < count; half++) {
      const int64_t at = half * 16, left = count - at;
      f32x16 y = load(c + at) + bias[half];
      if (residual != nullptr) {
        y = fma(y, splat(args.alpha), load_first(residual + r * args.residual_stride + at, left));
      } else {
        y = apply(args.activation, y);
      }
      if constexpr (sizeof(Out) == sizeof(float)) {
        if (streamed && left >= 16) {
          stream(out + at, y);
          continue;
        }
      }
      store_first(out + at, y, left);
    }
  }
}

template <class T, class Out>
inline void linear_piece(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  const LinearBlocks blocks = linear_blocks<T>(args, threads);
  // Pieces that follow each other have weights in common.
  const int64_t first_row = piece % blocks.row_blocks * blocks.rows;
  const int64_t last_row = std::min(args.m, first_row + blocks.rows);
  const int64_t first_panel = piece / blocks.row_blocks * blocks.panels;
  const int64_t last_panel = std::min(ceil_div(args.n, kPanel), first_panel + blocks.panels);
  const int64_t depth = round_up(args.k, kDepth);
  const auto* x = static_cast<const T*>(args.x);
  const auto* weight = static_cast<const T*>(args.weight);
  // Sums outlive a chunk only where there are several.
  const int64_t block = kRows<T> * kPanel;
  const bool is_whole = blocks.depth >= depth, streamed = is_streamed(args);
  auto* sums = static_cast<float*>(scratch.get(size_t(
      (is_whole ? block : blocks.rows * blocks.panels * kPanel) * int64_t(sizeof(float)))));

  for (int64_t k = 0; k < depth; k += blocks.depth) {
    // Panels are filled up with zeros; x of float32 is read no further than it has numbers.
    const int64_t end = sizeof(T) == 2 ? depth : args.k;
    const int64_t features = std::min(blocks.depth, end - k);
    float* c = sums;
    for (int64_t row = first_row; row < last_row; row += kRows<T>) {
      const int64_t rows = std::min<int64_t>(kRows<T>, last_row - row);
#ifdef __AMX_BF16__
      if (sizeof(T) == 2 && (row == first_row || rows < kRows<T>)) shape_tiles(rows);
#endif
      for (int64_t panel = first_panel; panel < last_panel; panel++) {
        const bool cold = row == first_row, is_last = k + blocks.depth >= depth;
        if (is_last && !streamed) {
          const auto [column, count] = columns_of(args, panel);
          Out* out = static_cast<Out*>(args.out) + row * args.out_stride + column;
          for (int64_t r = 0; r < rows; r++, out += args.out_stride) {
            claim(out, count * int64_t(sizeof(Out)));
          }
        }
        multiply(x + row * args.x_stride + k, args.x_stride, rows,
                 weight + (panel * depth + k) * kPanel, features, k == 0, c, cold);
        if (is_last) {
          if (cold) fetch(weight + ((panel + 1) * depth + k) * kPanel, kFetched);
          finish<T, Out>(args, row, rows, panel, c);
        }
        if (!is_whole) c += block;
      }
    }
  }
#ifdef __AMX_BF16__
  if (sizeof(T) == 2) _tile_release();
#endif
}

inline void linear(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  if (args.dtype == DType::f32) {
    linear_piece<float, float>(args, threads, piece, scratch);
  } else if (args.out_dtype == DType::f32) {
    linear_piece<bf16, float>(args, threads, piece, scratch);
  } else {
    linear_piece<bf16, bf16>(args, threads, piece, scratch);
  }
}

// Packs rows [kPanel * first_panel, ...) of `weight` [n, k].
inline void pack_linear(DType dtype, const void* weight, int64_t stride, int64_t n, int64_t k,
                        int64_t first_panel, int64_t last_panel, void* packed) {
  const auto pack = [&]<class T>(const T* from, T* to) {
    // Features that lie beside each other in a weight's packed row.
    constexpr int64_t kBeside = 4 / sizeof(T), kTile = kBeside == 2 ? 16 : kPanel;
    const int64_t depth = round_up(k, kDepth);
    to += first_panel * kPanel * depth;
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
      for (int64_t at = 0; at < depth; at += kDepth) {
        for (int64_t tile = 0; tile < kPanel; tile += kTile, to += kTile * kDepth) {
          uint32_t square[kTile][kDepth / kBeside] = {};
          const int64_t width = std::clamp<int64_t>(k - at, 0, kDepth);
          const int64_t height = std::clamp<int64_t>(n - panel * kPanel - tile, 0, kTile);
          for (int64_t i = 0; i < height; i++) {
            std::memcpy(square[i], from + (panel * kPanel + tile + i) * stride + at,
                        size_t(width) * sizeof(T));
          }
          uint32_t turned[kDepth / kBeside][kTile];
          for (int64_t j = 0; j < kDepth / kBeside; j++) {
            for (int64_t i = 0; i < kTile; i++) turned[j][i] = square[i][j];
          }
          std::memcpy(to, turned, sizeof turned);
        }
      }
    }
  };
  if (dtype == DType::bf16) {
    pack(static_cast<const bf16*>(weight), static_cast<bf16*>(packed));
  } else {
    pack(static_cast<const float*>(weight), static_cast<float*>(packed));
  }
}

}  // namespace batchdeck::LEVEL
