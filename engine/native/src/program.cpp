#include "program.hpp"

#include <chrono>
#include <cstring>
#include <string>

#include "choice.hpp"
#include "errors.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// Completes an operation with what the step brings, and runs it.
struct Execution {
  const Kernels& kernels;
  const std::map<int64_t, Cache>& caches;
  Step& step;
  int64_t rows;

  void operator()(Embed embed) const {
    embed.args.rows = rows;
    embed.args.ids = embed.positions ? step.inputs().position_ids : step.inputs().input_ids;
    run_pieces(kernels.embed_pieces, kernels.embed, embed.args);
  }
  void operator()(NormArgs args) const {
    args.rows = rows;
    run_pieces(kernels.norm_pieces, kernels.norm, args);
  }
  void operator()(LinearArgs args) const {
    args.m = rows;
    run_pieces(kernels.linear_pieces, kernels.linear, args);
  }
  void operator()(RotateArgs args) const {
    args.rows = rows;
    args.positions = step.inputs().position_ids;
    run_pieces(kernels.rotate_pieces, kernels.rotate, args);
  }
  void operator()(const Store& store) const {
    StoreArgs args = store.args;
    args.cache = caches.at(store.layer);
    args.rows = rows;
    args.slots = step.inputs().slots;
    run_pieces(kernels.store_pieces, kernels.store, args);
  }
  void operator()(const Attend& attend) const {
    AttentionArgs args = attend.args;
    args.cache = caches.at(attend.layer);
    args = step.attention(args);
    Pool& pool = Pool::get();
    pool.each(args.num_items, [&](int64_t item, Scratch& s) { kernels.attend(args, item, s); });
    pool.each(args.num_merges, [&](int64_t merge, Scratch& s) { kernels.merge(args, merge, s); });
  }
  void operator()(ElementwiseArgs args) const {
    args.rows = rows;
    run_pieces(kernels.elementwise_pieces, kernels.elementwise, args);
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
};

void at_most(int64_t number, int64_t limit, const char* name, const char* unit, const char* what) {
  if (number > limit) {
    refuse(name, std::to_string(number) + " " + unit + ", but " + what + " " + std::to_string(limit));
  }
}

}  // namespace

int64_t Program::add(const Operation& operation, bool per_sample) {
  instructions_.push_back({operation, per_sample});
  return size() - 1;
}

void Program::check(const Step& step) const {
  const StepInputs& in = step.inputs();
  const Step::Largest& largest = step.largest();
  at_most(in.tokens, limits.tokens, "step has", "tokens", "the buffers' rows are");
  at_most(in.samples, limits.samples, "step has", "rows that sample", "the buffers' rows are");
  at_most(largest.id + 1, limits.ids, "input_ids need", "rows of the table", "it has");
  at_most(largest.position + 1, limits.positions, "position_ids need", "positions", "there are");
  at_most(largest.slot / kBlock + 1, limits.blocks, "slots need", "blocks", "the cache has");
  at_most(largest.block + 1, limits.blocks, "block_tables need", "blocks", "the cache has");
}

void Program::run(Step& step, int64_t first, int64_t last) {
  if (first < 0 || last < first || last > size()) {
    refuse("first, last", "are " + std::to_string(first) + ", " + std::to_string(last) +
                              "; the program has " + std::to_string(size()) + " instructions");
  }
  check(step);
  const std::lock_guard lock(turn_);
  const Kernels& table = kernels();
  using Clock = std::chrono::steady_clock;
  auto began = Clock::now();
  for (int64_t i = first; i < last; i++) {
    const Instruction& instruction = instructions_[size_t(i)];
    const StepInputs& in = step.inputs();
    const int64_t rows = instruction.per_sample ? in.samples : in.tokens;
    if (rows == 0) continue;
    std::visit(Execution{table, caches, step, rows}, instruction.operation);
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
