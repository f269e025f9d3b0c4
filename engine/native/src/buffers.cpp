#include "buffers.hpp"

#include <string>

#include "errors.hpp"

namespace batchdeck {

using std::to_string;

int64_t Buffers::add(const Rows& rows, bool per_sample) {
  buffers_.push_back({rows, per_sample});
  return int64_t(buffers_.size()) - 1;
}

Rows Buffers::at(const View& view, const char* name) const {
  const auto [buffer, first, count] = view;
  if (buffer < 0 || buffer >= int64_t(buffers_.size())) {
    refuse(name, "names buffer " + to_string(buffer) + " of " + to_string(buffers_.size()));
  }
  const Rows& rows = buffers_[size_t(buffer)].rows;
  if (first < 0 || count < 1 || first > rows.width || count > rows.width - first) {
    refuse(name, "is " + to_string(count) + " columns from column " + to_string(first) +
                     " of a buffer of " + to_string(rows.width));
  }
  return rows.columns(first, count);
}

Rows Buffers::tokens(const View& view, const char* name) const {
  const Rows rows = at(view, name);
  if (is_per_sample(view)) refuse(name, "has a row for each sample, not for each token");
  return rows;
}

Rows Buffers::like(const View& view, const Rows& x, const View& x_view, const char* name) const {
  const Rows rows = at(view, name);
  check_same_rows(view, x_view, name);
  check_dtype(rows.dtype, x.dtype, name);
  check_equal(rows.width, x.width, name, "columns");
  return rows;
}

bool Buffers::is_per_sample(const View& view) const {
  return buffers_[size_t(std::get<0>(view))].per_sample;
}

void Buffers::check_same_rows(const View& view, const View& x_view, const char* name) const {
  if (is_per_sample(view) != is_per_sample(x_view)) {
    refuse(name, "and x differ: one has a row for each token, the other for each sample");
  }
}

View Buffers::whole_tiles(const View& view, const char* name) const {
  const auto [buffer, first, count] = view;
  const int64_t width = buffers_[size_t(buffer)].rows.width, read = round_up(count, kDepth);
  if (first + read > width) {
    refuse(name, "is read in tiles, up to column " + to_string(first + read) +
                     " of its buffer, which has " + to_string(width));
  }
  return {buffer, first, read};
}

bool overlap(const View& a, const View& b) {
  const auto [buffer, first, count] = a;
  const auto [other, start, number] = b;
  return buffer == other && first < start + number && start < first + count;
}

void check_same_or_apart(const View& view, const View& other, const char* name) {
  if (overlap(view, other) && view != other) {
    refuse(name, "shares some columns with another argument");
  }
}

}  // namespace batchdeck
