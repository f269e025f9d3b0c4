// The module engine.native._native.
#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "choice.hpp"
#include "cpu.hpp"
#include "errors.hpp"
#include "pool.hpp"

namespace nb = nanobind;

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
  bind_files(m);
  bind_memory(m);
  bind_layer(m);
  bind_attention(m);
  bind_sample(m);
  bind_state(m);
  bind_step(m);
  bind_experts(m);
  bind_program(m);
}
