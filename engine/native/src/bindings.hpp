// The parts of the module, one in each file.
#pragma once

#include <nanobind/nanobind.h>

namespace batchdeck {

void bind_linear(nanobind::module_&);
void bind_files(nanobind::module_&);
void bind_memory(nanobind::module_&);
void bind_layer(nanobind::module_&);
void bind_attention(nanobind::module_&);
void bind_sample(nanobind::module_&);
void bind_state(nanobind::module_&);
void bind_step(nanobind::module_&);
void bind_experts(nanobind::module_&);
void bind_program(nanobind::module_&);

}  // namespace batchdeck
