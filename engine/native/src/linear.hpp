// The product with packed weights. A decode step reads all weights once, whatever its rows: then
// the speed of memory is the limit, and a piece is a contiguous run of panels. With more rows the
// matrix rate is: a piece is some rows by some panels, whose shares of x, of weights and of sums
// stay in L2 while it goes through the features in chunks, and a few rows of x in L1 (blocking
// after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 34(3),
// 2008).
#pragma once

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
    most = max<int64_t>(1, kMostBytes / (kPanel * depth * int64_t(sizeof(T))));
  }
  blocks.panels = min(max<int64_t>(share, 1), most);
  blocks.panel_blocks = ceil_div(panels, blocks.panels);
  return blocks;
}

inline int64_t linear_pieces(const LinearArgs& args, int threads) {
  if (args.m == 0) return 0;
  const LinearBlocks blocks = args.dtype == DType::bf16 ? linear_blocks<bf16>(args, threads)
                                                        : linear_blocks<float>(args, threads);
  return blocks.row_blocks * blocks.panel_blocks;
}

// Whether an output is written past the caches: whole lines, more than a core's share of L2.
inline bool is_streamed(const LinearArgs& args) {
  return args.out_dtype == DType::f32 && !args.gated && args.residual == nullptr &&
         args.m * args.n >= kStreamed && args.out_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(args.out) % 64 == 0;
}

// The epilogue of a block: rows [row, row + rows) of a panel, whose sums are c[rows][kPanel]. It is
// computed a few rows at a time beside the product of the next block, for memory and tiles stand
// still while it has the core alone. Against one in a piece: 32 rows, 896 -> 9728, gated, 25.4 GB/s
// instead of 23.9; 8 rows, 4864 -> 896, 32 instead of 29.8, as a plain sum; 2048 rows, 3 % more.
template <class T, class Out>
class Epilogue {
 public:
  Epilogue() = default;  // of no rows
  Epilogue(const LinearArgs& args, int64_t row, int64_t rows, int64_t panel, const float* c)
      : args_(&args), rows_(rows), left_(rows), c_(c), streamed_(is_streamed(args)) {
    const int64_t width = args.gated ? kPanel / 2 : kPanel, column = panel * width;
    count_ = min(width, (args.gated ? args.n / 2 : args.n) - column);
    if (args.bias != nullptr) {
      for (int half = 0; half < 2; half++) {
        const int64_t at = panel * kPanel + half * 16, left = args.n - at;
        if (left > 0) bias_[half] = load_first(args.bias + at, left);
      }
    }
    out_ = static_cast<Out*>(args.out) + row * args.out_stride + column;
    residual_ = static_cast<const T*>(args.residual);
    if (residual_ != nullptr) residual_ += row * args.residual_stride + column;
    if (streamed_) return;
    for (int64_t r = 0; r < rows; r++) {
      claim(out_ + r * args.out_stride, count_ * int64_t(sizeof(Out)));
    }
  }

  // A share of the rows, when it is called `times` times.
  void some(int64_t times) {
    for (due_ += rows_; due_ > 0 && left_ > 0; due_ -= times) finish_row();
  }
  // What is left.
  void all() {
    while (left_ > 0) finish_row();
  }

 private:
  void finish_row() {
    if (args_->gated) {
      f32x16 gate = load(c_) + bias_[0], up = load(c_ + 16) + bias_[1];
      if (args_->limit < INFINITY) {
        const f32x16 limit = splat(args_->limit);  // first, so that NaN stays
        gate = min(limit, gate);
        up = max(-limit, min(limit, up));
      }
      store(out_, apply(args_->activation, gate) * (up + args_->shift));
    } else {
      for (int half = 0; half * 16 < count_; half++) {
        const int64_t at = half * 16, left = count_ - at;
        f32x16 y = load(c_ + at) + bias_[half];
        if (residual_ == nullptr) {
          y = apply(args_->activation, y);
        } else {
          y = fma(y, splat(args_->alpha), load_first(residual_ + at, left));
        }
        if constexpr (sizeof(Out) == sizeof(float)) {
          if (streamed_ && left >= 16) {
            stream(out_ + at, y);
            continue;
          }
        }
        store_first(out_ + at, y, left);
      }
    }
    if (residual_ != nullptr) residual_ += args_->residual_stride;
    out_ += args_->out_stride;
    c_ += kPanel;
    left_--;
  }

  const LinearArgs* args_ = nullptr;
  int64_t rows_ = 0, left_ = 0, due_ = 0, count_ = 0;
  const float* c_ = nullptr;
  bool streamed_ = false;
  f32x16 bias_[2] = {};
  Out* out_ = nullptr;
  const T* residual_ = nullptr;
};

template <class T, class Out>
inline void linear_piece(const LinearArgs& args, int threads, int64_t piece, Scratch& scratch) {
  const LinearBlocks blocks = linear_blocks<T>(args, threads);
  // Pieces that follow each other have weights in common.
  const int64_t first_row = piece % blocks.row_blocks * blocks.rows;
  const int64_t last_row = min(args.m, first_row + blocks.rows);
  const int64_t first_panel = piece / blocks.row_blocks * blocks.panels;
  const int64_t last_panel = min(ceil_div(args.n, kPanel), first_panel + blocks.panels);
  const int64_t depth = round_up(args.k, kDepth);
  const auto* x = static_cast<const T*>(args.x);
  const auto* weight = static_cast<const T*>(args.weight);
  // Sums outlive a chunk only where there are several.
  const int64_t block = kRows<T> * kPanel;
  const bool is_whole = blocks.depth >= depth;
  auto* sums = static_cast<float*>(scratch.get(size_t(
      (is_whole ? 2 * block : blocks.rows * blocks.panels * kPanel) * int64_t(sizeof(float)))));

  Epilogue<T, Out> epilogue;
  float* c = sums;
  for (int64_t k = 0; k < depth; k += blocks.depth) {
    // Panels are filled up with zeros; x of float32 is read no further than it has numbers.
    const int64_t end = sizeof(T) == 2 ? depth : args.k;
    const int64_t features = min(blocks.depth, end - k);
    if (!is_whole) c = sums;
    for (int64_t row = first_row; row < last_row; row += kRows<T>) {
      const int64_t rows = min<int64_t>(kRows<T>, last_row - row);
#ifdef __AMX_BF16__
      if (sizeof(T) == 2 && (row == first_row || rows < kRows<T>)) shape_tiles(rows);
#endif
      for (int64_t panel = first_panel; panel < last_panel; panel++) {
        const bool cold = row == first_row, is_last = k + blocks.depth >= depth;
        multiply(x + row * args.x_stride + k, args.x_stride, rows,
                 weight + (panel * depth + k) * kPanel, features, k == 0, c, cold, epilogue);
        if (is_last) epilogue = Epilogue<T, Out>(args, row, rows, panel, c);
        c = is_whole && c != sums ? sums : c + block;
      }
    }
  }
  epilogue.all();
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
