// Experts for Python.
#include <utility>

#include "bindings.hpp"
#include "bound_experts.hpp"
#include "names.hpp"

namespace batchdeck {
namespace {

using std::to_string;

// More experts than any model has, few enough that products do not overflow.
constexpr int64_t kMostExperts = 1 << 20;

// Packed weights of all experts, each of n output and k input features.
const void* packed_experts(const Array& array, int64_t experts, int64_t n, int64_t k,
                           const std::optional<Quantization>& quantization, const char* name) {
  const int64_t size = quantization ? size_of_coded(n, k, *quantization) : size_of_packed(n, k);
  if (quantization) {
    if (array.dtype() != nb::dtype<uint8_t>()) refuse(name, "must be uint8");
  } else {
    dtype_of(array, name);
  }
  check_equal(int64_t(array.ndim()), 1, name, "dimensions");
  check_contiguous(array, name);
  check_at_most(size, kMostFeatures, name);
  check_equal(int64_t(array.shape(0)), experts * size, name, "numbers");
  return array.data();
}

}  // namespace

BoundExperts::BoundExperts(int64_t experts, int64_t chosen, const std::string& score,
                           const std::optional<Array>& correction, int64_t groups,
                           int64_t kept_groups, int64_t group_best, bool normalised, float scale,
                           const std::optional<Array>& factors, int64_t width, int64_t inner, const Array& up,
                           const std::optional<Array>& up_bias, bool gated,
                           const std::string& activation, float limit, float shift,
                           const Array& down, const std::optional<Array>& down_bias,
                           const std::optional<Quantization>& up_quantization,
                           const std::optional<Quantization>& down_quantization) {
  check_at_least(experts, 1, "experts");
  check_at_most(experts, kMostExperts, "experts");
  check_at_least(chosen, 1, "chosen");
  check_at_most(chosen, experts, "chosen");
  check_at_least(groups, 1, "groups");
  if (experts % groups) {
    refuse("groups", "is " + to_string(groups) + ", which does not divide " + to_string(experts));
  }
  check_at_least(kept_groups, 1, "kept_groups");
  check_at_most(kept_groups, groups, "kept_groups");
  check_at_least(group_best, 1, "group_best");
  check_at_most(group_best, experts / groups, "group_best");
  if (kept_groups * (experts / groups) < chosen) {
    refuse("kept_groups", "is " + to_string(kept_groups) + ", too few for " + to_string(chosen) +
                              " experts");
  }
  if (!(limit > 0)) refuse("limit", "is " + to_string(limit) + "; it must be above 0");
  if (!gated && (limit < std::numeric_limits<float>::infinity() || shift != 0)) {
    refuse("limit, shift", "go with gates only");
  }
  check_at_least(inner, 1, "inner");
  check_at_most(inner, kMostFeatures / 4, "inner");
  const int64_t features = gated ? 2 * round_up(inner, 16) : inner;
  args_.route = {.experts = experts, .chosen = chosen, .score = score_of(score),
                 .correction = vector<float>(correction, experts, "correction"),
                 .groups = groups, .kept_groups = kept_groups, .group_best = group_best,
                 .normalised = normalised, .scale = scale,
                 .factors = vector<float>(factors, experts, "factors")};
  args_.up = {.n = features, .k = width,
              .weight = packed_experts(up, experts, features, width, up_quantization, "up"),
              .bias = vector<float>(up_bias, experts * features, "up_bias"),
              .gated = gated, .activation = activation_of(activation), .alpha = 1,
              .limit = limit, .shift = shift,
              .quantization = up_quantization.value_or(Quantization{})};
  args_.down = {.n = width, .k = inner,
                .weight = packed_experts(down, experts, width, inner, down_quantization, "down"),
                .bias = vector<float>(down_bias, experts * width, "down_bias"),
                .activation = Activation::none, .alpha = 1,
                .quantization = down_quantization.value_or(Quantization{})};
  kept_ = {up, down};
  for (const auto& one : {correction, factors, up_bias, down_bias}) {
    if (one) kept_.push_back(*one);
  }
}

ExpertsArgs BoundExperts::args(DType dtype) const {
  ExpertsArgs args = args_;
  for (const auto& [product, array] :
       {std::pair(&args.up, &kept_[0]), std::pair(&args.down, &kept_[1])}) {
    if (product->quantization.coding == Coding::none) {
      check_dtype(dtype, dtype_of(*array, "weight"), "x");
    }
    product->dtype = product->out_dtype = dtype;
  }
  return args;
}

void bind_experts(nb::module_& m) {
  using namespace nb::literals;
  using Maybe = const std::optional<Array>&;
  nb::class_<BoundExperts>(m, "Experts", "The experts of a layer, and how they are chosen.")
      .def(nb::init<int64_t, int64_t, const std::string&, Maybe, int64_t, int64_t, int64_t, bool,
                    float, Maybe, int64_t, int64_t, const Array&, Maybe, bool, const std::string&,
                    float, float, const Array&, Maybe, const std::optional<Quantization>&,
                    const std::optional<Quantization>&>(),
           "experts"_a, "chosen"_a, "score"_a, "correction"_a.none(), "groups"_a, "kept_groups"_a,
           "group_best"_a, "normalised"_a, "scale"_a, "factors"_a.none(), "width"_a, "inner"_a,
           "up"_a, "up_bias"_a.none(), "gated"_a, "activation"_a, "limit"_a, "shift"_a, "down"_a,
           "down_bias"_a.none(), "up_quantization"_a = nb::none(),
           "down_quantization"_a = nb::none());
}

}  // namespace batchdeck
