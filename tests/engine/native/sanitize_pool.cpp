// The pool under a sanitizer: every piece exactly once, whoever calls, fails or is late.
// sanitize_pool SEED ROUNDS
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "pool.hpp"

using namespace batchdeck;

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

// One operation; its pieces write plain memory, which the caller reads when it has ended.
void operate(std::mt19937& random) {
  const auto count = int64_t(random() % 40);
  const int64_t failing = random() % 8 == 0 && count > 0 ? int64_t(random()) % count : -1;
  std::vector<int> times(size_t(count), 0);
  bool failed = false;
  try {
    Pool::get().each(count, [&](int64_t piece, Scratch& scratch) {
      auto* mine = static_cast<int64_t*>(scratch.get(sizeof(int64_t) * size_t(1 + piece)));
      for (int64_t i = 0; i <= piece; i++) mine[i] = piece;
      if (piece == failing) throw std::bad_alloc();
      times[size_t(piece)] += mine[piece] == piece;
    });
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  expect(failed == (failing >= 0), "a failure, and only that, reaches the caller");
  for (int64_t i = 0; i < count; i++) {
    // A single piece, or a pool of one thread, stops where it fails.
    const bool is_done = times[size_t(i)] == 1;
    expect(is_done || (failed && times[size_t(i)] == 0), "each piece is done once");
  }
}

void call(unsigned seed, int rounds) {
  std::mt19937 random(seed);
  for (int i = 0; i < rounds; i++) {
    operate(random);
    if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

}  // namespace

int main(int, char** argv) {
  const auto seed = unsigned(std::atoi(argv[1]));
  const int rounds = std::atoi(argv[2]);
  Pool::get().resize(4);
  call(seed, rounds);
  std::vector<std::thread> callers;
  for (unsigned i = 1; i <= 3; i++) callers.emplace_back(call, seed + i, rounds);
  std::mt19937 random(seed);
  for (int i = 0; i < 20; i++) {
    Pool::get().resize(1 + int(random() % 5));
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  for (auto& caller : callers) caller.join();
  std::puts("ok");
}
