#include "pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace batchdeck {

namespace {

using Clock = std::chrono::steady_clock;

// How long a worker waits for the next operation before it sleeps. Measured on two cores of a Xeon
// (Sapphire Rapids, virtual): a spinning worker begins 0.4 us after the call; to wake a sleeping
// one costs the caller 11 us, and it begins after 27 us. Between the operations of a step are the
// short ones that the caller computes alone, well below 100 us.
constexpr std::chrono::microseconds kSpin{100};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Whether it became true within `limit`, by the clock, because a pause is 10 to 140 cycles long.
template <class Condition>
bool spin(const Condition& condition, Clock::duration limit) {
  const auto end = Clock::now() + limit;
  do {
    for (int i = 0; i < 16; i++) {
      if (condition()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return condition();
}

// Threads that start meanwhile block signals: those are for the interpreter, and one that a worker
// received would not interrupt the interpreter's wait.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

}  // namespace

struct Pool::State {
  explicit State(int threads) : threads(threads) {}

  std::mutex turn;
  std::atomic<int> threads;
  std::vector<std::thread> workers;
  bool is_started = false;
  Scratch scratch;  // of the calling thread

  // An operation: written while no piece is left, read by the holders of a piece. Other threads
  // must not read it, so a late worker does no harm: it takes from `left` either nothing, or a
  // piece of the next operation, which is as good as any.
  Piece piece = nullptr;
  const void* context = nullptr;
  int64_t count = 0;
  std::atomic<bool> failed{false};

  alignas(64) std::atomic<int64_t> left{0};  // pieces not taken yet; below 0 is none
  alignas(64) std::atomic<int64_t> done{0};  // pieces finished
  alignas(64) std::atomic<uint32_t> calls{0};  // changes with each operation; workers sleep on it
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};

  void take(Scratch& mine) noexcept {
    for (int64_t have; (have = left.fetch_sub(1, std::memory_order_acquire)) > 0;) {
      try {
        piece(context, count - have, mine);
      } catch (const std::bad_alloc&) {
        failed.store(true, std::memory_order_relaxed);
      }
      done.fetch_add(1, std::memory_order_release);
    }
  }

  bool is_called() const {
    return left.load(std::memory_order_relaxed) > 0 || stop.load(std::memory_order_relaxed);
  }

  void work() noexcept {
    Scratch mine;
    while (!stop.load(std::memory_order_relaxed)) {
      if (!spin([this] { return is_called(); }, kSpin)) sleep();
      take(mine);
    }
  }

  // The order matters, here and in call(): either the caller sees the sleeper, or the sleeper sees
  // the pieces, or `calls` has moved and the futex does not wait.
  void sleep() {
    sleepers.fetch_add(1);
    const uint32_t seen = calls.load();
    if (left.load() <= 0 && !stop.load()) futex(calls, FUTEX_WAIT, seen);
    sleepers.fetch_sub(1);
  }

  void call(int64_t pieces) {
    left.store(pieces);
    calls.fetch_add(1);
    const auto wanted = uint32_t(std::min<int64_t>(pieces - 1, INT_MAX));  // the caller works too
    if (sleepers.load() > 0) futex(calls, FUTEX_WAKE, wanted);
  }

  // If the system allows fewer threads, those run all the pieces.
  void start() {
    is_started = true;
    const SignalsBlocked blocked;
    try {
      for (int i = 1; i < threads; i++) {
        workers.emplace_back([this] { work(); });
        pthread_setname_np(workers.back().native_handle(), ("kernels-" + std::to_string(i)).c_str());
      }
    } catch (const std::system_error&) {
    }
  }

  void end() {
    stop.store(true);
    calls.fetch_add(1);
    futex(calls, FUTEX_WAKE, INT_MAX);
    for (auto& worker : workers) worker.join();
    workers.clear();
    is_started = false;
    stop.store(false);
  }
};

Pool::Pool() : state_(new State(1)) {
  // A child has no workers, and locks held by them and other threads will never be released. The
  // old state is abandoned.
  pthread_atfork(nullptr, nullptr, [] {
    Pool& pool = get();
    pool.state_ = new State(pool.state_->threads);
  });
}

Pool& Pool::get() {
  static Pool* pool = new Pool;  // never destroyed: the process ends, its threads with it
  return *pool;
}

int Pool::threads() const { return state_->threads; }

void Pool::resize(int threads) {
  const std::lock_guard lock(state_->turn);
  state_->end();
  state_->threads = threads;
}

void Pool::run(int64_t count, Piece piece, const void* context) {
  State& s = *state_;
  const std::lock_guard lock(s.turn);
  if (count <= 1 || s.threads == 1) {
    for (int64_t i = 0; i < count; i++) piece(context, i, s.scratch);
    return;
  }
  if (!s.is_started) s.start();
  s.piece = piece;
  s.context = context;
  s.count = count;
  s.done.store(0, std::memory_order_relaxed);
  s.call(count);
  s.take(s.scratch);
  // Waits for pieces, not workers: one that never woke delays nothing.
  const auto is_done = [&] { return s.done.load(std::memory_order_acquire) == count; };
  if (!spin(is_done, kSpin)) {
    while (!is_done()) sched_yield();
  }
  if (s.failed.exchange(false, std::memory_order_relaxed)) throw std::bad_alloc();
}

}  // namespace batchdeck
