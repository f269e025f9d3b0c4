// Arguments from Python: arrays by DLPack (torch tensors, numpy arrays), checked, as pointers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "choice.hpp"
#include "cpu.hpp"
#include "errors.hpp"
#include "kernels.hpp"
#include "pool.hpp"
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

// Numbers beside each other.
template <class T>
T* vector(const Array& array, int64_t size, const char* name) {
  if (array.dtype() != nb::dtype<T>() || array.ndim() != 1) refuse(name, "has the wrong type or rank");
  if (int64_t(array.shape(0)) != size) {
    refuse(name, "has " + std::to_string(array.shape(0)) + " numbers, not " + std::to_string(size));
  }
  if (size > 1 && array.stride(0) != 1) refuse(name, "is not contiguous");
  return static_cast<T*>(array.data());
}
template <class T>
T* vector(const std::optional<Array>& array, int64_t size, const char* name) {
  return array ? vector<T>(*array, size, name) : nullptr;
}

inline Rows rows_of(const Array& array, const char* name) {
  if (array.ndim() != 2) refuse(name, "must have two dimensions");
  if (array.shape(1) > 1 && array.stride(1) != 1) refuse(name, "has columns that are not adjacent");
  const int64_t rows = array.shape(0), width = array.shape(1);
  return {dtype_of(array, name), array.data(), rows, width, rows > 1 ? array.stride(0) : width};
}

Activation activation_of(const std::string& name);

void bind_linear(nb::module_&);
void bind_layer(nb::module_&);
void bind_attention(nb::module_&);
void bind_sample(nb::module_&);
void bind_program(nb::module_&);

}  // namespace batchdeck
