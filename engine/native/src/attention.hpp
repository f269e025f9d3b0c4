// Paged attention. A (query, head) pair is a row; an item's rows are those of all its queries and
// of all heads that share its key/value head, so that each read of the cache serves all of them.
#pragma once

#include "activation.hpp"
#include "attention_products.hpp"
#include "attention_reading.hpp"
#include "softmax.hpp"

namespace batchdeck::LEVEL::attention {

// A running maximum is unchanged until scores exceed it by this many powers of two: rows are
// rescaled a few times in a context, not at every step, and weights of up to 2^8 lose nothing.
constexpr float kSlack = 8;

// Memory divided into arrays, each aligned to 64 bytes.
class Carver {
 public:
  // Without memory it only counts bytes.
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class V>
  V* take(int64_t count) {
    const int64_t offset = used_;
    used_ += round_up(count * int64_t(sizeof(V)), 64);
    return memory_ == nullptr ? nullptr : reinterpret_cast<V*>(memory_ + offset);
  }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

// One head of a group and query of a row (of a step): its numbers divided by their sum, to the
// step's output.
template <class T>
inline void write_row(const AttentionArgs& args, int64_t step_row, int64_t query, int64_t head,
                      float most, float sum, const float* numbers) {
  const int64_t value_dim = args.cache.value_dim;
  const int64_t token = args.offsets[step_row] + query;
  if (args.sinks != nullptr) sum += exp2<float>(args.sinks[head] * kLog2e - most);
  const float share = 1 / sum;
  T* out = static_cast<T*>(args.out) + token * args.out_stride + head * value_dim;
  int64_t d = 0;
  for (; d + 16 <= value_dim; d += 16) store(out + d, load(numbers + d) * share);
  if (d < value_dim) {
    store_first(out + d, load_first(numbers + d, value_dim - d) * share, value_dim - d);
  }
}

// One item's queries against its share of the context.
template <class T>
class Attention {
 public:
  Attention(const AttentionArgs& args, const AttentionItem& item, Reading& ahead, Scratch& scratch)
      : args_(args),
        cache_(args.cache),
        item_(item),
        ahead_(ahead),
        group_(args.heads / cache_.kv_heads),
        rows_(item.queries * group_),
        depth_(key_depth(cache_.dtype, cache_.head_dim) / kUnit<T>),
        width_(round_up(cache_.value_dim, 16)),
        start_(args.starts[item.row]),
        length_(start_ + args.counts[item.row]) {
    Carver sizes(nullptr);
    carve(sizes);
    Carver memory(scratch.get(size_t(sizes.used())));
    carve(memory);
  }

  void run() {
    const int64_t first = item_.begin / kStepBlocks, last = ceil_div(item_.end, kStepBlocks);
    start();
    for (int64_t step = first; step < last; step++) take(step);
    finish();
  }

 private:
  // Rows [first, first + count) of the item, and the positions of the first and the last.
  struct Tile {
    int64_t first, count;
    int64_t earliest, latest;
  };

  void carve(Carver& memory) {
    const int64_t padded = round_up(rows_, 16);
    query_ = memory.take<Operand<T>>(padded * depth_ * kUnit<T>);
    out_ = memory.take<float>(padded * width_);
    most_ = memory.take<float>(padded);
    sums_ = memory.take<float>(padded * kLanes);
    scores_ = memory.take<float>(kTileRows * kStep);
    weights_ = memory.take<Operand<T>>(kTileRows * kStep);
    values_ = memory.take<uint32_t>(prepared_values<T>(cache_));
  }

  int64_t position(int64_t row) const { return start_ + item_.query + row / group_; }

  // A query at `position` attends to the tokens [from, to) of this share.
  int64_t from(int64_t position) const {
    const int64_t share = item_.begin * kBlock;
    return args_.window == 0 ? share : max(share, position - args_.window + 1);
  }
  int64_t to(int64_t position) const { return min(item_.end * kBlock, position + 1); }

  // Queries row by row, padded with zeros, before any token is read. Tiles take at least 16 rows.
  void start() {
    const int64_t depth = depth_ * kUnit<T>;
    const int64_t padded = kTiled<T> ? round_up(rows_, 16) : rows_;
    Operand<T>* to = query_;
    const auto zero = [&](int64_t first) {
      std::memset(to + first, 0, size_t(depth - first) * sizeof(*to));
      to += depth;
    };
    const T* from = static_cast<const T*>(args_.query) + item_.kv_head * group_ * cache_.head_dim +
                    (args_.offsets[item_.row] + item_.query) * args_.query_stride;
    for (int64_t query = 0; query < item_.queries; query++, from += args_.query_stride) {
      for (int64_t head = 0; head < group_; head++) {
        const T* row = from + head * cache_.head_dim;
        if constexpr (std::is_same_v<T, Operand<T>>) {
          std::memcpy(to, row, size_t(cache_.head_dim) * sizeof(T));
        } else {
          for (int64_t d = 0; d < cache_.head_dim; d++) to[d] = widen(row[d]);
        }
        zero(cache_.head_dim);
      }
    }
    for (int64_t row = rows_; row < padded; row++) zero(0);
    for (int64_t row = 0; row < rows_; row++) most_[row] = -INFINITY;
    std::memset(out_, 0, size_t(padded * width_) * sizeof(float));
    std::memset(sums_, 0, size_t(round_up(rows_, kLanes) * kLanes) * sizeof(float));
  }

