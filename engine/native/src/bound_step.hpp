// A step in arrays from Python.
#pragma once

#include <mutex>
#include <vector>

#include "arrays.hpp"
#include "step.hpp"

namespace batchdeck {

// Arguments checked and named, arrays kept alive.
class BoundStep {
 public:
  // All int64: ids, positions and slots [tokens], starts and counts [rows], block tables
  // [rows, blocks], last tokens [rows that sample], states [rows]. They must not change while the
  // step is in use.
  BoundStep(const Array& input_ids, const Array& position_ids, const Array& slots,
            const Array& starts, const Array& counts, const Array& block_tables,
            const Array& last_tokens, const std::optional<Array>& states);

  // Locks the step for the calling thread: threads that run a step take turns.
  std::unique_lock<std::mutex> take_turn() { return std::unique_lock(turn_); }
  Step& step() { return step_; }

 private:
  std::vector<Array> kept_;
  Step step_;
  std::mutex turn_;
};

}  // namespace batchdeck
