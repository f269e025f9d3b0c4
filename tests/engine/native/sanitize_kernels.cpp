// Every kernel of one level under a sanitizer, on random small shapes in memory of exactly the size
// that kernels.hpp lets it touch. Half of the memory ends at a page that must not be touched, for a
// sanitizer does not see what tiles and masked vectors load.
// sanitize_kernels SEED ROUNDS; compiled with -DLEVEL=avx2, avx512 or amx.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention_plan.hpp"
#include "cpu.hpp"
#include "experts.hpp"
#include "pool.hpp"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

using namespace batchdeck;

namespace {

const Kernels& kernels = JOIN(kernels_, LEVEL)();
std::mt19937_64 engine;

// Inclusive on both sides.
int64_t between(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(engine);
}
bool maybe() { return between(0, 1) == 1; }
template <class T>
T one_of(std::initializer_list<T> choices) {
  return choices.begin()[between(0, int64_t(choices.size()) - 1)];
}

// Bytes, freed with the case that asked for them.
class Memory {
 public:
  explicit Memory(size_t bytes) {
    if (maybe()) {
      base_ = data_ = std::malloc(bytes);
      return;
    }
    const auto page = size_t(sysconf(_SC_PAGESIZE));
    const size_t body = (bytes + page - 1) / page * page;
    mapped_ = body + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED || mprotect(static_cast<char*>(base_) + body, page, PROT_NONE) != 0) {
      std::abort();
    }
    data_ = static_cast<char*>(base_) + body - bytes;
  }
  Memory(Memory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        data_(other.data_),
        mapped_(std::exchange(other.mapped_, 0)) {}
  ~Memory() {
    if (mapped_ != 0) {
      munmap(base_, mapped_);
    } else {
      std::free(base_);
    }
  }
  void* data() const { return data_; }

 private:
  void* base_;
  void* data_;
  size_t mapped_ = 0;
};

std::vector<Memory> kept;

template <class T>
T* numbers(int64_t count) {
  return static_cast<T*>(kept.emplace_back(size_t(count) * sizeof(T)).data());
}

// Random finite numbers in [-2, 2].
void* floats(DType dtype, int64_t count) {
  std::uniform_real_distribution<float> draw(-2, 2);
  if (dtype == DType::f32) {
    auto* data = numbers<float>(count);
    for (int64_t i = 0; i < count; i++) data[i] = draw(engine);
    return data;
  }
  auto* data = numbers<bf16>(count);
  for (int64_t i = 0; i < count; i++) {
    const float value = draw(engine);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    data[i] = bf16(bits >> 16);
  }
  return data;
}
float* floats(int64_t count) { return static_cast<float*>(floats(DType::f32, count)); }
float* maybe_floats(int64_t count) { return maybe() ? floats(count) : nullptr; }

int64_t* integers(int64_t count, int64_t limit) {
  auto* data = numbers<int64_t>(count);
  for (int64_t i = 0; i < count; i++) data[i] = between(0, limit - 1);
  return data;
}

// Rows that end with their last readable number.
struct Matrix {
  void* data;
  int64_t stride;
};
Matrix matrix(DType dtype, int64_t rows, int64_t width) {
  const int64_t stride = width + (maybe() ? 0 : between(1, 40));
  return {floats(dtype, (rows - 1) * stride + width), stride};
}

DType a_dtype() { return one_of({DType::f32, DType::bf16}); }
Activation an_activation() { return Activation(between(0, int64_t(Activation::softplus))); }
int64_t a_row_count() { return one_of({int64_t{1}, between(1, 8), between(1, 70)}); }

// `n` rows of `k` columns, packed a share of the panels at a time.
void* packed(DType dtype, int64_t n, int64_t k) {
  const Matrix weight = matrix(dtype, n, k);
  void* data = floats(dtype, packed_size(n, k));
  const int64_t panels = ceil_div(n, kPanel), cut = between(0, panels);
  kernels.pack_linear(dtype, weight.data, weight.stride, n, k, 0, cut, data);
  kernels.pack_linear(dtype, weight.data, weight.stride, n, k, cut, panels, data);
  return data;
}

void linear() {
  const DType dtype = a_dtype();
  const bool gated = maybe(), sums = !gated && maybe();
  const int64_t m = a_row_count(), k = between(1, 150);
  const int64_t n = gated ? kPanel * between(1, 5) : between(1, 160);
  const int64_t width = gated ? n / 2 : n;
  const DType out_dtype = maybe() ? dtype : DType::f32;
  const Matrix x = matrix(dtype, m, round_up(k, kDepth)), out = matrix(out_dtype, m, width);
  const bool in_place = sums && out_dtype == dtype && maybe();
  const Matrix residual = in_place ? out : sums ? matrix(dtype, m, width) : Matrix{};
  run_pieces(kernels.linear_pieces, kernels.linear,
             LinearArgs{.dtype = dtype, .out_dtype = out_dtype, .m = m, .n = n, .k = k,
                        .x = x.data, .x_stride = x.stride, .weight = packed(dtype, n, k),
                        .bias = maybe_floats(n), .gated = gated,
                        .activation = sums ? Activation::none : an_activation(),
                        .residual = residual.data, .residual_stride = residual.stride,
                        .alpha = sums ? 0.5f : 1.0f,
                        .out = out.data, .out_stride = out.stride});
}

Quantization a_quantization() {
  const Coding coding = one_of({Coding::int8, Coding::int4, Coding::int5, Coding::int6});
  return {coding, maybe(), unit_of(coding) * between(1, 128 / unit_of(coding))};
}

// Rows of a file's blocks, of any bytes, packed and unpacked.
void blocks() {
  const auto type = BlockType(between(0, int64_t(kBlockLayouts.size()) - 1));
  const BlockLayout& layout = layout_of(type);
  const int64_t n = between(1, 80), k = layout.features * between(1, 4), bytes = k / layout.features * layout.bytes;
  auto* stored = numbers<uint8_t>(n * bytes);
  for (int64_t i = 0; i < n * bytes; i++) stored[i] = uint8_t(between(0, 255));
  Quantization q;
  for (const Coding one : {Coding::int4, Coding::int5, Coding::int6, Coding::int8}) {
    if (bits_of(one) >= layout.bits) q = {one, layout.has_zeros || maybe(), layout.group};
  }
  auto* rows = numbers<BlockRow>(n);
  for (int64_t i = 0; i < n; i++) rows[i] = {maybe() ? nullptr : stored + i * bytes, type};
  const PackBlocksArgs args{.quantization = q, .n = n, .k = k, .rows = rows,
                            .packed = numbers<uint8_t>(coded_bytes(q, n, k))};
  for (int64_t panel = 0; panel < ceil_div(n, kPanel); panel++) kernels.pack_blocks(args, panel);
  const DType dtype = a_dtype();
  const Matrix out = matrix(dtype, n, k);
  for (int64_t row = 0; row < n; row++) {
    kernels.unpack_blocks({.type = type, .k = k, .blocks = stored + row * bytes, .dtype = dtype,
                           .out = static_cast<char*>(out.data) + row * out.stride * size_of(dtype)});
  }
}

// The same with quantized weights, and x made codes.
void codes() {
  const Quantization q = a_quantization();
  const DType dtype = a_dtype();
  const int64_t m = a_row_count(), n = between(1, 160), k = between(1, 300);
  const int64_t groups = ceil_div(k, q.group), depth = groups * q.group;
  const auto halves = [&] {
    auto* data = numbers<uint16_t>(n * groups);
    for (int64_t i = 0; i < n * groups; i++) data[i] = uint16_t(between(0, 0x3c00));  // up to 1
    return data;
  };
  const Matrix weight = matrix(dtype, n, k);
  const PackCodedArgs pack{.dtype = dtype, .quantization = q, .n = n, .k = k, .weight = weight.data,
                           .stride = weight.stride, .scales = halves(),
                           .zeros = q.has_zeros ? halves() : nullptr, .scales_stride = groups,
                           .packed = numbers<uint8_t>(coded_bytes(q, n, k))};
  for (int64_t panel = 0; panel < ceil_div(n, kPanel); panel++) kernels.pack_coded(pack, panel);
  run_pieces(kernels.quantize_pieces, kernels.quantize,
             QuantizeArgs{.dtype = dtype, .quantization = q, .n = n, .k = k, .weight = weight.data,
                          .stride = weight.stride, .scales = numbers<uint16_t>(n * groups),
                          .scales_stride = groups});
  const bool with_zeros = q.has_zeros && q.coding == Coding::int4;
  const RecognizeArgs looked_at{
      .dtype = dtype, .quantization = {q.coding, with_zeros, q.group}, .k = k,
      .weight = weight.data, .stride = weight.stride, .scales = numbers<uint16_t>(n * groups),
      .zeros = with_zeros ? numbers<uint16_t>(n * groups) : nullptr, .scales_stride = groups};
  if (q.coding == Coding::int4 || q.coding == Coding::int8) {
    for (int64_t row = 0; row < n; row++) kernels.recognize_row(looked_at, row);
  }
  const Matrix x = matrix(dtype, m, k), out = matrix(dtype, m, n);
  const CodeRowsArgs rows{.dtype = dtype, .rows = m, .width = k, .group = q.group, .x = x.data,
                          .x_stride = x.stride,
                          .codes = numbers<int8_t>(m * depth * kCodeBytes), .stride = depth,
                          .groups = numbers<CodedGroup>(m * groups), .groups_stride = groups};
  run_pieces(kernels.code_rows_pieces, kernels.code_rows, rows);
  run_pieces(kernels.linear_pieces, kernels.linear,
             LinearArgs{.dtype = dtype, .out_dtype = dtype, .m = m, .n = n, .k = k,
                        .weight = pack.packed, .bias = maybe_floats(n),
                        .activation = an_activation(), .out = out.data, .out_stride = out.stride,
                        .quantization = q,
                        .coded = {rows.codes, rows.stride, rows.groups, rows.groups_stride}});
  auto* ids = numbers<int64_t>(m);
  for (int64_t i = 0; i < m; i++) ids[i] = between(0, n - 1);
  const Matrix looked_up = matrix(dtype, m, k);
  run_pieces(kernels.embed_pieces, kernels.embed,
             EmbedArgs{.dtype = dtype, .packed = true, .quantization = q, .rows = m, .width = k,
                       .vocab_size = n, .ids = ids, .table = pack.packed, .out = looked_up.data,
                       .out_stride = looked_up.stride});
}

void norm() {
  const DType dtype = a_dtype();
  const int64_t rows = a_row_count(), groups = between(1, 4), width = between(1, 150);
  const Matrix x = matrix(dtype, rows, groups * width);
  const Matrix out = maybe() ? x : matrix(dtype, rows, groups * width);
  run_pieces(kernels.norm_pieces, kernels.norm,
             NormArgs{.dtype = dtype, .rows = rows, .groups = groups, .width = width,
                      .x = x.data, .x_stride = x.stride, .center = maybe(), .eps = 1e-6f,
                      .weight = maybe_floats(width), .bias = maybe_floats(width),
                      .out = out.data, .out_stride = out.stride});
}

void rotate() {
  const DType dtype = a_dtype();
  const int64_t rows = a_row_count(), heads = between(1, 4), head_dim = between(2, 140);
  const int64_t half = maybe() ? head_dim / 2 : between(1, head_dim / 2);
  const int64_t positions = between(1, 30);
  const Matrix x = matrix(dtype, rows, heads * head_dim);
  run_pieces(kernels.rotate_pieces, kernels.rotate,
             RotateArgs{.dtype = dtype, .rows = rows, .heads = heads, .head_dim = head_dim,
                        .half = half, .interleaved = maybe(),
                        .positions = integers(rows, positions), .cos = floats(positions * half),
                        .sin = floats(positions * half), .x = x.data, .x_stride = x.stride});
}

void embed() {
  const DType dtype = a_dtype();
  const bool is_packed = maybe();
  const int64_t rows = a_row_count(), width = between(1, 150), vocab_size = between(1, 90);
  const Matrix out = matrix(dtype, rows, width);
  run_pieces(kernels.embed_pieces, kernels.embed,
             EmbedArgs{.dtype = dtype, .packed = is_packed, .rows = rows, .width = width,
                       .vocab_size = vocab_size, .ids = integers(rows, vocab_size),
                       .table = is_packed ? packed(dtype, vocab_size, width)
                                          : floats(dtype, vocab_size * width),
                       .out = out.data, .out_stride = out.stride});
}

void elementwise() {
  const DType dtype = a_dtype();
  const int64_t rows = a_row_count(), repeat = maybe() ? 1 : between(2, 40);
  const int64_t width = repeat * between(1, 200 / repeat);
  const auto combine = one_of({Combine::none, Combine::add, Combine::multiply});
  const Matrix x = matrix(dtype, rows, width), out = maybe() ? x : matrix(dtype, rows, width);
  Matrix y{};
  if (combine != Combine::none) {
    const int64_t columns = width / repeat;
    y = maybe() ? matrix(dtype, rows, columns) : Matrix{floats(dtype, columns), 0};
  }
  run_pieces(kernels.elementwise_pieces, kernels.elementwise,
             ElementwiseArgs{.dtype = dtype, .combine = combine, .activation = an_activation(),
                             .alpha = 0.5f, .rows = rows, .width = width,
                             .x = x.data, .x_stride = x.stride, .y = y.data, .y_stride = y.stride,
                             .out = out.data, .out_stride = out.stride, .y_repeat = repeat});
}

// Weights of experts, one behind the other.
void* packed_experts(DType dtype, int64_t experts, int64_t n, int64_t k) {
  return floats(dtype, experts * packed_size(n, k));
}

void experts() {
  const DType dtype = a_dtype();
  const int64_t groups = one_of({1, 1, 2, 4}), size = between(2, 20), count = groups * size;
  const int64_t kept_groups = between(1, groups), rows = a_row_count();
  const int64_t chosen = between(1, std::min<int64_t>(8, kept_groups * size));
  const int64_t width = between(1, 120), inner = between(1, 70);
  const bool gated = maybe();
  const int64_t features = gated ? 2 * round_up(inner, 16) : inner;
  const Matrix x = matrix(dtype, rows, width), out = maybe() ? x : matrix(dtype, rows, width);
  const Matrix logits = matrix(DType::f32, rows, count);
  if (maybe()) static_cast<float*>(logits.data)[between(0, count - 1)] = one_of({NAN, INFINITY});
  const RouteArgs route{.rows = rows, .experts = count, .chosen = chosen,
                        .logits = static_cast<const float*>(logits.data),
                        .logits_stride = logits.stride,
                        .score = maybe() ? Score::softmax : Score::sigmoid,
                        .correction = maybe_floats(count), .groups = groups,
                        .kept_groups = kept_groups, .group_best = between(1, 2),
                        .normalised = maybe(), .scale = 2.0f, .factors = maybe_floats(count),
                        .index = nullptr, .weight = nullptr};
  LinearArgs up{.dtype = dtype, .out_dtype = dtype, .n = features, .k = width,
                .x = x.data, .x_stride = x.stride,
                .weight = packed_experts(dtype, count, features, width),
                .bias = maybe_floats(count * features), .gated = gated,
                .activation = an_activation(), .alpha = 1.0f};
  if (maybe()) up.limit = up.shift = 1.0f;
  LinearArgs down{.dtype = dtype, .out_dtype = dtype, .n = width, .k = inner,
                  .weight = packed_experts(dtype, count, width, inner),
                  .bias = maybe_floats(count * width), .alpha = 1.0f,
                  .out = out.data, .out_stride = out.stride};
  for (LinearArgs* product : {&up, &down}) {
    if (maybe()) continue;
    const Quantization q = a_quantization();
    const int64_t bytes = count * coded_bytes(q, product->n, product->k);
    auto* codes = numbers<uint8_t>(bytes);
    for (int64_t i = 0; i < bytes; i++) codes[i] = uint8_t(between(0, 255));
    product->weight = codes;
    product->quantization = q;
  }
  ExpertsMemory memory;
  const ExpertsArgs args{route, up, down};
  memory.reserve(args, rows);
  run_experts(kernels, args, memory);
}

// Rows of a step, each with a slot of its own; returns how many slots there are.
int64_t state_rows(StateRows& rows, int64_t& tokens) {
  rows.rows = between(1, 4);
  const int64_t slots = rows.rows + between(0, 2);
  auto *starts = integers(rows.rows, 3), *counts = numbers<int64_t>(rows.rows);
  auto *offsets = numbers<int64_t>(rows.rows), *places = numbers<int64_t>(rows.rows);
  tokens = 0;
  for (int64_t row = 0; row < rows.rows; row++) {
    offsets[row] = tokens;
    tokens += counts[row] = maybe() ? 1 : between(1, 40);
    places[row] = slots - 1 - row;
  }
  rows.starts = starts;
  rows.counts = counts;
  rows.offsets = offsets;
  rows.slots = places;
  return slots;
}

void convolve() {
  const DType dtype = a_dtype();
  ConvolveArgs args{.dtype = dtype, .width = between(1, 150), .taps = between(2, kMostTaps)};
  int64_t tokens;
  const int64_t slots = state_rows(args.rows, tokens);
  const Matrix x = matrix(dtype, tokens, args.width), out = matrix(dtype, tokens, args.width);
  args.x = x.data;
  args.x_stride = x.stride;
  args.weight = floats(args.taps * args.width);
  args.bias = maybe_floats(args.width);
  args.activation = an_activation();
  args.state = floats(dtype, slots * (args.taps - 1) * args.width);
  args.out = out.data;
  args.out_stride = out.stride;
  run_pieces(kernels.convolve_pieces, kernels.convolve, args);
}

void recur() {
  const DType dtype = a_dtype();
  RecurArgs args{.dtype = dtype, .key_heads = between(1, 3), .key_dim = between(1, 40),
                 .value_dim = between(1, 150)};
  args.heads = args.key_heads * between(1, 3);
  int64_t tokens;
  const int64_t slots = state_rows(args.rows, tokens);
  const int64_t keys = args.key_heads * args.key_dim, values = args.heads * args.value_dim;
  const auto give = [&](const void*& data, int64_t& stride, int64_t width) {
    const Matrix made = matrix(dtype, tokens, width);
    data = made.data;
    stride = made.stride;
  };
  give(args.query, args.query_stride, keys);
  give(args.key, args.key_stride, keys);
  give(args.value, args.value_stride, values);
  give(args.decay, args.decay_stride, args.heads);
  if (maybe()) give(args.beta, args.beta_stride, args.heads);
  args.decay_bias = maybe_floats(args.heads);
  args.decay_scale = floats(args.heads);
  args.softplus = maybe();
  args.high = 1;
  args.scaled = maybe();
  args.skip = maybe_floats(args.heads);
  args.normalize = maybe();
  args.scaling = 0.5f;
  args.state = floats(slots * args.heads * args.key_dim * args.value_dim);
  const Matrix out = matrix(dtype, tokens, values);
  args.out = out.data;
  args.out_stride = out.stride;
  run_pieces(kernels.recur_pieces, kernels.recur, args);
}

// Tokens are stored and attend, as in a layer. Blocks hold finite numbers before.
void attention() {
  const DType dtype = a_dtype();
  const int64_t kv_heads = between(1, 3), heads = kv_heads * between(1, 9);
  const int64_t head_dim = between(1, 140), value_dim = maybe() ? head_dim : between(1, 140);
  const int64_t rows = between(1, 4), table_width = between(1, 12), blocks = rows * table_width;
  const bool are_in_keys = value_dim <= head_dim && maybe();
  const int64_t value_numbers = blocks * kv_heads * value_unit(value_dim);
  const Cache cache{dtype, kv_heads, head_dim, value_dim,
                    floats(dtype, blocks * kv_heads * key_unit(dtype, head_dim)),
                    are_in_keys ? nullptr : floats(dtype, value_numbers)};
  const int64_t table_stride = table_width + between(0, 3);
  auto *starts = numbers<int64_t>(rows), *counts = numbers<int64_t>(rows);
  auto *offsets = numbers<int64_t>(rows);
  auto* tables = integers((rows - 1) * table_stride + table_width, 1 << 20);
  std::vector<int64_t> shuffled(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; i++) shuffled[size_t(i)] = i;
  std::shuffle(shuffled.begin(), shuffled.end(), engine);
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; row++) {
    const int64_t length = between(1, table_width * kBlock);
    counts[row] = maybe() ? 1 : between(1, std::min<int64_t>(length, 40));
    starts[row] = length - counts[row];
    offsets[row] = int64_t(places.size());
    for (int64_t i = 0; i < ceil_div(length, kBlock); i++) {  // entries past these are undefined
      tables[row * table_stride + i] = shuffled[size_t(row * table_width + i)];
    }
    for (int64_t at = starts[row]; at < length; at++) {
      places.push_back(tables[row * table_stride + at / kBlock] * kBlock + at % kBlock);
    }
  }
  const auto tokens = int64_t(places.size());
  auto* slots = numbers<int64_t>(tokens);
  std::copy(places.begin(), places.end(), slots);
  const Matrix key = matrix(dtype, tokens, kv_heads * head_dim);
  const Matrix value = matrix(dtype, tokens, kv_heads * value_dim);
  run_pieces(kernels.store_pieces, kernels.store,
             StoreArgs{.cache = cache, .rows = tokens, .slots = slots,
                       .key = key.data, .key_stride = key.stride,
                       .value = value.data, .value_stride = value.stride});

