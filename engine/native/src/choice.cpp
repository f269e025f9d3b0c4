#include "choice.hpp"

#include <atomic>
#include <stdexcept>

#include "cpu.hpp"
#include "errors.hpp"

namespace batchdeck {
namespace {

const Kernels& table(const std::string& name) {
  if (name == "amx") return kernels_amx();
  if (name == "avx512") return kernels_avx512();
  return name == "avxvnni" ? kernels_avxvnni() : kernels_avx2();
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

void choose_level(const std::string& name) {
  std::string known;
  for (const auto& level : levels()) {
    if (level == name) {
      chosen = &table(name);
      return;
    }
    known += known.empty() ? level : ", " + level;
  }
  refuse("level", "is '" + name + "'; this processor has " + (known.empty() ? "none" : known));
}

const Kernels& kernels() {
  const Kernels* level = chosen;
  if (level == nullptr) throw std::runtime_error("no level of instructions has been chosen");
  return *level;
}

}  // namespace batchdeck
