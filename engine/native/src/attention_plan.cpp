#include "attention_plan.hpp"

#include <algorithm>

namespace batchdeck {
namespace {

// (Query, head) pairs of an item: they share each step's values as tiles.
constexpr int64_t kItemRows = 128;
// Numbers of keys, and as many of values, that an item reads: 256 KB in bfloat16.
constexpr int64_t kItemNumbers = 1 << 16;
// A row of more items than this for each head keeps all cores busy without a split of its context.
constexpr int64_t kFewItems = 4;
// Shares of a context begin where steps of the kernel begin, in blocks.
constexpr int64_t kAlignment = 8;

}  // namespace

AttentionPlan plan_attention(int64_t rows, const int64_t* starts, const int64_t* counts,
                             int64_t heads, int64_t kv_heads, int64_t value_dim, int64_t window) {
  const int64_t group = heads / kv_heads;
  const int64_t most_queries = std::max<int64_t>(1, kItemRows / group);
  AttentionPlan plan{{}, {}, 0, 0};
  for (int64_t row = 0; row < rows; row++) {
    const bool may_split = ceil_div(counts[row], most_queries) <= kFewItems;
    for (int64_t query = 0; query < counts[row]; query += most_queries) {
      const int64_t queries = std::min(most_queries, counts[row] - query);
      const int64_t earliest = starts[row] + query, latest = earliest + queries - 1;
      const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, earliest - window + 1) / kBlock;
      const int64_t end = latest / kBlock + 1;
      const int64_t blocks = std::max(kAlignment, kItemNumbers / value_dim / kBlock);
      const int64_t shares = may_split ? ceil_div(end - begin, blocks) : 1;
      for (int64_t kv_head = 0; kv_head < kv_heads; kv_head++) {
        const int64_t first = plan.parts;
        int64_t from = begin;
        for (int64_t share = 1; share <= shares; share++) {
          const int64_t even = begin + (end - begin) * share / shares;
          const int64_t to = std::min(end, round_up(even, kAlignment));
          if (to <= from) continue;
          const int64_t part = shares == 1 ? -1 : plan.parts++;
          plan.items.push_back({row, kv_head, query, queries, from, to, part});
          from = to;
        }
        if (shares > 1) {
          plan.merges.push_back({row, kv_head, query, queries, first, plan.parts - first});
          plan.part_stride = std::max(plan.part_stride, queries * group * (2 + value_dim));
        }
      }
    }
  }
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const auto& a, const auto& b) {
    return a.queries * (a.end - a.begin) > b.queries * (b.end - b.begin);
  });
  return plan;
}

}  // namespace batchdeck
