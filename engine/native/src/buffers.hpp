// The memory of a program's values, and how its operations identify parts of it.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "rows.hpp"

namespace batchdeck {

// Buffer, first column, columns.
using View = std::tuple<int64_t, int64_t, int64_t>;

// All throw std::invalid_argument, with `name`, for an unsuitable view.
class Buffers {
 public:
  // `per_sample`: whether its rows are those that sample, else all tokens. Returns its index.
  int64_t add(const Rows& rows, bool per_sample);

  Rows at(const View& view, const char* name) const;
  // With a row for each token.
  Rows tokens(const View& view, const char* name) const;
  // With the rows, type and width of `x`, whose view is `x_view`.
  Rows like(const View& view, const Rows& x, const View& x_view, const char* name) const;

  // For a view that `at` has accepted.
  bool is_per_sample(const View& view) const;
  void check_same_rows(const View& view, const View& x_view, const char* name) const;
  // The same with columns up to a multiple of kDepth, which the buffer must have.
  View whole_tiles(const View& view, const char* name) const;

 private:
  struct Buffer {
    Rows rows;
    bool per_sample;
  };

  std::vector<Buffer> buffers_;
};

// Whether two views share columns.
bool overlap(const View& a, const View& b);
// They must be the same columns, or not overlap.
void check_same_or_apart(const View& view, const View& other, const char* name);

}  // namespace batchdeck
