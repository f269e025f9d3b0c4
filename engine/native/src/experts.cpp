#include "experts.hpp"

#include <algorithm>
#include <cstring>

#include "pool.hpp"

namespace batchdeck {
namespace {

// Numbers of a sorted row: products read whole tiles.
int64_t stride_of(int64_t width) { return round_up(width, kDepth); }

// Columns that the first product writes.
int64_t inner_of(const ExpertsArgs& args) { return args.up.gated ? args.up.n / 2 : args.up.n; }

template <class T>
void at_least(std::vector<T>& memory, int64_t size) {
  if (int64_t(memory.size()) < size) memory.resize(size_t(size));
}

}  // namespace

void ExpertsMemory::reserve(const ExpertsArgs& args, int64_t rows) {
  const int64_t pairs = rows * args.route.chosen, size = size_of(args.up.dtype);
  at_least(index_, pairs);
  at_least(place_, pairs);
  at_least(weight_, pairs);
  at_least(source_, pairs);
  at_least(starts_, args.route.experts + 1);
  groups_.reserve(size_t(std::min(pairs, args.route.experts)));
  const auto bytes = [&](int64_t width) { return round_up(pairs * width * size, 64); };
  x_bytes_ = std::max(x_bytes_, bytes(stride_of(args.up.k)));
  inner_bytes_ = std::max(inner_bytes_, bytes(stride_of(inner_of(args))));
  parts_bytes_ = std::max(parts_bytes_, bytes(args.down.n));
  x_ = static_cast<char*>(memory_.get(size_t(x_bytes_ + inner_bytes_ + parts_bytes_)));
  inner_ = x_ + x_bytes_;
  parts_ = inner_ + inner_bytes_;
  coded_.reserve(args.up, pairs);
  coded_.reserve(args.down, pairs);
}

// Sorts the pairs of a row and an expert by expert, and those of an expert by row.
void ExpertsMemory::group(const ExpertsArgs& args) {
  const int64_t pairs = args.route.rows * args.route.chosen;
  std::fill_n(starts_.begin(), args.route.experts + 1, 0);
  for (int64_t i = 0; i < pairs; i++) starts_[size_t(index_[size_t(i)]) + 1]++;
  groups_.clear();
  for (int64_t expert = 0; expert < args.route.experts; expert++) {
    int64_t& end = starts_[size_t(expert) + 1];
    const int64_t count = end, first = starts_[size_t(expert)];
    if (count > 0) groups_.push_back({expert, first, count, 0});
    end += first;
  }
  for (int64_t i = 0; i < pairs; i++) {
    const int64_t at = starts_[size_t(index_[size_t(i)])]++;
    place_[size_t(i)] = int32_t(at);
    source_[size_t(at)] = int32_t(i / args.route.chosen);
  }
}

void ExpertsMemory::gather(const ExpertsArgs& args) {
  const int64_t size = size_of(args.up.dtype), row = args.up.k * size;
  const int64_t stride = stride_of(args.up.k) * size;
  const int64_t inner = inner_of(args) * size, inner_stride = stride_of(inner_of(args)) * size;
  const auto* from = static_cast<const char*>(args.up.x);
  constexpr int64_t kRows = 16;
  const int64_t pairs = args.route.rows * args.route.chosen;
  Pool::get().each(ceil_div(pairs, kRows), [&](int64_t piece, Scratch&) {
    for (int64_t i = piece * kRows; i < std::min(pairs, (piece + 1) * kRows); i++) {
      std::memcpy(x_ + i * stride, from + source_[size_t(i)] * args.up.x_stride * size, size_t(row));
      // Products multiply numbers past a row's end by 0, so these must be finite.
      std::memset(x_ + i * stride + row, 0, size_t(stride - row));
      std::memset(inner_ + i * inner_stride + inner, 0, size_t(inner_stride - inner));
    }
  });
}

// One product for each expert's rows, all of them in one run of the pool.
void ExpertsMemory::multiply(const Kernels& kernels, LinearArgs all) {
  coded_.code(kernels, all);
  const int64_t size = size_of(all.dtype), weight = weight_bytes(all);
  const auto of = [&](const Group& group) {
    LinearArgs args = all;
    args.m = group.count;
    args.x = static_cast<const char*>(all.x) + group.first * all.x_stride * size;
    args.coded.codes += group.first * all.coded.stride * kCodeBytes;
    args.coded.groups += group.first * all.coded.groups_stride;
    args.weight = static_cast<const char*>(all.weight) + group.expert * weight;
    args.out = static_cast<char*>(all.out) + group.first * all.out_stride * size;
    if (all.bias != nullptr) args.bias = all.bias + group.expert * all.n;
    return args;
  };
  Pool& pool = Pool::get();
  // Each product is one of many, so that all together have enough pieces for the threads.
  const int threads = std::max(1, pool.threads() / int(groups_.size()));
  int64_t pieces = 0;
  for (Group& group : groups_) {
    group.piece = pieces;
    pieces += kernels.linear_pieces(of(group), threads);
  }
  pool.each(pieces, [&](int64_t piece, Scratch& scratch) {
    const auto next = std::upper_bound(groups_.begin(), groups_.end(), piece,
                                       [](int64_t at, const Group& g) { return at < g.piece; });
    const Group& group = *(next - 1);
    kernels.linear(of(group), threads, piece - group.piece, scratch);
  });
}

void run_experts(const Kernels& kernels, const ExpertsArgs& args, ExpertsMemory& memory) {
  RouteArgs route = args.route;
  if (route.rows == 0) return;
  route.index = memory.index_.data();
  route.weight = memory.weight_.data();
  Pool& pool = Pool::get();
  constexpr int64_t kRows = 8;
  pool.each(ceil_div(route.rows, kRows), [&](int64_t piece, Scratch& scratch) {
    const int64_t last = std::min(route.rows, (piece + 1) * kRows);
    for (int64_t row = piece * kRows; row < last; row++) kernels.route(route, row, scratch);
  });
  memory.group(args);
  memory.gather(args);

  LinearArgs up = args.up, down = args.down;
  up.m = down.m = args.route.rows * args.route.chosen;
  up.x = memory.x_;
  up.x_stride = stride_of(up.k);
  up.out = memory.inner_;
  up.out_stride = stride_of(inner_of(args));
  memory.multiply(kernels, up);
  down.x = up.out;
  down.x_stride = up.out_stride;
  down.out = memory.parts_;
  down.out_stride = down.n;
  memory.multiply(kernels, down);

  const CombineArgs sum{.dtype = down.dtype, .rows = route.rows, .chosen = route.chosen,
                        .width = down.n, .weight = route.weight, .place = memory.place_.data(),
                        .parts = down.out, .parts_stride = down.n,
                        .out = args.down.out, .out_stride = args.down.out_stride};
  run_pieces(kernels.combine_pieces, kernels.combine, sum);
}

}  // namespace batchdeck
