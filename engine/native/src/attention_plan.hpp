// How a step's attention is cut into items.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace batchdeck {

struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
  int64_t parts;        // how many
  int64_t part_stride;  // floats a part
};

// The items of rows at positions [starts[r], starts[r] + counts[r]), the most expensive first, for
// layers with this window (0: none). A row is cut the same way whatever rows stand beside it and
// however many threads there are, so that its result is the same too.
AttentionPlan plan_attention(int64_t rows, const int64_t* starts, const int64_t* counts,
                             int64_t heads, int64_t kv_heads, int64_t value_dim, int64_t window);

}  // namespace batchdeck
