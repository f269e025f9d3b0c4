// The level of kernels in use.
#pragma once

#include <string>

#include "kernels.hpp"

namespace batchdeck {

// Throws std::runtime_error before a level has been chosen.
const Kernels& kernels();
// Throws std::invalid_argument for a level that this processor lacks.
void choose_level(const std::string& name);

}  // namespace batchdeck
