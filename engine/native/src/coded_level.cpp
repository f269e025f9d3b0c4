// The functions of a level of instructions that differ from AVX2 only in products of codes; LEVEL
// is its name (CMakeLists.txt).
#include "codes.hpp"
#include "level_name.hpp"
#include "linear.hpp"

namespace batchdeck {

const Kernels& JOIN(kernels_, LEVEL)() {
  static const Kernels table = [] {
    Kernels own = kernels_avx2();
    own.name = TEXT(LEVEL);
    own.linear_pieces = LEVEL::linear_pieces;
    own.linear = LEVEL::linear;
    own.code_rows_pieces = LEVEL::code_rows_pieces;
    own.code_rows = LEVEL::code_rows;
    return own;
  }();
  return table;
}

}  // namespace batchdeck
