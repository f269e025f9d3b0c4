// The inputs of one step, and data derived from them once for all layers.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "attention_plan.hpp"
#include "kernels.hpp"

namespace batchdeck {

// Packed rows of tokens, as engine.model.attention.batch.PackedStep describes them.
struct StepInputs {
  int64_t tokens;
  const int64_t* input_ids;
  const int64_t* position_ids;
  const int64_t* slots;
  int64_t rows;
  const int64_t* starts;
  const int64_t* counts;
  const int64_t* tables;  // [rows, table_width]
  int64_t table_width, table_stride;
  int64_t samples;
  const int64_t* last_tokens;
  const int64_t* states;  // [rows], slots of the sequences' states; null where none are kept
};

// One thread at a time may run it: plans and partial results are made on demand.
class Step {
 public:
  // The largest of each of a step's numbers, -1 if there is none.
  struct Largest {
    int64_t id, position, slot, block, state;
  };

  // Stores the pointers; the numbers must not change. Throws std::invalid_argument if they are
  // negative or inconsistent.
  explicit Step(const StepInputs& inputs);

  const StepInputs& inputs() const { return inputs_; }
  const Largest& largest() const { return largest_; }
  // `args` with the step's rows, its tables and the plan, made by the first layer of its window.
  AttentionArgs attention(AttentionArgs args);
  // Only if the step has states.
  StateRows state_rows() const {
    return {inputs_.rows, inputs_.starts, inputs_.counts, offsets_.data(), inputs_.states};
  }

 private:
  struct PlanKey {
    int64_t window, heads, kv_heads, value_dim;
    auto operator<=>(const PlanKey&) const = default;
  };

  StepInputs inputs_;
  Largest largest_;
  std::vector<int64_t> offsets_;
  std::map<PlanKey, AttentionPlan> plans_;
  Scratch parts_;  // layers take turns
};

}  // namespace batchdeck