  const int64_t window = maybe() ? 0 : between(1, 64);
  const AttentionPlan plan = plan_attention(rows, starts, counts, heads, kv_heads, value_dim,
                                            window, between(1, 4));
  const Matrix query = matrix(dtype, tokens, heads * head_dim);
  const Matrix out = matrix(dtype, tokens, heads * value_dim);
  const AttentionArgs args{.cache = cache, .heads = heads, .rows = rows, .starts = starts,
                           .counts = counts, .offsets = offsets, .tables = tables,
                           .table_stride = table_stride,
                           .query = query.data, .query_stride = query.stride,
                           .out = out.data, .out_stride = out.stride,
                           .scaling = 0.1f, .window = window,
                           .softcap = maybe() ? 0.0f : 5.0f, .sinks = maybe_floats(heads),
                           .items = plan.items.data(), .pieces = plan.pieces.data(),
                           .num_pieces = int64_t(plan.pieces.size()) - 1,
                           .merges = plan.merges.data(), .num_merges = int64_t(plan.merges.size()),
                           .parts = numbers<float>(plan.parts_size)};
  Pool& pool = Pool::get();
  pool.each(args.num_pieces, [&](int64_t i, Scratch& s) { kernels.attend(args, i, s); });
  pool.each(args.num_merges, [&](int64_t i, Scratch& s) { kernels.merge(args, i, s); });
}

