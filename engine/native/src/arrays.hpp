// Arguments from Python: arrays by DLPack (torch tensors, numpy arrays), checked, as pointers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "errors.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace batchdeck {

namespace nb = nanobind;
using Array = nb::ndarray<nb::device::cpu>;

inline bool is_bf16(const Array& array) {
  return array.dtype().code == uint8_t(nb::dlpack::dtype_code::Bfloat) && array.dtype().bits == 16;
}
inline bool is_f32(const Array& array) { return array.dtype() == nb::dtype<float>(); }

// float32 or bfloat16.
inline DType dtype_of(const Array& array, const char* name) {
  if (is_f32(array)) return DType::f32;
  if (is_bf16(array)) return DType::bf16;
  refuse(name, "must be float32 or bfloat16");
}

// A dimension of length 1 may have any stride.
inline void check_contiguous(const Array& array, const char* name) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != stride) refuse(name, "is not contiguous");
    stride *= int64_t(array.shape(i));
  }
}

// Adjacent numbers.
template <class T>
T* vector(const Array& array, int64_t size, const char* name) {
  if (array.dtype() != nb::dtype<T>() || array.ndim() != 1) refuse(name, "has the wrong type or rank");
  check_equal(int64_t(array.shape(0)), size, name, "numbers");
  check_contiguous(array, name);
  return static_cast<T*>(array.data());
}
template <class T>
T* vector(const std::optional<Array>& array, int64_t size, const char* name) {
  return array ? vector<T>(*array, size, name) : nullptr;
}

// A matrix to read; its rows may overlap, as in an expanded row.
inline Rows rows_of(const Array& array, const char* name) {
  if (array.ndim() != 2) refuse(name, "must have two dimensions");
  if (array.shape(1) > 1 && array.stride(1) != 1) refuse(name, "has columns that are not adjacent");
  const int64_t rows = array.shape(0), width = array.shape(1);
  const int64_t stride = rows > 1 ? array.stride(0) : width;
  if (stride < 0) refuse(name, "has rows in reverse order");
  return {dtype_of(array, name), array.data(), rows, width, stride};
}

// A matrix to write.
inline Rows writable_rows_of(const Array& array, const char* name) {
  const Rows rows = rows_of(array, name);
  if (rows.stride < rows.width) refuse(name, "has rows that lie on each other");
  return rows;
}

// Block tables, int64 [rows, width].
struct Tables {
  const int64_t* data;
  int64_t width, stride;
};
inline Tables tables_of(const Array& array, int64_t rows, const char* name) {
  if (array.dtype() != nb::dtype<int64_t>() || array.ndim() != 2) {
    refuse(name, "must be int64 and have two dimensions");
  }
  check_equal(int64_t(array.shape(0)), rows, name, "rows");
  if (array.shape(1) > 1 && array.stride(1) != 1) refuse(name, "has columns that are not adjacent");
  const int64_t width = array.shape(1);
  return {static_cast<const int64_t*>(array.data()), width, rows > 1 ? array.stride(0) : width};
}

// For a matrix: more than any model has, and few enough that products do not overflow.
constexpr int64_t kMostFeatures = int64_t{1} << 30;

// Numbers in packed weights.
inline int64_t size_of_packed(int64_t n, int64_t k) {
  check_at_least(n, 1, "n");
  check_at_least(k, 1, "k");
  check_at_most(n, kMostFeatures, "n");
  check_at_most(k, kMostFeatures, "k");
  return packed_size(n, k);
}

// Packed weights of n output and k input features.
inline void* packed_of(const Array& array, int64_t n, int64_t k, DType dtype, const char* name) {
  const int64_t size = size_of_packed(n, k);
  check_dtype(dtype_of(array, name), dtype, name);
  check_equal(int64_t(array.ndim()), 1, name, "dimensions");
  check_contiguous(array, name);
  check_equal(int64_t(array.shape(0)), size, name, "numbers");
  return array.data();
}

// The quantization of weights with this many bits.
inline Quantization quantization_of(int64_t bits, int64_t group, bool has_zeros) {
  Coding coding = Coding::none;
  for (const Coding one : {Coding::int4, Coding::int5, Coding::int6, Coding::int8}) {
    if (bits_of(one) == bits) coding = one;
  }
  if (coding == Coding::none) refuse("bits", "must be 4, 5, 6 or 8");
  const int64_t unit = unit_of(coding);
  check_at_least(group, unit, "group");
  check_at_most(group, kMostGroup / unit * unit, "group");
  if (group % unit != 0) refuse("group", "must be a multiple of " + std::to_string(unit));
  return {coding, has_zeros, group};
}

// Bytes of quantized weights.
inline int64_t size_of_coded(int64_t n, int64_t k, const Quantization& quantization) {
  size_of_packed(n, k);
  return coded_bytes(quantization, n, k);
}

// Quantized weights of n output and k input features.
inline uint8_t* coded_of(const Array& array, int64_t n, int64_t k, const Quantization& quantization,
                         const char* name) {
  return vector<uint8_t>(array, size_of_coded(n, k, quantization), name);
}

// Packed weights, quantized or of this type.
inline const void* weights_of(const Array& array, int64_t n, int64_t k, DType dtype,
                              const std::optional<Quantization>& quantization, const char* name) {
  if (quantization) return coded_of(array, n, k, *quantization, name);
  return packed_of(array, n, k, dtype, name);
}

// A matrix of float16, by its bits.
inline uint16_t* halves_of(const Array& array, int64_t rows, int64_t columns, const char* name) {
  const bool is_half =
      array.dtype().code == uint8_t(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16;
  if (!is_half || array.ndim() != 2) refuse(name, "must be float16 and have two dimensions");
  check_equal(int64_t(array.shape(0)), rows, name, "rows");
  check_equal(int64_t(array.shape(1)), columns, name, "columns");
  check_contiguous(array, name);
  return static_cast<uint16_t*>(array.data());
}

// The table of an embedding with this width and type.
inline const void* table_of(const Array& table, bool packed, int64_t vocab_size, int64_t width,
                            DType dtype, const std::optional<Quantization>& quantization) {
  check_at_least(vocab_size, 1, "vocab_size");
  if (packed) {
    check_at_most(vocab_size, kMostFeatures, "vocab_size");
    return weights_of(table, vocab_size, width, dtype, quantization, "table");
  }
  if (quantization) refuse("quantization", "goes with a packed table");
  const Rows rows = rows_of(table, "table");
  check_dtype(rows.dtype, dtype, "table");
  check_equal(rows.rows, vocab_size, "table", "rows");
  check_equal(rows.width, width, "table", "columns");
  check_contiguous(table, "table");
  return rows.data;
}

}  // namespace batchdeck
