// What the processor can run.
#pragma once

#include <string>
#include <vector>

namespace batchdeck {

// The levels of instructions that processor and system let us run, the best first.
std::vector<std::string> levels();

}  // namespace batchdeck