void sample() {
  const int64_t rows = a_row_count(), vocab_size = one_of({between(1, 40), between(1, 9000)});
  const Matrix logits = matrix(DType::f32, rows, vocab_size);
  auto* temperature = floats(rows);
  auto* min_p = floats(rows);
  auto* top_k = integers(rows, vocab_size);
  auto *top_p = numbers<double>(rows), *uniform = numbers<double>(rows);
  std::uniform_real_distribution<double> draw(0, 1);
  for (int64_t row = 0; row < rows; row++) {
    auto* mine = static_cast<float*>(logits.data) + row * logits.stride;
    if (between(0, 9) == 0) std::fill(mine, mine + vocab_size, -INFINITY);
    if (between(0, 3) == 0) mine[between(0, vocab_size - 1)] = one_of({NAN, INFINITY, -INFINITY});
    temperature[row] = std::max(0.0f, temperature[row]);
    top_k[row] = maybe() ? vocab_size : top_k[row] + 1;
    top_p[row] = maybe() ? 1.0 : 1.0 - draw(engine);
    min_p[row] = maybe() ? 0.0f : float(draw(engine));
    uniform[row] = draw(engine);
  }
  const SampleArgs args{.rows = rows, .vocab_size = vocab_size,
                        .logits = static_cast<const float*>(logits.data),
                        .stride = logits.stride, .temperature = temperature, .top_k = top_k,
                        .top_p = top_p, .min_p = min_p, .uniform = uniform,
                        .tokens = numbers<int64_t>(rows)};
  Pool::get().each(rows, [&](int64_t row, Scratch& s) { kernels.sample(args, row, s); });
}

constexpr std::pair<const char*, void (*)()> kCases[] = {
    {"linear", &linear}, {"blocks", &blocks}, {"codes", &codes}, {"norm", &norm}, {"rotate", &rotate},
    {"embed", &embed}, {"elementwise", &elementwise}, {"experts", &experts},
    {"convolve", &convolve}, {"recur", &recur}, {"attention", &attention}, {"sample", &sample},
};

}  // namespace

int main(int, char** argv) {
  const std::vector<std::string> usable = levels();  // this also asks the system for tiles
  if (std::find(usable.begin(), usable.end(), kernels.name) == usable.end()) return 2;
  const int rounds = std::atoi(argv[2]);
  for (int round = 0; round < rounds; round++) {
    // A case depends on its own number alone, so that one that fails can be run alone.
    engine.seed(uint64_t(std::atoi(argv[1])) + uint64_t(round));
    Pool::get().resize(int(between(1, 3)));
    for (const auto& [name, kernel] : kCases) {
      std::fprintf(stderr, "%s, seed %d\n", name, std::atoi(argv[1]) + round);
      kernel();
      kept.clear();
    }
  }
  std::puts("ok");
}
