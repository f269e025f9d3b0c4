#include "step.hpp"

#include <algorithm>
#include <string>

#include "errors.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// The largest of `count` numbers; none may be negative.
int64_t largest_of(const int64_t* numbers, int64_t count, const char* name) {
  int64_t least = 0, most = -1;
  for (int64_t i = 0; i < count; i++) {
    least = std::min(least, numbers[i]);
    most = std::max(most, numbers[i]);
  }
  if (least < 0) refuse(name, "holds " + std::to_string(least) + ", which is negative");
  return most;
}

}  // namespace

Step::Step(const StepInputs& inputs) : inputs_(inputs), offsets_(size_t(inputs.rows)) {
  largest_ = {largest_of(inputs.input_ids, inputs.tokens, "input_ids"),
              largest_of(inputs.position_ids, inputs.tokens, "position_ids"),
              largest_of(inputs.slots, inputs.tokens, "slots"), -1,
              inputs.states == nullptr ? -1 : largest_of(inputs.states, inputs.rows, "states")};
  int64_t tokens = 0;
  for (int64_t row = 0; row < inputs.rows; row++) {
    const int64_t start = inputs.starts[row], count = inputs.counts[row];
    const std::string place = "[" + std::to_string(row) + "]";
    // Each is bounded before they are added, so that no sum overflows.
    if (start < 0 || start / kBlock >= inputs.table_width) {
      refuse("starts" + place, "is " + std::to_string(start) + ", outside the row's block table");
    }
    if (count < 1 || count > inputs.tokens - tokens) {
      refuse("counts" + place, "is " + std::to_string(count) + "; it must be at least 1, and all " +
                                   "together " + std::to_string(inputs.tokens));
    }
    const int64_t blocks = ceil_div(start + count, kBlock);
    if (blocks > inputs.table_width) {
      refuse("block_tables", "has " + std::to_string(inputs.table_width) + " columns; row " +
                                 std::to_string(row) + " needs " + std::to_string(blocks));
    }
    const int64_t* table = inputs.tables + row * inputs.table_stride;
    largest_.block = std::max(largest_.block, largest_of(table, blocks, "block_tables"));
    offsets_[size_t(row)] = tokens;
    tokens += count;
  }
  if (tokens != inputs.tokens) {
    refuse("counts", "are " + std::to_string(tokens) + " together, but there are " +
                         std::to_string(inputs.tokens) + " tokens");
  }
  const int64_t last = largest_of(inputs.last_tokens, inputs.samples, "last_tokens");
  if (last >= tokens) {
    refuse("last_tokens", "holds " + std::to_string(last) + ", but there are " +
                              std::to_string(tokens) + " tokens");
  }
}

AttentionArgs Step::attention(AttentionArgs args) {
  const PlanKey key{args.window, args.heads, args.cache.kv_heads, args.cache.value_dim};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    found = plans_.emplace(key, plan_attention(inputs_.rows, inputs_.starts, inputs_.counts,
                                               args.heads, args.cache.kv_heads,
                                               args.cache.value_dim, args.window,
                                               Pool::get().threads())).first;
  }
  const AttentionPlan& plan = found->second;
  args.rows = inputs_.rows;
  args.starts = inputs_.starts;
  args.counts = inputs_.counts;
  args.offsets = offsets_.data();
  args.tables = inputs_.tables;
  args.table_stride = inputs_.table_stride;
  args.items = plan.items.data();
  args.pieces = plan.pieces.data();
  args.num_pieces = int64_t(plan.pieces.size()) - 1;
  args.merges = plan.merges.data();
  args.num_merges = int64_t(plan.merges.size());
  args.parts = static_cast<float*>(parts_.get(size_t(plan.parts_size) * sizeof(float)));
  return args;
}

}  // namespace batchdeck
