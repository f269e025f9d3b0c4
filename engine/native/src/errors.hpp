// Arguments that are wrong, told by name.
#pragma once

#include <stdexcept>
#include <string>

namespace batchdeck {

[[noreturn]] inline void refuse(const std::string& name, const std::string& what) {
  throw std::invalid_argument(name + " " + what);
}

}  // namespace batchdeck
