// How a step's attention is divided into items.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace batchdeck {

struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<int64_t> pieces;  // where each begins in items, and the end
  std::vector<AttentionMerge> merges;
  int64_t parts_size;  // floats of all parts
};

// The items of rows at positions [starts[r], starts[r] + counts[r]), the most expensive first, for
// layers with this window (0: none), and their pieces for this many threads. A row's items do not
// depend on the other rows or the number of threads, so that its result does not either.
AttentionPlan plan_attention(int64_t rows, const int64_t* starts, const int64_t* counts,
                             int64_t heads, int64_t kv_heads, int64_t value_dim, int64_t window,
                             int threads);

// Most bytes of a step's parts, and of its plans for layers with and without a window, for contexts
// up to `longest` tokens.
int64_t most_plan_bytes(int64_t rows, int64_t tokens, int64_t longest, int64_t heads,
                        int64_t kv_heads, int64_t value_dim);

}  // namespace batchdeck
