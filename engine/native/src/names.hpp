// Enumerations that Python selects by name.
#pragma once

#include <string>

#include "kernels.hpp"

namespace batchdeck {

// Throw std::invalid_argument for an unknown name.
Activation activation_of(const std::string& name);
Combine combine_of(const std::string& name);
Score score_of(const std::string& name);

}  // namespace batchdeck
