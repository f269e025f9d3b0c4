// Kinds of packed weights, and how a piece of a product in vectors multiplies each.
#pragma once

#include "multiply.hpp"
#include "multiply_codes.hpp"

namespace batchdeck::LEVEL {

// Features of a chunk. A panel's chunk takes 16 KB of L1, 32 KB of float32.
constexpr int64_t kDepthChunk = 256;
constexpr int64_t kCodesChunk = 512;  // of quantized weights
// For opened weights.
constexpr int64_t kOpenedChunk = (1 << 14) / (kPanel * int64_t(sizeof(CodeOf)));

// How weights of one kind are multiplied: rows at once, features of a chunk, bytes of a number of x
// and of a panel.
struct LinearKind {
  int64_t at_once, chunk, number, panel;
};

// Packed weights of T, multiplied in vectors.
template <class T>
class Plain {
 public:
  Plain(const LinearArgs& args, int64_t first_row, int64_t rows)
      : args_(args),
        depth_(round_up(args.k, kDepth)),
        rows_(rows),
        given_(static_cast<const T*>(args.x) + first_row * args.x_stride) {}

  static LinearKind kind(const LinearArgs& args) {
    return {kRows, kDepthChunk, sizeof(Operand<T>),
            kPanel * round_up(args.k, kDepth) * int64_t(sizeof(T))};
  }
  // Panels are padded with zeros; float32 x is not read past its end.
  int64_t end() const { return sizeof(T) == 2 ? depth_ : args_.k; }
  const char* at(int64_t panel, int64_t k) const {
    return static_cast<const char*>(args_.weight) + bytes(panel * depth_ + k);
  }
  static int64_t bytes(int64_t features) { return features * kPanel * int64_t(sizeof(T)); }

  // Bytes of memory that `prepare` needs for this many features.
  int64_t room(int64_t features) const {
    return is_copied() ? rows_ * copy_stride(features) * int64_t(sizeof(Operand<T>)) : 0;
  }
  // Prepares the features [from, to) of x, at most `features`.
  void prepare(int64_t from, int64_t to, int64_t features, void* memory) {
    if (!is_copied()) {
      if constexpr (kIsSame) x_ = given_;
      stride_ = args_.x_stride;
      return;
    }
    auto* copy = static_cast<Operand<T>*>(memory);
    x_ = copy;
    begin_ = from;
    stride_ = copy_stride(features);
    for (int64_t row = 0; row < rows_; row++) {
      const T* x = given_ + row * args_.x_stride + from;
      if constexpr (kIsSame) {
        std::memcpy(copy + row * stride_, x, size_t(to - from) * sizeof(T));
      } else {
        for (int64_t k = 0; k < to - from; k += 16) store(copy + row * stride_ + k, load(x + k));
      }
    }
  }
  // Prepares a panel's features [k, k + features) for all rows, until the next call.
  static void open(int64_t, int64_t, int64_t) {}
  void multiply(int64_t row, int64_t rows, int64_t panel, int64_t k, int64_t features, float* c,
                const Ahead& ahead) const {
    LEVEL::multiply(x_ + row * stride_ + k - begin_, stride_, rows,
                    reinterpret_cast<const T*>(at(panel, k)), features, k == 0, c, ahead);
  }

 private:
  static constexpr bool kIsSame = std::is_same_v<T, Operand<T>>;

  // Rows that are half a page or a whole one apart share their sets of L1, each of which has 8 or
  // 12 ways.
  bool is_copied() const {
    return !kIsSame || (rows_ > 4 && args_.x_stride * int64_t(sizeof(T)) % 2048 == 0);
  }
  static int64_t copy_stride(int64_t features) {
    return features + 64 / int64_t(sizeof(Operand<T>));
  }

  const LinearArgs& args_;
  int64_t depth_, rows_;
  const T* given_;
  // x as the products read it; its first column is feature `begin_`.
  const Operand<T>* x_ = nullptr;
  int64_t stride_ = 0, begin_ = 0;
};

// Quantized weights.
template <Coding C>
class Coded {
 public:
  Coded(const LinearArgs& args, int64_t first_row, int64_t)
      : quantization_(args.quantization),
        groups_(ceil_div(args.k, quantization_.group)),
        weight_(static_cast<const uint8_t*>(args.weight)),
        rows_(args.coded),
        first_row_(first_row),
        chunk_(chunk_of(args)),
        are_opened_(are_opened(args)) {}

  static LinearKind kind(const LinearArgs& args) {
    const Quantization& q = args.quantization;
    return {are_opened(args) ? kOpenedRows : kPackedRows, chunk_of(args), kCodeBytes,
            ceil_div(args.k, q.group) * group_bytes(q)};
  }
  int64_t end() const { return groups_ * quantization_.group; }
  const char* at(int64_t panel, int64_t k) const {
    return reinterpret_cast<const char*>(weight_) +
           (panel * groups_ + k / quantization_.group) * group_bytes(quantization_);
  }
  int64_t bytes(int64_t features) const {
    return features / quantization_.group * group_bytes(quantization_);
  }
  int64_t room(int64_t) const {
    return are_opened_ ? opened_bytes<C>(quantization_, chunk_ / quantization_.group) : 0;
  }
  void prepare(int64_t, int64_t, int64_t, void* memory) { memory_ = memory; }
  void open(int64_t panel, int64_t k, int64_t features) {
    if (!are_opened_) return;
    opened_ = open_codes<C>(reinterpret_cast<const uint8_t*>(at(panel, k)), quantization_,
                            features / quantization_.group, memory_);
  }
  void multiply(int64_t row, int64_t rows, int64_t panel, int64_t k, int64_t features, float* c,
                const Ahead& ahead) const {
    row += first_row_;
    const auto* x = reinterpret_cast<const CodeOf*>(rows_.codes) + row * kPlanes * rows_.stride + k;
    const CodedGroup* x_groups = rows_.groups + row * rows_.groups_stride + k / quantization_.group;
    const int64_t count = features / quantization_.group;
    if (are_opened_) {
      multiply_opened<C>(x, rows_.stride, x_groups, rows_.groups_stride, rows, opened_, quantization_, count,
                         k == 0, c, ahead);
    } else {
      multiply_packed<C>(x, rows_.stride, x_groups, rows_.groups_stride, rows,
                         reinterpret_cast<const uint8_t*>(at(panel, k)), quantization_, count, k == 0, c,
                         ahead);
    }
  }

 private:
  static bool are_opened(const LinearArgs& args) { return args.m > kFewRows<C>; }
  static int64_t chunk_of(const LinearArgs& args) {
    const int64_t group = args.quantization.group;
    return max<int64_t>(1, (are_opened(args) ? kOpenedChunk : kCodesChunk) / group) * group;
  }

  const Quantization& quantization_;
  int64_t groups_;
  const uint8_t* weight_;
  const CodedRows& rows_;
  int64_t first_row_, chunk_;
  bool are_opened_;
  void* memory_ = nullptr;
  Opened opened_ = {};  // the chunk being multiplied
};

}  // namespace batchdeck::LEVEL
