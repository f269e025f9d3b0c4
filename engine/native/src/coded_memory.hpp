// Inputs of products with quantized weights: rows of x as codes.
#pragma once

#include "kernels.hpp"

namespace batchdeck {

// Memory for the codes of one product's x at a time.
class CodedMemory {
 public:
  // Allocates for `rows` rows of such products, so that `code` need not.
  void reserve(const LinearArgs& args, int64_t rows);
  // If the weights are quantized, codes x on the pool and sets `args.coded`.
  void code(const Kernels& kernels, LinearArgs& args);

 private:
  Scratch memory_;
};

}  // namespace batchdeck
