// The module engine.native._native.
#include "arrays.hpp"

namespace batchdeck {

Activation activation_of(const std::string& name) {
  static const char* const names[] = {"none",       "silu", "gelu",  "gelu_tanh", "quick_gelu",
                                      "relu", "relu2", "tanh", "sigmoid"};
  for (size_t i = 0; i < std::size(names); i++) {
    if (name == names[i]) return Activation(i);
  }
  refuse("activation", "is '" + name + "', which is none of ours");
}

}  // namespace batchdeck

NB_MODULE(_native, m) {
  using namespace batchdeck;
  m.def("levels", &levels, "Levels of instructions that this processor has, the best first.");
  m.def("choose_level", &choose_level, nb::arg("name"));
  m.def("level", [] { return std::string(kernels().name); });
  m.def("threads", [] { return Pool::get().threads(); });
  m.def("set_threads", [](int count) {
    if (count < 1) refuse("count", "is " + std::to_string(count) + "; it must be at least 1");
    const nb::gil_scoped_release unlocked;
    Pool::get().resize(count);
  }, nb::arg("count"));
  bind_linear(m);
  bind_layer(m);
  bind_attention(m);
  bind_sample(m);
  bind_program(m);
}
