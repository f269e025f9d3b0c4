// The threads of kernels: one pool for the process.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace batchdeck {

// The calling thread and threads() - 1 workers take pieces from one counter, first piece first. A
// worker that finds none spins for a while, because the next operation of a step is microseconds
// away, then sleeps. Workers start with the first operation that can use them, as many as the
// system allows; a forked child starts its own.
class Pool {
 public:
  using Piece = void (*)(const void* context, int64_t piece, Scratch& scratch);

  static Pool& get();
  int threads() const;
  // At least 1, the calling thread. Waits for the running operation.
  void resize(int threads);
  // Calls piece(context, i, scratch) for each i below `count`; returns when all are done. A single
  // piece runs on the caller and wakes no worker. Not from within a piece. Calls from several
  // threads take turns. Throws std::bad_alloc if a piece did, once none is running; a piece must
  // throw nothing else.
  void run(int64_t count, Piece piece, const void* context);

  template <class F>
  void each(int64_t count, const F& body) {
    run(count, [](const void* f, int64_t i, Scratch& s) { (*static_cast<const F*>(f))(i, s); }, &body);
  }

 private:
  Pool();
  struct State;
  State* state_;
};

// Runs all pieces of a kernel on the pool. The caller has released the interpreter's lock.
template <class Args>
void run_pieces(int64_t (*pieces)(const Args&, int), void (*kernel)(const Args&, int, int64_t, Scratch&),
                const Args& args) {
  Pool& pool = Pool::get();
  const int threads = pool.threads();
  pool.each(pieces(args, threads),
            [&](int64_t piece, Scratch& scratch) { kernel(args, threads, piece, scratch); });
}

}  // namespace batchdeck
