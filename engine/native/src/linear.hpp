// The product with packed weights. A decode step reads all weights once, whatever its rows: with
// few rows memory bandwidth is the limit, and a piece is a contiguous run of panels. With more rows
// arithmetic is: a piece is some rows by some panels, and processes the features in chunks
// (blocking after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS
// 34(3), 2008). In vectors, all rows multiply a chunk of a panel, which stays in L1 meanwhile,
// unpacked if it is quantized, while the next one is fetched. In tiles, a few rows of x stay in L1,
// and multiply the chunks of all panels.
#pragma once

#include "epilogue.hpp"
#include "linear_weights.hpp"
#include "multiply_tiles.hpp"

namespace batchdeck::LEVEL {

// Most rows and panels of a piece: if all of its sums are stored, they take 0.5 MB of L2.
constexpr int64_t kMostRows = 256;
constexpr int64_t kMostPanels = 14;
// For few rows, the bytes that a core reads in about 60 us.
constexpr int64_t kMostBytes = 1 << 20;
// The thread with the last piece leaves the others idle for at most a sixteenth of its work.
constexpr int64_t kPiecesAThread = 16;

// For x, the bytes that stay in L2 while a piece goes from panel to panel.
constexpr int64_t kMostOfX = 1 << 19;

// Rows and panels of a piece, and features after which it continues with the next panel.
struct LinearBlocks {
  int64_t rows, panels, depth;
  int64_t row_blocks, panel_blocks;
};

inline LinearBlocks linear_blocks(const LinearArgs& args, const LinearKind& kind, int threads,
                                  bool in_tiles) {
  const int64_t depth = round_up(args.k, kDepth), panels = ceil_div(args.n, kPanel);
  const bool are_few = args.m <= kind.at_once;
  LinearBlocks blocks;
  blocks.rows = ceil_div(args.m, ceil_div(args.m, kMostRows));
  blocks.depth = depth;
  if (in_tiles) {
    // Rows that are multiplied at once need no sums stored between chunks.
    if (!are_few) blocks.depth = round_up(ceil_div(depth, ceil_div(depth, kind.chunk)), kDepth);
    blocks.rows = round_up(blocks.rows, kind.at_once);
  } else {
    const int64_t chunks = kMostOfX / (blocks.rows * kind.chunk * kind.number);
    blocks.depth = min(round_up(depth, kind.chunk), max<int64_t>(chunks, 1) * kind.chunk);
  }
  blocks.row_blocks = ceil_div(args.m, blocks.rows);
  const int64_t share = ceil_div(panels * blocks.row_blocks, kPiecesAThread * threads);
  const int64_t most = are_few ? max<int64_t>(1, kMostBytes / kind.panel) : kMostPanels;
  blocks.panels = min(max<int64_t>(share, 1), most);
  blocks.panel_blocks = ceil_div(panels, blocks.panels);
  return blocks;
}

// The rows and panels of a piece.
struct LinearShare {
  LinearShare(const LinearArgs& args, const LinearBlocks& blocks, int64_t piece)
      // Consecutive pieces have weights in common.
      : first_row(piece % blocks.row_blocks * blocks.rows),
        last_row(min(args.m, first_row + blocks.rows)),
        first_panel(piece / blocks.row_blocks * blocks.panels),
        last_panel(min(ceil_div(args.n, kPanel), first_panel + blocks.panels)) {}

