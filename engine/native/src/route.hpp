// The choice of experts for a row, and the sum of their results.
#pragma once

#include "share.hpp"
#include "simd.hpp"

namespace batchdeck::LEVEL {

// Numbers that a piece of a sum reads.
constexpr int64_t kCombinePiece = 1 << 14;

// The `count` greatest of `n` numbers, the greatest first, of equals the first. They are always
// `count` different ones, whatever the numbers.
inline void take_best(const float* numbers, int64_t n, int64_t count, int32_t* best) {
  int64_t have = 0;
  for (int64_t i = 0; i < n; i++) {
    const float number = numbers[i];
    if (have == count && !(number > numbers[best[count - 1]])) continue;
    int64_t at = have < count ? have++ : count - 1;
    for (; at > 0 && number > numbers[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = int32_t(i);
  }
}

inline void score_logits(const RouteArgs& args, const float* logits, float* scores) {
  if (args.score == Score::sigmoid) {
    each_vector(0, args.experts, [&](int64_t i, auto count) {
      store_first(scores + i, 1.0f / (exp(-load_first(logits + i, count)) + 1.0f), count);
    });
    return;
  }
  float most = logits[0];
  for (int64_t i = 1; i < args.experts; i++) most = max(logits[i], most);
  float total = 0;
  each_vector(0, args.experts, [&](int64_t i, auto count) {
    store_first(scores + i, exp(load_first(logits + i, count) - most), count);
  });
  for (int64_t i = 0; i < args.experts; i++) total += scores[i];
  for (int64_t i = 0; i < args.experts; i++) scores[i] /= total;
}

// Excludes all experts outside the best groups.
inline void keep_groups(const RouteArgs& args, float* choices, float* groups, int32_t* best) {
  const int64_t size = args.experts / args.groups;
  for (int64_t group = 0; group < args.groups; group++) {
    const float* members = choices + group * size;
    take_best(members, size, args.group_best, best);
    groups[group] = 0;
    for (int64_t i = 0; i < args.group_best; i++) groups[group] += members[best[i]];
  }
  take_best(groups, args.groups, args.kept_groups, best);
  for (int64_t group = 0; group < args.groups; group++) {
    bool kept = false;
    for (int64_t i = 0; i < args.kept_groups; i++) kept |= best[i] == group;
    for (int64_t i = 0; !kept && i < size; i++) choices[group * size + i] = -INFINITY;
  }
}

inline void route(const RouteArgs& args, int64_t row, Scratch& scratch) {
  const int64_t n = args.experts;
  auto* scores = static_cast<float*>(scratch.get(size_t(4 * n) * sizeof(float)));
  float *choices = scores + n, *groups = choices + n;
  auto* best = reinterpret_cast<int32_t*>(groups + n);
  const float* logits = args.logits + row * args.logits_stride;
  score_logits(args, logits, scores);
  // Logits have the order of their scores, with fewer equal ones.
  const bool by_score = args.correction != nullptr || args.group_best > 1;
  std::memcpy(choices, by_score ? scores : logits, size_t(n) * sizeof(float));
  for (int64_t i = 0; args.correction != nullptr && i < n; i++) choices[i] += args.correction[i];
  if (args.groups > 1) keep_groups(args, choices, groups, best);
  int32_t* index = args.index + row * args.chosen;
  float* weight = args.weight + row * args.chosen;
  take_best(choices, n, args.chosen, index);
  float total = 0;
  for (int64_t j = 0; j < args.chosen; j++) total += weight[j] = scores[index[j]];
  for (int64_t j = 0; j < args.chosen; j++) {
    weight[j] *= args.normalised ? args.scale / total : args.scale;
    if (args.factors != nullptr) weight[j] *= args.factors[index[j]];
  }
}

template <class T>
inline void combine_row(const CombineArgs& args, int64_t row) {
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const float* weight = args.weight + row * args.chosen;
  const int32_t* place = args.place + row * args.chosen;
  const T* parts = static_cast<const T*>(args.parts);
  each_vector(0, args.width, [&](int64_t i, auto count) {
    f32x16 sum = {};
    for (int64_t j = 0; j < args.chosen; j++) {
      sum = fma(splat(weight[j]), load_first(parts + place[j] * args.parts_stride + i, count), sum);
    }
    store_first(out + i, sum, count);
  });
}

inline int64_t combine_pieces(const CombineArgs& args, int) {
  return row_pieces(args.rows, args.width * args.chosen, kCombinePiece);
}

inline void combine(const CombineArgs& args, int threads, int64_t piece, Scratch&) {
  const Share rows = share_of(args.rows, combine_pieces(args, threads), piece);
  for (int64_t row = rows.first; row < rows.last; row++) {
    if (args.dtype == DType::bf16) combine_row<bf16>(args, row);
    else combine_row<float>(args, row);
  }
}

}  // namespace batchdeck::LEVEL
