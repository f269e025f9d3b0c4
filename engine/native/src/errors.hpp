// Invalid arguments, reported by name: std::invalid_argument, in Python ValueError.
#pragma once

#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace batchdeck {

[[noreturn]] inline void refuse(const std::string& name, const std::string& what) {
  throw std::invalid_argument(name + " " + what);
}

inline void check_equal(int64_t number, int64_t wanted, const char* name, const char* unit) {
  if (number != wanted) {
    refuse(name, "has " + std::to_string(number) + " " + unit + ", not " + std::to_string(wanted));
  }
}

// The number of `width` columns for which each of `columns` numbers of y is used.
inline int64_t repeat_of(int64_t columns, int64_t width) {
  if (columns == width) return 1;
  if (columns < 1 || width % columns) {
    refuse("y", "has " + std::to_string(columns) + " columns, not " + std::to_string(width) +
                    " or what divides it");
  }
  return width / columns;
}

inline void check_at_least(int64_t number, int64_t least, const char* name) {
  if (number < least) {
    refuse(name, "is " + std::to_string(number) + "; it must be at least " + std::to_string(least));
  }
}

inline void check_at_most(int64_t number, int64_t most, const char* name) {
  if (number > most) {
    refuse(name, "is " + std::to_string(number) + "; it must be at most " + std::to_string(most));
  }
}

inline void check_dtype(DType dtype, DType wanted, const char* name) {
  if (dtype != wanted) {
    refuse(name, wanted == DType::f32 ? "is bfloat16, not float32" : "is float32, not bfloat16");
  }
}

}  // namespace batchdeck
