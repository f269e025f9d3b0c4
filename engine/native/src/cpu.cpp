#include "cpu.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace batchdeck {
namespace {

// AMX state must be requested from Linux, once for a process (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Registers of the processor's page 7 of features.
struct Features {
  explicit Features(unsigned part) : c(part) {
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  }
  unsigned a = 7, b = 0, c, d = 0;
};

// Whether processor and system support a level. The rest of x86-64-v3 came with AVX2 or before.
bool runs(const std::string& name) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512bf16") &&
                      __builtin_cpu_supports("avx512vnni");
  if (name == "avx2") return avx2;
  if (name == "avxvnni") return avx2 && (Features(1).a >> 4 & 1);
  if (name == "avx512") return avx512;
  static const bool tiles = may_use_tiles();
  const unsigned d = Features(0).d;
  const bool amx = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);  // AMX-BF16, -TILE, -INT8
  return avx512 && amx && tiles;
}

}  // namespace

std::vector<std::string> levels() {
  std::vector<std::string> found;
  for (const char* name : {"amx", "avx512", "avxvnni", "avx2"}) {
    if (runs(name)) found.emplace_back(name);
  }
  return found;
}

}  // namespace batchdeck
