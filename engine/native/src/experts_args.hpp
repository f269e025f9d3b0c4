// Arguments of a mixture of experts: the choice of each row's experts, and their sum. Part of
// kernels.hpp.
#pragma once

#include <cstdint>

namespace batchdeck {

enum class DType : uint8_t;

// How logits of experts become weights.
enum class Score : uint8_t { softmax, sigmoid };

// Chooses experts for each row by the logits of a router, and weighs them.
//
// score is the softmax or the sigmoid of all logits. The `chosen` experts with the greatest score +
// correction are taken, the greatest first, of equals the first. With groups (DeepSeek-V2, arXiv
// 2405.04434, 2.1.4) only experts of the `kept_groups` best groups can be: a group of experts beside
// each other is as good as the sum of its `group_best` greatest. Their weights are scale * score,
// over the sum of those taken where `normalised`; and each expert's is multiplied by its factor.
struct RouteArgs {
  int64_t rows, experts, chosen;
  const float* logits;  // [rows, experts]
  int64_t logits_stride;
  Score score;
  const float* correction;  // [experts], or null
  int64_t groups, kept_groups, group_best;  // 1, 1 and 1: no groups
  bool normalised;
  float scale;
  const float* factors;  // [experts], or null
  int32_t* index;  // [rows, chosen]; always an expert that there is, NaN or not
  float* weight;   // [rows, chosen]
};

// out[row] = the sum over j of weight[row, j] * parts[place[row, j]], in the order of j.
struct CombineArgs {
  DType dtype;  // of parts and out
  int64_t rows, chosen, width;
  const float* weight;   // [rows, chosen]
  const int32_t* place;  // [rows, chosen]
  const void* parts;     // [rows * chosen, width]
  int64_t parts_stride;
  void* out;
  int64_t out_stride;
};

}  // namespace batchdeck
