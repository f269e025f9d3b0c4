// A mixture of experts as a grouped product: the rows of an expert are adjacent, so that each
// chosen expert is read once a step, and no other one is.
#pragma once

#include <cstdint>
#include <vector>

#include "coded_memory.hpp"
#include "kernels.hpp"

namespace batchdeck {

// Weights and biases of both products are stored expert by expert, each in the layout of
// `LinearArgs`. The memory between the products, and the numbers of rows, are set for each step.
struct ExpertsArgs {
  RouteArgs route;
  LinearArgs up;    // gated or not; its `x` is the layer's
  LinearArgs down;  // its `out` is the layer's
};

// Buffers of a step's experts. Consecutive operations share one.
class ExpertsMemory {
 public:
  // Allocates for `rows` rows of such experts, beside earlier ones.
  void reserve(const ExpertsArgs& args, int64_t rows);

 private:
  friend void run_experts(const Kernels& kernels, const ExpertsArgs& args, ExpertsMemory& memory);

  // The rows of an expert: [first, first + count) of the sorted ones. Its pieces of a product begin
  // at `piece`.
  struct Group {
    int64_t expert, first, count, piece;
  };

  void group(const ExpertsArgs& args);
  void gather(const ExpertsArgs& args);
  void multiply(const Kernels& kernels, LinearArgs all);

  std::vector<int32_t> index_, place_;  // [rows, chosen]: expert, and where it is when sorted
  std::vector<float> weight_;           // [rows, chosen]
  std::vector<int32_t> source_;         // the row from which a sorted one comes
  std::vector<int64_t> starts_;         // [experts + 1]
  std::vector<Group> groups_;
  CodedMemory coded_;
  Scratch memory_;
  int64_t x_bytes_ = 0, inner_bytes_ = 0, parts_bytes_ = 0;
  char *x_ = nullptr, *inner_ = nullptr, *parts_ = nullptr;  // sorted: before, between and after
};

// Chooses experts for all rows of `args.route`, and computes their weighted sum.
void run_experts(const Kernels& kernels, const ExpertsArgs& args, ExpertsMemory& memory);

}  // namespace batchdeck
