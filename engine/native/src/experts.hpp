// A mixture of experts as a grouped product: the rows of an expert beside each other, so that each
// expert that any row chose is read once a step, and no other one is.
#pragma once

#include <cstdint>
#include <vector>

#include "coded_memory.hpp"
#include "kernels.hpp"

namespace batchdeck {

// Weights and biases of both products lie expert after expert, each expert's as `LinearArgs` has
// them. What is between the products, and the numbers of rows, are set for each step.
struct ExpertsArgs {
  RouteArgs route;
  LinearArgs up;    // gated or not; its `x` is the layer's
  LinearArgs down;  // its `out` is the layer's
};

// What a step's experts compute in. Operations that follow each other share one.
class ExpertsMemory {
 public:
  // Room for `rows` rows of such experts, beside all that it had room for before.
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
  std::vector<int32_t> source_;         // the row that a sorted one is of
  std::vector<int64_t> starts_;         // [experts + 1]
  std::vector<Group> groups_;
  CodedMemory coded_;
  Scratch memory_;
  int64_t x_bytes_ = 0, inner_bytes_ = 0, parts_bytes_ = 0;
  char *x_ = nullptr, *inner_ = nullptr, *parts_ = nullptr;  // sorted: before, between and behind
};

// Chooses experts for all rows of `args.route`, and computes their weighted sum.
void run_experts(const Kernels& kernels, const ExpertsArgs& args, ExpertsMemory& memory);

}  // namespace batchdeck
