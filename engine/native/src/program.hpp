// A forward pass, written down once and run for each step.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "kernels.hpp"
#include "step.hpp"

namespace batchdeck {

// Embeds the step's ids, or its positions.
struct Embed {
  EmbedArgs args;
  bool positions;
};

// Copies the rows that sample, out of the tokens' rows.
struct Gather {
  DType dtype;
  int64_t width;
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
};

// Over the cache of this layer, as it is when the step runs.
struct Store {
  StoreArgs args;
  int64_t layer;
};
struct Attend {
  AttentionArgs args;
  int64_t layer;
};

// Arguments of a kernel, all but what a step brings: its number of rows, ids, positions, slots,
// rows of attention.
using Operation = std::variant<Embed, NormArgs, LinearArgs, RotateArgs, Store, Attend,
                               ElementwiseArgs, Gather>;
constexpr std::array kOperationNames = {"embed", "norm",   "linear",      "rotate",
                                        "store", "attend", "elementwise", "gather"};
static_assert(kOperationNames.size() == std::variant_size_v<Operation>);

// What a step must stay within, so that no operation leaves its memory.
struct Limits {
  int64_t tokens = std::numeric_limits<int64_t>::max();     // rows of the buffers
  int64_t samples = std::numeric_limits<int64_t>::max();    // rows of the buffers by sample
  int64_t ids = std::numeric_limits<int64_t>::max();        // rows of embeddings
  int64_t positions = std::numeric_limits<int64_t>::max();  // rows of cos, sin, embeddings
  int64_t blocks = std::numeric_limits<int64_t>::max();     // of the cache
};

// Operations in order. Whoever adds one has checked its arguments, and lowers the limits by them.
class Program {
 public:
  struct Cost {
    int64_t runs = 0;
    double seconds = 0;
  };
  using Profile = std::array<Cost, std::variant_size_v<Operation>>;

  Limits limits;
  // By layer. Memory and number of blocks may change between two steps, not the shape.
  std::map<int64_t, Cache> caches;

  // `per_sample`: it has a row for each row that samples, else one for each token. Returns its
  // index. Not while the program runs.
  int64_t add(const Operation& operation, bool per_sample);
  int64_t size() const { return int64_t(instructions_.size()); }
  // Runs the operations [first, last). Runs take turns. Throws std::invalid_argument, before it has
  // done anything, where the step leaves the limits.
  void run(Step& step, int64_t first, int64_t last);
  // What each kind has cost since this was last asked; waits for a run to end.
  Profile profile();

 private:
  struct Instruction {
    Operation operation;
    bool per_sample;
  };

  void check(const Step& step) const;

  std::vector<Instruction> instructions_;
  std::mutex turn_;
  Profile profile_;
};

}  // namespace batchdeck
