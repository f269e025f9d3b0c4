// Prefetches the cache blocks that attention reads next.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL::attention {

// Blocks that are fetched before the first is computed; then one more with each.
constexpr int64_t kAhead = 4;

// The blocks that a piece's items read, one after another.
class Reading {
 public:
  // Values within their keys have the address of the keys.
  struct Block {
    const uint32_t *keys, *values;
  };

  Reading(const AttentionArgs& args, int64_t first, int64_t last)
      : args_(args), item_(args.items + first), last_(args.items + last), block_(item_->begin) {}

  static Block at(const AttentionArgs& args, const AttentionItem& item, int64_t block) {
    const Cache& cache = args.cache;
    const int64_t table = args.tables[item.row * args.table_stride + block];
    const int64_t unit = table * cache.kv_heads + item.kv_head;
    const int64_t size = size_of(cache.dtype);
    const auto* keys = static_cast<const uint32_t*>(cache.keys) +
                       unit * key_unit(cache.dtype, cache.head_dim) * size / 4;
    if (cache.values == nullptr) return {keys, keys};
    return {keys, static_cast<const uint32_t*>(cache.values) +
                      unit * value_unit(cache.value_dim) * size / 4};
  }

  // The next block; the last one again if there is no other.
  Block next() {
    while (item_ != last_ && block_ == item_->end) {
      if (++item_ != last_) block_ = item_->begin;
    }
    if (item_ != last_) before_ = at(args_, *item_, block_++);
    return before_;
  }

 private:
  const AttentionArgs& args_;
  const AttentionItem *item_, *const last_;
  int64_t block_;
  Block before_{};
};

template <class T>
inline void fetch_block(const Cache& cache, Reading::Block block) {
  fetch(block.keys, key_unit(cache.dtype, cache.head_dim) * int64_t(sizeof(T)));
  if (block.values == block.keys) return;
  fetch(block.values, value_unit(cache.value_dim) * int64_t(sizeof(T)));
}

}  // namespace batchdeck::LEVEL::attention
