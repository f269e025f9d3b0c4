// A layer's experts in arrays from Python.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "experts.hpp"

namespace batchdeck {

// Arguments checked and named, arrays kept alive.
class BoundExperts {
 public:
  // See `RouteArgs` for how experts are chosen. Each expert computes down(activation(up x)), or
  // down(activation(gate x) * (up x)) if `gated`: `up` then has gates and ups in the layout of
  // LinearArgs, 2 * round_up(inner, 16) features. Packed weights of all experts are consecutive, as
  // are biases, [experts, features] float32. Either product may be quantized.
  BoundExperts(int64_t experts, int64_t chosen, const std::string& score,
               const std::optional<Array>& correction, int64_t groups, int64_t kept_groups,
               int64_t group_best, bool normalised, float scale, const std::optional<Array>& factors,
               int64_t width, int64_t inner, const Array& up, const std::optional<Array>& up_bias, bool gated,
               const std::string& activation, float limit, float shift, const Array& down,
               const std::optional<Array>& down_bias,
               const std::optional<Quantization>& up_quantization,
               const std::optional<Quantization>& down_quantization);

  // All but rows, logits, x and out, for rows of this type.
  ExpertsArgs args(DType dtype) const;
  const std::vector<Array>& kept() const { return kept_; }

 private:
  ExpertsArgs args_{};
  std::vector<Array> kept_;
};

}  // namespace batchdeck
