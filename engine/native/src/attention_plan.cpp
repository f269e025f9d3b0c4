#include "attention_plan.hpp"

#include <algorithm>

namespace batchdeck {
namespace {

// (Query, head) pairs of an item: they share each step's values as tiles.
constexpr int64_t kItemRows = 128;
// Numbers of keys, and as many of values, that an item reads: 256 KB in bfloat16.
constexpr int64_t kItemNumbers = 1 << 16;
// Items make a piece together, up to twice what one may read, so that only the first waits for
// memory: 8 sequences of 128 tokens take 13 us a layer, and 20 in six pieces a thread; 32 of 1,024
// take 485 us, and 512 if each item is a piece (two threads of Zen 5, 14 and 2 heads of 64). The
// thread with the last piece leaves the others idle for at most this share.
constexpr int64_t kPiecesAThread = 3;
// A row of more items than this for each head keeps all cores busy without splitting its context.
constexpr int64_t kFewItems = 4;
// Parts of a few queries, counted by (query, head) pairs in each: 1 MB with values of 128 numbers.
// Sequences may share a context, so that nothing else bounds the parts of a step.
constexpr int64_t kPartRows = 2048;
// Shares of a context begin where steps of the kernel begin, in blocks.
constexpr int64_t kAlignment = 8;

int64_t most_queries_of(int64_t group) { return std::max<int64_t>(1, kItemRows / group); }

// The number of shares for this many blocks, for this many (query, head) pairs in all heads.
int64_t shares_of(int64_t blocks, int64_t pairs, int64_t value_dim) {
  const int64_t share = std::max(kAlignment, kItemNumbers / value_dim / kBlock);
  return std::min(ceil_div(blocks, share), std::max<int64_t>(1, kPartRows / pairs));
}

// Runs of items of about equal work, in blocks to read or compute.
std::vector<int64_t> pieces_of(const std::vector<AttentionItem>& items, int64_t value_dim,
                               int threads) {
  const auto work = [](const AttentionItem& item) {
    return item.queries * (item.end - item.begin);
  };
  int64_t all = 0;
  for (const AttentionItem& item : items) all += work(item);
  const int64_t even = all / (kPiecesAThread * threads);
  const int64_t most = std::min(even, 2 * kItemNumbers / value_dim / kBlock);
  std::vector<int64_t> pieces{0};
  int64_t sum = 0;
  for (int64_t i = 0; i < int64_t(items.size()); i++) {
    const int64_t more = work(items[size_t(i)]);
    if (sum > 0 && sum + more > most) {
      pieces.push_back(i);
      sum = 0;
    }
    sum += more;
  }
  if (sum > 0) pieces.push_back(int64_t(items.size()));
  return pieces;
}

}  // namespace

AttentionPlan plan_attention(int64_t rows, const int64_t* starts, const int64_t* counts,
                             int64_t heads, int64_t kv_heads, int64_t value_dim, int64_t window,
                             int threads) {
  const int64_t group = heads / kv_heads;
  const int64_t most_queries = most_queries_of(group);
  AttentionPlan plan{};
  for (int64_t row = 0; row < rows; row++) {
    const bool may_split = ceil_div(counts[row], most_queries) <= kFewItems;
    for (int64_t query = 0; query < counts[row]; query += most_queries) {
      const int64_t queries = std::min(most_queries, counts[row] - query);
      const int64_t earliest = starts[row] + query, latest = earliest + queries - 1;
      const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, earliest - window + 1) / kBlock;
      const int64_t end = latest / kBlock + 1;
      const int64_t shares = may_split ? shares_of(end - begin, queries * heads, value_dim) : 1;
      const int64_t size = part_size(queries * group, value_dim);
      for (int64_t kv_head = 0; kv_head < kv_heads; kv_head++) {
        const int64_t first = plan.parts_size;
        int64_t from = begin, parts = 0;
        for (int64_t share = 1; share <= shares; share++) {
          const int64_t even = begin + (end - begin) * share / shares;
          const int64_t to = std::min(end, round_up(even, kAlignment));
          if (to <= from) continue;
          const int64_t part = shares == 1 ? -1 : first + size * parts++;
          plan.items.push_back({row, kv_head, query, queries, from, to, part});
          from = to;
        }
        if (shares > 1) {
          plan.merges.push_back({row, kv_head, query, queries, first, parts});
          plan.parts_size += parts * size;
        }
      }
    }
  }
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const auto& a, const auto& b) {
    return a.queries * (a.end - a.begin) > b.queries * (b.end - b.begin);
  });
  plan.pieces = pieces_of(plan.items, value_dim, threads);
  return plan;
}

int64_t most_plan_bytes(int64_t rows, int64_t tokens, int64_t longest, int64_t heads,
                        int64_t kv_heads, int64_t value_dim) {
  const int64_t cuts = rows + tokens / most_queries_of(heads / kv_heads);
  const int64_t shares = shares_of(ceil_div(longest, kBlock), heads, value_dim);
  const int64_t pairs = shares == 1 ? 0 : std::min(tokens * heads * shares, cuts * kPartRows);
  // Vectors may have twice the capacity that they need, and half of it once more during sorting.
  const int64_t vectors = cuts * kv_heads * ((5 * shares * int64_t(sizeof(AttentionItem)) / 2) +
                                             2 * shares * int64_t(sizeof(int64_t)) +
                                             2 * int64_t(sizeof(AttentionMerge)));
  return part_size(pairs, value_dim) * int64_t(sizeof(float)) + 2 * vectors;
}

}  // namespace batchdeck