  int64_t first_row, last_row;
  int64_t first_panel, last_panel;
};

// Numbers of a piece in its own memory, which begins on a cache line.
constexpr int64_t line_up(int64_t numbers) { return round_up(numbers, 16); }

// The part of the next chunk that group `group` of this many prefetches, while it multiplies a
// chunk of equal length; without a next one, it prefetches its own.
inline Ahead ahead_of(const char* next, int64_t bytes, int64_t groups, int64_t group,
                      const char* present) {
  if (next == nullptr) return {present, 0, 0};
  if (groups == 1) return {next, 128, 64};
  return {next + bytes * group / groups, 128 / groups, 0};
}

template <class Weights, class T, class Out>
inline void linear_in_vectors(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  const LinearKind kind = Weights::kind(args);
  const LinearBlocks blocks = linear_blocks(args, kind, threads, false);
  const LinearShare share(args, blocks, piece);
  const int64_t rows = share.last_row - share.first_row;
  const int64_t at_once = ceil_div(rows, ceil_div(rows, kind.at_once));
  const int64_t groups = ceil_div(rows, at_once);
  Weights weights(args, share.first_row, rows);
  const int64_t end = weights.end();

  // Sums are stored between panels only if x does not fit.
  const bool is_whole = blocks.depth >= end;
  const int64_t sums = rows * kPanel * (is_whole ? 1 : share.last_panel - share.first_panel);
  auto* memory = static_cast<float*>(
      scratch.get(size_t(line_up(sums) * int64_t(sizeof(float)) + weights.room(blocks.depth))));

  for (int64_t from = 0; from < end; from += blocks.depth) {
    const int64_t to = min(end, from + blocks.depth);
    weights.prepare(from, to, blocks.depth, memory + line_up(sums));
    for (int64_t panel = share.first_panel; panel < share.last_panel; panel++) {
      float* c = is_whole ? memory : memory + (panel - share.first_panel) * rows * kPanel;
      for (int64_t k = from; k < to; k += kind.chunk) {
        const int64_t features = min(kind.chunk, to - k), after = k + features;
        // The next chunk to multiply, a part of it with each group of rows.
        const char* next = after < to                       ? weights.at(panel, after)
                           : panel + 1 < share.last_panel ? weights.at(panel + 1, from)
                                                            : nullptr;
        const int64_t bytes = weights.bytes(min(kind.chunk, after < to ? to - after : to - from));
        weights.open(panel, k, features);
        for (int64_t group = 0; group < groups; group++) {
          const int64_t row = group * at_once, count = min(at_once, rows - row);
          const Ahead ahead = ahead_of(next, bytes, groups, group, weights.at(panel, k));
          float* of_rows = c + row * kPanel;
          if (after >= end) {
            // It prefetches its output before the product, and writes it afterwards.
            Epilogue<T, Out> epilogue(args, share.first_row + row, count, panel, of_rows);
            weights.multiply(row, count, panel, k, features, of_rows, ahead);
            epilogue.all();
          } else {
            weights.multiply(row, count, panel, k, features, of_rows, ahead);
          }
        }
      }
    }
  }
}

#ifdef __AMX_BF16__
// The epilogue of a block is computed a few rows at a time during the product of the next one,
// because memory and tiles are idle while it runs alone. Compared with one in a piece: 32 rows, 896
// -> 9728, gated, 25.4 GB/s instead of 23.9; 8 rows, 4864 -> 896, 32 instead of 29.8, as a plain
// sum; 2048 rows, 3 % more.
inline LinearKind tiles(const LinearArgs& args) {
  return {kTileRows, kDepthChunk, sizeof(bf16), Plain<bf16>::kind(args).panel};
}

template <class Out>
inline void linear_in_tiles(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  const LinearBlocks blocks = linear_blocks(args, tiles(args), threads, true);
  const LinearShare share(args, blocks, piece);
  const int64_t depth = round_up(args.k, kDepth);
  const auto* x = static_cast<const bf16*>(args.x);
  const auto* weight = static_cast<const bf16*>(args.weight);
  // Sums are stored between chunks only if there are several.
  const int64_t block = kTileRows * kPanel;
  const bool is_whole = blocks.depth >= depth;
  auto* sums = static_cast<float*>(scratch.get(size_t(
      (is_whole ? 2 * block : blocks.rows * blocks.panels * kPanel) * int64_t(sizeof(float)))));

  Epilogue<bf16, Out> epilogue;
  float* c = sums;
  for (int64_t k = 0; k < depth; k += blocks.depth) {
    const int64_t features = min(blocks.depth, depth - k);
    if (!is_whole) c = sums;
    for (int64_t row = share.first_row; row < share.last_row; row += kTileRows) {
      const int64_t rows = min(kTileRows, share.last_row - row);
      if (row == share.first_row || rows < kTileRows) shape_tiles(rows);
      for (int64_t panel = share.first_panel; panel < share.last_panel; panel++) {
        const bool cold = row == share.first_row, is_last = k + blocks.depth >= depth;
        multiply_in_tiles(x + row * args.x_stride + k, args.x_stride, rows,
                          weight + (panel * depth + k) * kPanel, features, k == 0, c, cold, epilogue);
        if (is_last) epilogue = Epilogue<bf16, Out>(args, row, rows, panel, c);
        c = is_whole && c != sums ? sums : c + block;
      }
    }
  }
  epilogue.all();
  _tile_release();
}
#endif

inline int64_t linear_pieces(const LinearArgs& args, int threads) {
  if (args.m == 0) return 0;
  LinearKind kind = args.dtype == DType::bf16 ? Plain<bf16>::kind(args) : Plain<float>::kind(args);
  bool in_tiles = false;
  switch (args.quantization.coding) {
    case Coding::int8: kind = Coded<Coding::int8>::kind(args); break;
    case Coding::int4: kind = Coded<Coding::int4>::kind(args); break;
    case Coding::int5: kind = Coded<Coding::int5>::kind(args); break;
    case Coding::int6: kind = Coded<Coding::int6>::kind(args); break;
    case Coding::none: break;
  }
#ifdef __AMX_BF16__
  in_tiles = args.quantization.coding == Coding::none && args.dtype == DType::bf16;
  if (in_tiles) kind = tiles(args);
#endif
  const LinearBlocks blocks = linear_blocks(args, kind, threads, in_tiles);
  return blocks.row_blocks * blocks.panel_blocks;
}

// T is the type of a residual, and of x unless the weights are quantized.
template <class T, class Out>
inline void linear_of(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  switch (args.quantization.coding) {
    case Coding::int8:
      return linear_in_vectors<Coded<Coding::int8>, T, Out>(args, threads, piece, scratch);
    case Coding::int4:
      return linear_in_vectors<Coded<Coding::int4>, T, Out>(args, threads, piece, scratch);
    case Coding::int5:
      return linear_in_vectors<Coded<Coding::int5>, T, Out>(args, threads, piece, scratch);
    case Coding::int6:
      return linear_in_vectors<Coded<Coding::int6>, T, Out>(args, threads, piece, scratch);
    case Coding::none:
      break;
  }
#ifdef __AMX_BF16__
  if constexpr (sizeof(T) == 2) return linear_in_tiles<Out>(args, threads, piece, scratch);
#endif
  linear_in_vectors<Plain<T>, T, Out>(args, threads, piece, scratch);
}

inline void linear(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  if (args.dtype == DType::f32) {
    linear_of<float, float>(args, threads, piece, scratch);
  } else if (args.out_dtype == DType::f32) {
    linear_of<bf16, float>(args, threads, piece, scratch);
  } else {
    linear_of<bf16, bf16>(args, threads, piece, scratch);
  }
}

// Packs rows [kPanel * first_panel, ...) of `weight` [n, k].
inline void pack_linear(DType dtype, const void* weight, int64_t stride, int64_t n, int64_t k,
                        int64_t first_panel, int64_t last_panel, void* packed) {
  const auto pack = [&]<class T>(const T* from, T* to) {
    // Adjacent features in a weight's packed row.
    constexpr int64_t kBeside = 4 / sizeof(T), kTile = kBeside == 2 ? 16 : kPanel;
    const int64_t depth = round_up(k, kDepth);
    to += first_panel * kPanel * depth;
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
      for (int64_t at = 0; at < depth; at += kDepth) {
        for (int64_t tile = 0; tile < kPanel; tile += kTile, to += kTile * kDepth) {
          uint32_t square[kTile][kDepth / kBeside] = {};
          const int64_t width = min(max<int64_t>(k - at, 0), kDepth);
          const int64_t height = min(max<int64_t>(n - panel * kPanel - tile, 0), kTile);
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
