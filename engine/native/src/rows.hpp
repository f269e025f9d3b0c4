// A matrix in memory owned by someone else.
#pragma once

#include "kernels.hpp"

namespace batchdeck {

// Rows of adjacent numbers, `stride` numbers apart.
struct Rows {
  DType dtype;
  void* data;
  int64_t rows, width, stride;

  // `count` columns from `first` on.
  Rows columns(int64_t first, int64_t count) const {
    return {dtype, static_cast<char*>(data) + first * size_of(dtype), rows, count, stride};
  }
};

}  // namespace batchdeck
