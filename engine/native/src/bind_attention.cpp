// The cache and attention, for Python.
#include <nanobind/stl/tuple.h>

#include <memory>
#include <tuple>

#include "arrays.hpp"
#include "attention_plan.hpp"
#include "bindings.hpp"
#include "bound_cache.hpp"
#include "choice.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// Rows of `heads` adjacent heads; returns the numbers of a head.
int64_t head_size(const Rows& rows, int64_t heads, const char* name) {
  if (heads < 1 || rows.width < heads || rows.width % heads != 0) {
    refuse(name, "has " + std::to_string(rows.width) + " columns, which " + std::to_string(heads) +
                     " heads do not share");
  }
  return rows.width / heads;
}

const Array* given(const std::optional<Array>& array) {
  return array.has_value() ? &*array : nullptr;
}

void store(const Array& keys, const std::optional<Array>& values, const Array& slots,
           const Array& key, const std::optional<Array>& value) {
  if (values.has_value() != value.has_value()) refuse("value", "must be given if values are");
  const Rows key_rows = rows_of(key, "key");
  const Rows value_rows = value.has_value() ? rows_of(*value, "value") : key_rows;
  check_equal(int64_t(keys.ndim()), 3, "keys", "dimensions");
  const int64_t kv_heads = keys.shape(1);
  const int64_t head_dim = head_size(key_rows, kv_heads, "key");
  const int64_t value_dim = head_size(value_rows, kv_heads, "value");
  const auto [cache, blocks] = cache_of(keys, given(values), head_dim, value_dim);
  check_dtype(key_rows.dtype, cache.dtype, "key");
  check_dtype(value_rows.dtype, cache.dtype, "value");
  check_equal(value_rows.rows, key_rows.rows, "value", "rows");
  const auto* places = vector<int64_t>(slots, key_rows.rows, "slots");
  for (int64_t i = 0; i < key_rows.rows; i++) {
    if (places[i] < 0 || places[i] / kBlock >= blocks) {
      refuse("slots", "names slot " + std::to_string(places[i]) + ", which there is not");
    }
  }
  const StoreArgs args{cache, key_rows.rows, places, key_rows.data, key_rows.stride,
                       value_rows.data, value_rows.stride};
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.store_pieces, level.store, args);
}

// Starts and counts of rows, and where their tokens begin in the packed step.
struct Spans {
  int64_t rows;
  const int64_t* starts;
  const int64_t* counts;
  std::vector<int64_t> offsets;
  int64_t tokens = 0;
};

Spans spans_of(const Array& starts, const Array& counts) {
  const int64_t rows = starts.ndim() == 1 ? int64_t(starts.shape(0)) : 0;
  Spans spans{.rows = rows,
              .starts = vector<int64_t>(starts, rows, "starts"),
              .counts = vector<int64_t>(counts, rows, "counts"),
              .offsets = {}};
  constexpr int64_t kMost = int64_t{1} << 40;  // sums of these do not overflow
  for (int64_t row = 0; row < rows; row++) {
    const int64_t start = spans.starts[row], count = spans.counts[row];
    if (start < 0 || start > kMost) {
      refuse("starts", "has " + std::to_string(start) + ", which is no position");
    }
    if (count < 1 || count > kMost - spans.tokens) {
      refuse("counts", "has " + std::to_string(count) + ", which is no number of tokens");
    }
    spans.offsets.push_back(spans.tokens);
    spans.tokens += count;
  }
  return spans;
}

