#include "program.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "choice.hpp"
#include "errors.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// Completes an operation with the step's inputs, and runs it.
struct Execution {
  const Kernels& kernels;
  const Program& program;
  Step& step;
  int64_t rows;
  CodedMemory& coded_memory;
  ExpertsMemory& experts_memory;

  void operator()(Embed embed) const {
    embed.args.rows = rows;
    embed.args.ids = embed.positions ? step.inputs().position_ids : step.inputs().input_ids;
    run_pieces(kernels.embed_pieces, kernels.embed, embed.args);
  }
  void operator()(NormArgs args) const {
    args.rows = rows;
    run_pieces(kernels.norm_pieces, kernels.norm, args);
  }
  void operator()(const Linear& linear) const {
    LinearArgs args = linear.args;
    args.m = rows;
    coded_memory.code(kernels, args);
    run_pieces(kernels.linear_pieces, kernels.linear, args);
  }
  void operator()(RotateArgs args) const {
    args.rows = rows;
    args.positions = step.inputs().position_ids;
    run_pieces(kernels.rotate_pieces, kernels.rotate, args);
  }
  void operator()(const Store& store) const {
    StoreArgs args = store.args;
    args.cache = program.cache(store.layer);
    args.rows = rows;
    args.slots = step.inputs().slots;
    run_pieces(kernels.store_pieces, kernels.store, args);
  }
  void operator()(const Attend& attend) const {
    AttentionArgs args = attend.args;
    args.cache = program.cache(attend.layer);
    args = step.attention(args);
    Pool& pool = Pool::get();
    pool.each(args.num_pieces, [&](int64_t piece, Scratch& s) { kernels.attend(args, piece, s); });
    pool.each(args.num_merges, [&](int64_t merge, Scratch& s) { kernels.merge(args, merge, s); });
  }
  void operator()(ElementwiseArgs args) const {
    args.rows = rows;
    run_pieces(kernels.elementwise_pieces, kernels.elementwise, args);
  }
  void operator()(ConvolveArgs args) const {
    args.rows = step.state_rows();
    run_pieces(kernels.convolve_pieces, kernels.convolve, args);
  }
  void operator()(RecurArgs args) const {
    args.rows = step.state_rows();
    run_pieces(kernels.recur_pieces, kernels.recur, args);
  }
  void operator()(const Gather& gather) const {
    const int64_t size = size_of(gather.dtype);
    const char* x = static_cast<const char*>(gather.x);
    char* out = static_cast<char*>(gather.out);
    for (int64_t row = 0; row < rows; row++) {
      std::memcpy(out + row * gather.out_stride * size,
                  x + step.inputs().last_tokens[row] * gather.x_stride * size,
                  size_t(gather.width * size));
    }
  }
  void operator()(Experts experts) const {
    experts.args.route.rows = rows;
    run_experts(kernels, experts.args, experts_memory);
  }
};

// `needed` is unsigned, because the largest number has a next one, and -1 has 0.
void at_most(uint64_t needed, int64_t limit, const char* name, const char* unit, const char* what) {
  if (needed > uint64_t(limit)) {
    refuse(name, std::to_string(needed) + " " + unit + ", but " + what + " " + std::to_string(limit));
  }
}

}  // namespace

void Program::lower(const Limits& limits) {
  limits_ = {.tokens = std::min(limits_.tokens, limits.tokens),
             .samples = std::min(limits_.samples, limits.samples),
             .ids = std::min(limits_.ids, limits.ids),
             .positions = std::min(limits_.positions, limits.positions),
             .states = std::min(limits_.states, limits.states)};
}

void Program::limit(const Limits& limits) {
  const std::lock_guard lock(turn_);
  lower(limits);
}

void Program::set_cache(int64_t layer, const Cache& cache, int64_t blocks) {
  const std::lock_guard lock(turn_);
  if (const auto found = caches_.find(layer); found != caches_.end()) {
    const Cache& before = found->second.cache;
    check_dtype(cache.dtype, before.dtype, "keys");
    check_equal(cache.kv_heads, before.kv_heads, "keys", "heads");
    check_equal(cache.head_dim, before.head_dim, "head_dim", "columns");
    check_equal(cache.value_dim, before.value_dim, "value_dim", "columns");
  }
  caches_[layer] = {cache, blocks};
  blocks_ = blocks;
  for (const auto& [_, other] : caches_) blocks_ = std::min(blocks_, other.blocks);
}

const Cache& Program::cache(int64_t layer) const {
  const auto found = caches_.find(layer);
  if (found == caches_.end()) refuse("layer", std::to_string(layer) + " has no cache");
  return found->second.cache;
}

int64_t Program::add(const Operation& operation, bool per_sample, const Limits& limits) {
  const std::lock_guard lock(turn_);
  if (const auto* experts = std::get_if<Experts>(&operation)) {
    experts_.reserve(experts->args, experts->most_rows);
  }
  if (const auto* linear = std::get_if<Linear>(&operation)) {
    coded_.reserve(linear->args, linear->most_rows);
  }
  lower(limits);
  instructions_.push_back({operation, per_sample});
  return size() - 1;
}

void Program::check(const Step& step) const {
  const StepInputs& in = step.inputs();
  const Step::Largest& largest = step.largest();
  const uint64_t ids = uint64_t(largest.id) + 1, positions = uint64_t(largest.position) + 1;
  const uint64_t slots = uint64_t(largest.slot) + 1, blocks = uint64_t(largest.block) + 1;
  at_most(uint64_t(in.tokens), limits_.tokens, "step has", "tokens", "the buffers' rows are");
  at_most(uint64_t(in.samples), limits_.samples, "step has", "rows that sample",
          "the buffers' rows are");
  at_most(ids, limits_.ids, "input_ids need", "rows of the table", "it has");
  at_most(positions, limits_.positions, "position_ids need", "positions", "there are");
  at_most((slots + kBlock - 1) / kBlock, blocks_, "slots need", "blocks", "the cache has");
  at_most(blocks, blocks_, "block_tables need", "blocks", "the cache has");
  at_most(uint64_t(largest.state) + 1, limits_.states, "states need", "slots", "there are");
  if (limits_.states < std::numeric_limits<int64_t>::max() && in.rows > 0 && in.states == nullptr) {
    refuse("states", "are missing; the program keeps some");
  }
}

void Program::run(Step& step, int64_t first, int64_t last) {
  const std::lock_guard lock(turn_);
  if (first < 0 || last < first || last > size()) {
    refuse("first, last", "are " + std::to_string(first) + ", " + std::to_string(last) +
                              "; the program has " + std::to_string(size()) + " instructions");
  }
  check(step);
  const Kernels& table = kernels();
  using Clock = std::chrono::steady_clock;
  auto began = Clock::now();
  for (int64_t i = first; i < last; i++) {
    const Instruction& instruction = instructions_[size_t(i)];
    const StepInputs& in = step.inputs();
    const int64_t rows = instruction.per_sample ? in.samples : in.tokens;
    if (rows == 0) continue;
    std::visit(Execution{table, *this, step, rows, coded_, experts_}, instruction.operation);
    const auto ended = Clock::now();
    Cost& cost = profile_[instruction.operation.index()];
    cost.runs++;
    cost.seconds += std::chrono::duration<double>(ended - began).count();
    began = ended;
  }
}

Program::Profile Program::profile() {
  const std::lock_guard lock(turn_);
  return std::exchange(profile_, {});
}

}  // namespace batchdeck