  // The item's part of a step. Steps are at fixed places of the context, so that a query's result
  // does not depend on the other queries of the item.
  void take(int64_t number) {
    const int64_t base = number * kStepBlocks;
    Step step{.low = max<int64_t>(item_.begin - base, 0), .high = min(item_.end - base, kStepBlocks),
              .keys = {}, .values = {}, .next_keys = {}, .next_values = {}};
    constexpr int64_t kAtOnce = kBlocksAtOnce<T>;
    for (int64_t b = step.low / kAtOnce * kAtOnce; b < round_up(step.high, kAtOnce); b++) {
      // If tiles need a pair and only one block is read, the other's scores are masked.
      const bool is_read = b >= step.low && b < step.high;
      const auto block = Reading::at(args_, item_, base + (is_read ? b : step.low));
      const auto next = is_read ? ahead_.next() : block;
      step.keys[b] = block.keys;
      step.values[b] = is_read ? block.values : nullptr;
      step.next_keys[b] = next.keys;
      step.next_values[b] = next.values;
    }
    prepare_values<T>(step, length_ - base * kBlock, cache_, values_);
    for (int64_t row = 0; row < rows_; row += kTileRows) {
      const int64_t count = min(kTileRows, rows_ - row);
      const Tile tile{row, count, position(row), position(row + count - 1)};
      Step mine = step;
      mine.low = max(step.low, from(tile.earliest) / kBlock - base);
      mine.high = min(step.high, ceil_div(to(tile.latest), kBlock) - base);
      if (mine.low >= mine.high) continue;
      mine.low = mine.low / kAtOnce * kAtOnce;
      mine.high = round_up(mine.high, kAtOnce);
      score<T>(query_ + row * depth_ * kUnit<T>, count, depth_, mine, scores_);
      soften(tile, base * kBlock, mine);
      weigh<T>(weights_, count, mine, cache_.value_dim, values_, out_ + row * width_, width_);
    }
  }

  // Scores to weights 2^(score - maximum), with the running maxima and sums.
  void soften(const Tile& tile, int64_t base, const Step& step) {
    // If all rows attend to a whole block, it needs no mask.
    const int64_t whole_from = ceil_div(from(tile.latest) - base, kBlock);
    const int64_t whole_to = (to(tile.earliest) - base) / kBlock;
    const bool is_cut = step.low < whole_from || step.high > whole_to;
    const bool is_capped = args_.softcap != 0;
    const float factor = is_capped ? kLog2e : args_.scaling * kLog2e;
    const int64_t low = step.low * kBlock, high = step.high * kBlock;
    for (int64_t first = 0; first < tile.count; first += kLanes) {
      const int64_t count = min<int64_t>(kLanes, tile.count - first);
      Lanes tops[kLanes];
      for (int r = 0; r < kLanes; r++) tops[r] = Lanes{} - INFINITY;
      for (int64_t r = 0; r < count; r++) {
        float* row = scores_ + (first + r) * kStep;
        if (is_capped) cap(row, step);
        if (is_cut) mask(row, position(tile.first + first + r), base, step, whole_from, whole_to);
        Lanes top = load_as<Lanes>(row + low);
        for (int64_t i = low + kLanes; i < high; i += kLanes) top = max(top, load_as<Lanes>(row + i));
        tops[r] = top;
      }
      const Lanes maxima = maxima_of(tops) * factor;
      for (int64_t r = 0; r < count; r++) {
        const float shift = raise(tile.first + first + r, maxima[r]);
        const float* row = scores_ + (first + r) * kStep;
        Operand<T>* weights = weights_ + (first + r) * kStep;
        float* sums = sums_ + (tile.first + first + r) * kLanes;
        Lanes sum = load_as<Lanes>(sums);
        for (int64_t i = low; i < high; i += kLanes) {
          const Lanes weight = exp2<T>(load_as<Lanes>(row + i) * factor - shift);
          sum += weight;
          put(weights + i, weight);
        }
        put(sums, sum);
      }
    }
  }

  void cap(float* row, const Step& step) const {
    for (int64_t b = step.low; b < step.high; b++) {
      float* scores = row + b * kBlock;
      store(scores, args_.softcap * tanh(load(scores) * (args_.scaling / args_.softcap)));
    }
  }

  // Skips the blocks [whole_from, whole_to).
  void mask(float* row, int64_t position, int64_t base, const Step& step, int64_t whole_from,
            int64_t whole_to) const {
    const int64_t first = from(position) - base, last = to(position) - base;
    for (int64_t b = step.low; b < step.high; b++) {
      if (b >= whole_from && b < whole_to) continue;
      float* scores = row + b * kBlock;
      const Mask is_seen = lanes(first - b * kBlock, last - b * kBlock);
      store(scores, select(is_seen, load(scores), splat(-INFINITY)));
    }
  }