void attend(const Array& out, const Array& query, const Array& keys,
            const std::optional<Array>& values, const Array& starts, const Array& counts,
            const Array& block_tables, int64_t heads, float scaling, int64_t window, float softcap,
            const std::optional<Array>& sinks) {
  const Rows queries = rows_of(query, "query"), outs = writable_rows_of(out, "out");
  const int64_t head_dim = head_size(queries, heads, "query");
  const int64_t value_dim = head_size(outs, heads, "out");
  const auto [cache, blocks] = cache_of(keys, given(values), head_dim, value_dim);
  check_dtype(queries.dtype, cache.dtype, "query");
  check_dtype(outs.dtype, cache.dtype, "out");
  if (heads % cache.kv_heads != 0) refuse("heads", "is no multiple of those of the keys");
  if (!(scaling > 0)) refuse("scaling", "must be above 0");
  if (window < 0) refuse("window", "is negative");
  if (!(softcap >= 0)) refuse("softcap", "must not be below 0");
  const Spans spans = spans_of(starts, counts);
  check_equal(queries.rows, spans.tokens, "query", "rows");
  check_equal(outs.rows, spans.tokens, "out", "rows");
  const Tables tables = tables_of(block_tables, spans.rows, "block_tables");
  for (int64_t row = 0; row < spans.rows; row++) {
    const int64_t needed = ceil_div(spans.starts[row] + spans.counts[row], kBlock);
    if (needed > tables.width) refuse("block_tables", "is too short for a row");
    for (int64_t b = 0; b < needed; b++) {
      const int64_t block = tables.data[row * tables.stride + b];
      if (block < 0 || block >= blocks) {
        refuse("block_tables", "names block " + std::to_string(block) + ", which there is not");
      }
    }
  }
  const float* sink = vector<float>(sinks, heads, "sinks");

  const nb::gil_scoped_release unlocked;
  const AttentionPlan plan = plan_attention(spans.rows, spans.starts, spans.counts, heads,
                                            cache.kv_heads, cache.value_dim, window,
                                            Pool::get().threads());
  const std::unique_ptr<float[]> parts(new float[size_t(plan.parts_size)]);
  const AttentionArgs args{
      .cache = cache,
      .heads = heads,
      .rows = spans.rows,
      .starts = spans.starts,
      .counts = spans.counts,
      .offsets = spans.offsets.data(),
      .tables = tables.data,
      .table_stride = tables.stride,
      .query = queries.data,
      .query_stride = queries.stride,
      .out = outs.data,
      .out_stride = outs.stride,
      .scaling = scaling,
      .window = window,
      .softcap = softcap,
      .sinks = sink,
      .items = plan.items.data(),
      .pieces = plan.pieces.data(),
      .num_pieces = int64_t(plan.pieces.size()) - 1,
      .merges = plan.merges.data(),
      .num_merges = int64_t(plan.merges.size()),
      .parts = parts.get(),
  };
  const Kernels& level = kernels();
  Pool& pool = Pool::get();
  pool.each(args.num_pieces, [&](int64_t i, Scratch& scratch) { level.attend(args, i, scratch); });
  pool.each(args.num_merges, [&](int64_t i, Scratch& scratch) { level.merge(args, i, scratch); });
}

using Item = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
using Merge = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

std::tuple<std::vector<Item>, std::vector<Merge>, int64_t, std::vector<int64_t>> plan(
    const Array& starts, const Array& counts, int64_t heads, int64_t kv_heads, int64_t value_dim,
    int64_t window, int threads) {
  const Spans spans = spans_of(starts, counts);
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0) {
    refuse("heads", "is no multiple of kv_heads");
  }
  if (value_dim < 1) refuse("value_dim", "must be at least 1");
  if (window < 0) refuse("window", "is negative");
  if (threads < 1) refuse("threads", "must be at least 1");
  const AttentionPlan plan = plan_attention(spans.rows, spans.starts, spans.counts, heads, kv_heads,
                                            value_dim, window, threads);
  std::vector<Item> items;
  for (const auto& i : plan.items) {
    items.emplace_back(i.row, i.kv_head, i.query, i.queries, i.begin, i.end, i.part);
  }
  std::vector<Merge> merges;
  for (const auto& m : plan.merges) {
    merges.emplace_back(m.row, m.kv_head, m.query, m.queries, m.first, m.count);
  }
  return {items, merges, plan.parts_size, plan.pieces};
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.attr("BLOCK") = kBlock;
  m.def("key_unit", [](const std::string& dtype, int64_t head_dim) {
    if (dtype != "float32" && dtype != "bfloat16") refuse("dtype", "must be float32 or bfloat16");
    return key_unit(dtype == "float32" ? DType::f32 : DType::bf16, head_dim);
  }, nb::arg("dtype"), nb::arg("head_dim"));
  m.def("value_unit", &value_unit, nb::arg("value_dim"));
  m.def("store", &store, nb::arg("keys"), nb::arg("values").none(), nb::arg("slots"),
        nb::arg("key"), nb::arg("value").none());
  m.def("attend", &attend, nb::arg("out"), nb::arg("query"), nb::arg("keys"),
        nb::arg("values").none(), nb::arg("starts"), nb::arg("counts"), nb::arg("block_tables"),
        nb::arg("heads"), nb::arg("scaling"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
        nb::arg("sinks") = nb::none());
  m.def("most_plan_bytes", &most_plan_bytes, nb::arg("rows"), nb::arg("tokens"),
        nb::arg("longest"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("value_dim"));
  m.def("plan_attention", &plan, nb::arg("starts"), nb::arg("counts"), nb::arg("heads"),
        nb::arg("kv_heads"), nb::arg("value_dim"), nb::arg("window") = 0, nb::arg("threads") = 1);
}

}  // namespace batchdeck
