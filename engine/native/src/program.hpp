// A forward pass, recorded once and run for each step.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "coded_memory.hpp"
#include "experts.hpp"
#include "kernels.hpp"
#include "step.hpp"

namespace batchdeck {

// Embeds the step's ids, or its positions.
struct Embed {
  EmbedArgs args;
  bool positions;
};

// Copies the rows that sample from the tokens' rows.
struct Gather {
  DType dtype;
  int64_t width;
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
};

// Over the cache of this layer, as of the running step.
struct Store {
  StoreArgs args;
  int64_t layer;
};
struct Attend {
  AttentionArgs args;
  int64_t layer;
};

// For at most this many rows.
struct Linear {
  LinearArgs args;
  int64_t most_rows;
};
struct Experts {
  ExpertsArgs args;
  int64_t most_rows;
};

// Arguments of a kernel, except those of a step: its number of rows, ids, positions, slots, rows of
// attention and of states.
using Operation = std::variant<Embed, NormArgs, Linear, RotateArgs, Store, Attend,
                               ElementwiseArgs, Gather, ConvolveArgs, RecurArgs, Experts>;
constexpr std::array kOperationNames = {"embed",  "norm",        "linear", "rotate",
                                        "store",  "attend",      "elementwise", "gather",
                                        "convolve", "recur",     "experts"};
static_assert(kOperationNames.size() == std::variant_size_v<Operation>);

// Limits of a step, so that no operation leaves its memory.
struct Limits {
  int64_t tokens = std::numeric_limits<int64_t>::max();     // rows of the buffers
  int64_t samples = std::numeric_limits<int64_t>::max();    // rows of the buffers by sample
  int64_t ids = std::numeric_limits<int64_t>::max();        // rows of embeddings
  int64_t positions = std::numeric_limits<int64_t>::max();  // rows of cos, sin, embeddings
  int64_t states = std::numeric_limits<int64_t>::max();     // slots of states
};

// Operations in order. The caller of `add` has checked its arguments, and states their limits. Runs
// and changes take turns.
class Program {
 public:
  struct Cost {
    int64_t runs = 0;
    double seconds = 0;
  };
  using Profile = std::array<Cost, std::variant_size_v<Operation>>;

  // The tighter of these limits and the existing ones applies.
  void limit(const Limits& limits);
  // A layer's cache of this many blocks. Another of the same shape may replace it; once this
  // returns, the former is no longer read. Throws std::invalid_argument.
  void set_cache(int64_t layer, const Cache& cache, int64_t blocks);
  // Throws std::invalid_argument if the layer has none.
  const Cache& cache(int64_t layer) const;
  // `per_sample`: whether its rows are those that sample, else all tokens. Returns its index.
  int64_t add(const Operation& operation, bool per_sample, const Limits& limits = {});
  int64_t size() const { return int64_t(instructions_.size()); }
  // Runs the operations [first, last). Throws std::invalid_argument, before any operation, if the
  // step exceeds the limits.
  void run(Step& step, int64_t first, int64_t last);
  // The cost of each kind since the last call.
  Profile profile();

 private:
  struct Instruction {
    Operation operation;
    bool per_sample;
  };

  struct LayerCache {
    Cache cache;
    int64_t blocks;
  };

  void lower(const Limits& limits);
  void check(const Step& step) const;

  std::mutex turn_;
  std::vector<Instruction> instructions_;
  std::map<int64_t, LayerCache> caches_;
  int64_t blocks_ = std::numeric_limits<int64_t>::max();  // of the smallest cache
  Limits limits_;
  CodedMemory coded_;
  ExpertsMemory experts_;
  Profile profile_;
};

}  // namespace batchdeck
