// Capabilities of the processor.
#pragma once

#include <string>
#include <vector>

namespace batchdeck {

// The levels of instructions that processor and system support, the best first.
std::vector<std::string> levels();

}  // namespace batchdeck
