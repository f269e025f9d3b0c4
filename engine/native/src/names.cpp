#include "names.hpp"

#include <iterator>

#include "errors.hpp"

namespace batchdeck {

Activation activation_of(const std::string& name) {
  // In the order of the enumeration.
  static constexpr const char* kNames[] = {"none",       "silu", "gelu",  "gelu_tanh",
                                           "quick_gelu", "relu", "relu2", "tanh",
                                           "sigmoid",    "softplus"};
  static_assert(std::size(kNames) == size_t(Activation::softplus) + 1);
  for (size_t i = 0; i < std::size(kNames); i++) {
    if (name == kNames[i]) return Activation(i);
  }
  refuse("activation", "is '" + name + "', which is none of ours");
}

Combine combine_of(const std::string& name) {
  if (name == "none") return Combine::none;
  if (name == "add") return Combine::add;
  if (name == "multiply") return Combine::multiply;
  refuse("combine", "is '" + name + "'; it must be none, add or multiply");
}

Score score_of(const std::string& name) {
  if (name == "softmax") return Score::softmax;
  if (name == "sigmoid") return Score::sigmoid;
  refuse("score", "is '" + name + "'; it must be softmax or sigmoid");
}

}  // namespace batchdeck
