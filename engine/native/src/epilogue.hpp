// The operations on a product's sums: bias, activation, gate, residual.
#pragma once

#include "activation.hpp"

namespace batchdeck::LEVEL {

// Numbers of a float32 output (logits) from which it bypasses the caches: a line that is written
// whole need not be read. 8 rows, 896 -> 32000: 33.1 GB/s instead of 29.5; 32 rows: 27.7 instead of
// 25.
constexpr int64_t kStreamed = 1 << 17;

// Whether an output bypasses the caches: whole lines, more than a core's share of L2.
inline bool is_streamed(const LinearArgs& args) {
  return args.out_dtype == DType::f32 && !args.gated && args.residual == nullptr &&
         args.m * args.n >= kStreamed && args.out_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(args.out) % 64 == 0;
}

// For rows [row, row + rows) of a panel, whose sums are c[rows][kPanel]. The constructor prefetches
// its output.
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

  // A share of the rows, for `times` calls.
  void some(int64_t times) {
    for (due_ += rows_; due_ > 0 && left_ > 0; due_ -= times) finish_row();
  }
  // The remaining rows.
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

}  // namespace batchdeck::LEVEL
