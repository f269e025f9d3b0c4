// A layer's cache in arrays from Python.
#pragma once

#include <algorithm>

#include "arrays.hpp"
#include "kernels.hpp"

namespace batchdeck {

struct BoundCache {
  Cache cache;
  int64_t blocks;
};

// Made from keys [blocks, kv_heads, key_unit] and values [blocks, kv_heads, value_unit], or from
// keys that contain the values.
inline BoundCache cache_of(const Array& keys, const Array* values, int64_t head_dim,
                           int64_t value_dim) {
  const DType dtype = dtype_of(keys, "keys");
  check_equal(int64_t(keys.ndim()), 3, "keys", "dimensions");
  check_contiguous(keys, "keys");
  const int64_t blocks = keys.shape(0), kv_heads = keys.shape(1), key_numbers = keys.shape(2);
  check_at_least(kv_heads, 1, "kv_heads");
  check_at_least(head_dim, 1, "head_dim");
  check_at_least(value_dim, 1, "value_dim");
  // Units larger than the array would overflow.
  check_at_most(head_dim, std::max<int64_t>(1, key_numbers), "head_dim");
  check_equal(key_numbers, key_unit(dtype, head_dim), "keys", "numbers a unit");
  if (values == nullptr) {
    check_at_most(value_dim, head_dim, "value_dim");
    return {{dtype, kv_heads, head_dim, value_dim, keys.data(), nullptr}, blocks};
  }
  check_dtype(dtype_of(*values, "values"), dtype, "values");
  check_equal(int64_t(values->ndim()), 3, "values", "dimensions");
  check_contiguous(*values, "values");
  const int64_t value_numbers = values->shape(2);
  check_at_most(value_dim, std::max<int64_t>(1, value_numbers), "value_dim");
  check_equal(int64_t(values->shape(0)), blocks, "values", "blocks");
  check_equal(int64_t(values->shape(1)), kv_heads, "values", "heads");
  check_equal(value_numbers, value_unit(value_dim), "values", "numbers a unit");
  return {{dtype, kv_heads, head_dim, value_dim, keys.data(), values->data()}, blocks};
}
inline BoundCache cache_of(const Array& keys, const Array& values, int64_t head_dim,
                           int64_t value_dim) {
  return cache_of(keys, &values, head_dim, value_dim);
}

}  // namespace batchdeck
