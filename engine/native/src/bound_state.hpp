// Arguments of operations with a state for each sequence, from Python.
#pragma once

#include <algorithm>

#include "arrays.hpp"
#include "names.hpp"

namespace batchdeck {

// Memory of states: the number of slots, and the address. Each slot has `numbers` of `dtype`.
struct StateMemory {
  int64_t slots;
  void* data;
};
inline StateMemory state_of(const Array& array, DType dtype, int64_t numbers) {
  check_dtype(dtype_of(array, "state"), dtype, "state");
  check_contiguous(array, "state");
  if (array.ndim() == 0) refuse("state", "must have a dimension of slots");
  const int64_t slots = array.shape(0);
  check_at_least(slots, 1, "slots");
  check_equal(int64_t(array.size()) / slots, numbers, "state", "numbers a slot");
  return {slots, array.data()};
}

// All but the rows of a step. `x` and `out` have the same shape and type, and do not overlap.
inline ConvolveArgs convolve_of(const Rows& out, const Rows& x, const Array& weight,
                                const std::optional<Array>& bias, const std::string& activation,
                                void* state) {
  const Rows taps = rows_of(weight, "weight");
  check_dtype(taps.dtype, DType::f32, "weight");
  check_contiguous(weight, "weight");
  check_equal(taps.width, x.width, "weight", "columns");
  check_at_least(taps.rows, 2, "taps");
  check_at_most(taps.rows, kMostTaps, "taps");
  return {.dtype = x.dtype, .rows = {}, .width = x.width, .taps = taps.rows,
          .x = x.data, .x_stride = x.stride,
          .weight = static_cast<const float*>(taps.data),
          .bias = vector<float>(bias, x.width, "bias"),
          .activation = activation_of(activation), .state = state,
          .out = out.data, .out_stride = out.stride};
}

// A recurrence's inputs for each token.
struct RecurInputs {
  Rows query, key, value, decay;
  std::optional<Rows> beta;
};

// Parameters of a recurrence; see RecurArgs.
struct RecurWay {
  int64_t key_heads;
  std::optional<Array> decay_bias;
  Array decay_scale;
  bool softplus;
  float low, high;
  bool scaled;
  std::optional<Array> skip;
  bool normalize;
  float scaling;
};

inline RecurArgs recur_of(const Rows& out, const RecurInputs& in, const RecurWay& way) {
  const int64_t heads = in.decay.width, key_heads = way.key_heads;
  check_at_least(heads, 1, "heads");
  check_at_least(key_heads, 1, "key_heads");
  if (heads % key_heads) refuse("key_heads", "is " + std::to_string(key_heads) +
                                                 ", which does not divide the heads");
  if (in.query.width % key_heads || in.query.width == 0) {
    refuse("query", "has columns that key_heads does not divide");
  }
  check_equal(in.key.width, in.query.width, "key", "columns");
  if (in.value.width % heads || in.value.width == 0) {
    refuse("value", "has columns that its heads do not divide");
  }
  check_equal(out.width, in.value.width, "out", "columns");
  if (in.beta) check_equal(in.beta->width, heads, "beta", "columns");
  for (const Rows& rows : {in.query, in.key, in.value, in.decay, in.beta.value_or(out)}) {
    check_dtype(rows.dtype, out.dtype, "what is read");
    check_equal(rows.rows, out.rows, "what is read", "rows");
  }
  if (!(way.low <= way.high)) refuse("low", "is above high");
  const Rows beta = in.beta.value_or(Rows{});
  return {.dtype = out.dtype, .rows = {}, .heads = heads, .key_heads = key_heads,
          .key_dim = in.query.width / key_heads, .value_dim = in.value.width / heads,
          .query = in.query.data, .query_stride = in.query.stride,
          .key = in.key.data, .key_stride = in.key.stride,
          .value = in.value.data, .value_stride = in.value.stride,
          .decay = in.decay.data, .decay_stride = in.decay.stride,
          .beta = beta.data, .beta_stride = beta.stride,
          .decay_bias = vector<float>(way.decay_bias, heads, "decay_bias"),
          .decay_scale = vector<float>(way.decay_scale, heads, "decay_scale"),
          .softplus = way.softplus, .low = way.low, .high = way.high, .scaled = way.scaled,
          .skip = vector<float>(way.skip, heads, "skip"),
          .normalize = way.normalize, .scaling = way.scaling, .state = nullptr,
          .out = out.data, .out_stride = out.stride};
}

}  // namespace batchdeck