  // Applies a new maximum of a row; returns the maximum from which its scores are computed.
  float raise(int64_t row, float top) {
    const float before = most_[row];
    if (top > before + kSlack) {
      most_[row] = top;
      if (before > -INFINITY) {
        const float factor = exp2<float>(before - top);
        float* sums = sums_ + row * kLanes;
        put(sums, load_as<Lanes>(sums) * factor);
        float* out = out_ + row * width_;
        for (int64_t d = 0; d < width_; d += kLanes) put(out + d, load_as<Lanes>(out + d) * factor);
      }
    }
    return most_[row] == -INFINITY ? 0 : most_[row];
  }

  // The result, or a part of it.
  void finish() {
    // One sum for each row, in place of those of the first rows.
    for (int64_t first = 0; first < rows_; first += kLanes) {
      Lanes lanes[kLanes];
      for (int r = 0; r < kLanes; r++) lanes[r] = load_as<Lanes>(sums_ + (first + r) * kLanes);
      put(sums_ + first, sums_of(lanes));
    }
    int64_t row = 0;
    for (int64_t query = item_.query; query < item_.query + item_.queries; query++) {
      for (int64_t head = 0; head < group_; head++, row++) {
        const float* out = out_ + row * width_;
        if (item_.part < 0) {
          write_row<T>(args_, item_.row, query, item_.kv_head * group_ + head, most_[row],
                       sums_[row], out);
          continue;
        }
        float* part = args_.parts + item_.part + part_size(row, cache_.value_dim);
        part[0] = most_[row];
        part[1] = sums_[row];
        std::memcpy(part + 2, out, size_t(cache_.value_dim) * sizeof(float));
      }
    }
  }

  const AttentionArgs& args_;
  const Cache& cache_;
  const AttentionItem& item_;
  Reading& ahead_;  // of the next steps
  const int64_t group_, rows_;
  const int64_t depth_;  // units of a key
  const int64_t width_;  // of a row of `out_`
  const int64_t start_, length_;
  Operand<T>* query_;    // [rows][depth], in numbers
  float* out_;           // [rows][width], not yet divided by the sums
  float* most_;          // [rows], running maxima, in powers of two
  float* sums_;          // [rows][kLanes]
  float* scores_;        // [kTileRows][kStep]
  Operand<T>* weights_;  // [kTileRows][kStep]
  uint32_t* values_;     // of `prepare_values`
};

template <class T>
inline void attend_piece(const AttentionArgs& args, int64_t first, int64_t last, Scratch& scratch) {
  Reading ahead(args, first, last);
  for (int64_t b = 0; b < kAhead; b++) fetch_block<T>(args.cache, ahead.next());
  for (int64_t i = first; i < last; i++) Attention<T>(args, args.items[i], ahead, scratch).run();
}

template <class T>
inline void merge_parts(const AttentionArgs& args, const AttentionMerge& merge, Scratch& scratch) {
  const int64_t value_dim = args.cache.value_dim, group = args.heads / args.cache.kv_heads;
  const int64_t size = part_size(merge.queries * group, value_dim);
  auto* numbers = static_cast<float*>(scratch.get(size_t(value_dim) * sizeof(float)));
  const float* first = args.parts + merge.first;
  for (int64_t query = merge.query; query < merge.query + merge.queries; query++) {
    for (int64_t head = 0; head < group; head++, first += part_size(1, value_dim)) {
      float most = -INFINITY, sum = 0;
      for (int64_t p = 0; p < merge.count; p++) {
        const float* part = first + p * size;
        most = max(part[0], most);
      }
      std::memset(numbers, 0, size_t(value_dim) * sizeof(float));
      for (int64_t p = 0; p < merge.count; p++) {
        const float* part = first + p * size;
        const float factor = exp2<float>(part[0] - most);
        sum += part[1] * factor;
        for (int64_t d = 0; d < value_dim; d++) numbers[d] += part[2 + d] * factor;
      }
      write_row<T>(args, merge.row, query, merge.kv_head * group + head, most, sum, numbers);
    }
  }
}

}  // namespace batchdeck::LEVEL::attention

namespace batchdeck::LEVEL {

inline void attend(const AttentionArgs& args, int64_t piece, Scratch& scratch) {
  if (args.cache.dtype == DType::f32) {
    attention::attend_piece<float>(args, args.pieces[piece], args.pieces[piece + 1], scratch);
  } else {
    [[maybe_unused]] const attention::Tiles tiles;
    attention::attend_piece<bf16>(args, args.pieces[piece], args.pieces[piece + 1], scratch);
  }
}

inline void merge(const AttentionArgs& args, int64_t number, Scratch& scratch) {
  if (args.cache.dtype == DType::f32) {
    attention::merge_parts<float>(args, args.merges[number], scratch);
  } else {
    attention::merge_parts<bf16>(args, args.merges[number], scratch);
  }
}

}  // namespace batchdeck::LEVEL
