// The cache and attention, for Python.
#include <nanobind/stl/tuple.h>


#include <memory>
#include <tuple>

#include "arrays.hpp"
#include "attention_plan.hpp"

namespace batchdeck {
namespace {

// One layer of a cache: keys [blocks, kv_heads, key_unit], values [blocks, kv_heads, value_unit].
struct Layer {
  Cache cache;
  int64_t blocks;
};

Layer layer_of(const Array& keys, const Array& values, int64_t head_dim) {
  if (keys.ndim() != 3) refuse("keys", "must have three dimensions");
  if (values.ndim() != 3) refuse("values", "must have three dimensions");
  const DType dtype = dtype_of(keys, "keys");
  if (dtype_of(values, "values") != dtype) refuse("values", "differs from keys in type");
  const int64_t blocks = keys.shape(0), kv_heads = keys.shape(1), unit = values.shape(2);
  if (int64_t(values.shape(0)) != blocks || int64_t(values.shape(1)) != kv_heads) {
    refuse("values", "differs from keys in blocks or heads");
  }
  if (int64_t(keys.shape(2)) != key_unit(dtype, head_dim)) {
    refuse("keys", "has units of " + std::to_string(keys.shape(2)) + " numbers, not the " +
                       std::to_string(key_unit(dtype, head_dim)) + " of head_dim " +
                       std::to_string(head_dim));
  }
  if (unit % kBlock != 0) refuse("values", "has units that are no whole blocks");
  for (const auto& [array, name] : {std::pair{&keys, "keys"}, std::pair{&values, "values"}}) {
    if (array->stride(2) != 1 || array->stride(1) != int64_t(array->shape(2)) ||
        (blocks > 1 && array->stride(0) != array->stride(1) * kv_heads)) {
      refuse(name, "is not contiguous");
    }
  }
  return {{dtype, kv_heads, head_dim, unit / kBlock, keys.data(), values.data()}, blocks};
}

// Rows of `count` heads beside each other; returns the numbers of a head.
int64_t head_size(const Rows& rows, int64_t heads, const char* name) {
  if (heads < 1 || rows.width < heads || rows.width % heads != 0) {
    refuse(name, "has " + std::to_string(rows.width) + " columns, which " + std::to_string(heads) +
                     " heads do not share");
  }
  return rows.width / heads;
}

void store(const Array& keys, const Array& values, const Array& slots, const Array& key,
           const Array& value) {
  const Rows key_rows = rows_of(key, "key"), value_rows = rows_of(value, "value");
  if (keys.ndim() != 3) refuse("keys", "must have three dimensions");
  const Layer layer = layer_of(keys, values, head_size(key_rows, keys.shape(1), "key"));
  const Cache& cache = layer.cache;
  if (key_rows.dtype != cache.dtype) refuse("key", "differs from keys in type");
  if (value_rows.dtype != cache.dtype) refuse("value", "differs from keys in type");
  if (value_rows.rows != key_rows.rows) refuse("value", "differs from key in rows");
  if (head_size(value_rows, cache.kv_heads, "value") != cache.value_dim) {
    refuse("value", "differs from values in the size of a head");
  }
  const auto* places = vector<int64_t>(slots, key_rows.rows, "slots");
  for (int64_t i = 0; i < key_rows.rows; i++) {
    if (places[i] < 0 || places[i] >= layer.blocks * kBlock) {
      refuse("slots", "names slot " + std::to_string(places[i]) + ", which there is not");
    }
  }
  const StoreArgs args{cache, key_rows.rows, places, key_rows.data, key_rows.stride,
                       value_rows.data, value_rows.stride};
  const nb::gil_scoped_release unlocked;
  run_pieces(kernels().store_pieces, kernels().store, args);
}

// Rows' places and counts, checked against the tokens of a step.
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
  for (int64_t row = 0; row < rows; row++) {
    if (spans.starts[row] < 0) refuse("starts", "is negative");
    if (spans.counts[row] < 1) refuse("counts", "has a row without tokens");
    spans.offsets.push_back(spans.tokens);
    spans.tokens += spans.counts[row];
  }
  return spans;
}

void attend(const Array& out, const Array& query, const Array& keys, const Array& values,
            const Array& starts, const Array& counts, const Array& block_tables, int64_t heads,
            float scaling, int64_t window, float softcap, const std::optional<Array>& sinks) {
  const Rows queries = rows_of(query, "query"), outs = rows_of(out, "out");
  const Layer layer = layer_of(keys, values, head_size(queries, heads, "query"));
  const Cache& cache = layer.cache;
  if (queries.dtype != cache.dtype) refuse("query", "differs from keys in type");
  if (outs.dtype != cache.dtype) refuse("out", "differs from keys in type");
  if (heads % cache.kv_heads != 0) refuse("heads", "is no multiple of those of the keys");
  if (head_size(outs, heads, "out") != cache.value_dim) {
    refuse("out", "differs from values in the size of a head");
  }
  if (!(scaling > 0)) refuse("scaling", "must be above 0");
  if (window < 0) refuse("window", "is negative");
  if (!(softcap >= 0)) refuse("softcap", "must not be below 0");
  const Spans spans = spans_of(starts, counts);
  if (queries.rows != spans.tokens) refuse("query", "has other rows than counts add up to");
  if (outs.rows != spans.tokens) refuse("out", "has other rows than counts add up to");
  if (block_tables.ndim() != 2 || block_tables.dtype() != nb::dtype<int64_t>() ||
      int64_t(block_tables.shape(0)) != spans.rows ||
      (block_tables.shape(1) > 1 && block_tables.stride(1) != 1)) {
    refuse("block_tables", "must be int64 rows, one for each of starts");
  }
  const auto* tables = static_cast<const int64_t*>(block_tables.data());
  const int64_t table_stride = spans.rows > 1 ? block_tables.stride(0) : 0;
  for (int64_t row = 0; row < spans.rows; row++) {
    const int64_t blocks = ceil_div(spans.starts[row] + spans.counts[row], kBlock);
    if (blocks > int64_t(block_tables.shape(1))) refuse("block_tables", "is too short for a row");
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t block = tables[row * table_stride + b];
      if (block < 0 || block >= layer.blocks) {
        refuse("block_tables", "names block " + std::to_string(block) + ", which there is not");
      }
    }
  }
  const float* sink = vector<float>(sinks, heads, "sinks");

  const nb::gil_scoped_release unlocked;
  const AttentionPlan plan = plan_attention(spans.rows, spans.starts, spans.counts, heads,
                                            cache.kv_heads, cache.value_dim, window);
  const std::unique_ptr<float[]> parts(new float[size_t(plan.parts * plan.part_stride)]);
  const AttentionArgs args{
      .cache = cache,
      .heads = heads,
      .rows = spans.rows,
      .starts = spans.starts,
      .counts = spans.counts,
      .offsets = spans.offsets.data(),
      .tables = tables,
      .table_stride = table_stride,
      .query = queries.data,
      .query_stride = queries.stride,
      .out = outs.data,
      .out_stride = outs.stride,
      .scaling = scaling,
      .window = window,
      .softcap = softcap,
      .sinks = sink,
      .items = plan.items.data(),
      .num_items = int64_t(plan.items.size()),
      .merges = plan.merges.data(),
      .num_merges = int64_t(plan.merges.size()),
      .parts = parts.get(),
      .part_stride = plan.part_stride,
  };
  const Kernels& level = kernels();
  Pool& pool = Pool::get();
  pool.each(args.num_items, [&](int64_t i, Scratch& scratch) { level.attend(args, i, scratch); });
  pool.each(args.num_merges, [&](int64_t i, Scratch& scratch) { level.merge(args, i, scratch); });
}

using Item = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
using Merge = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

std::tuple<std::vector<Item>, std::vector<Merge>, int64_t, int64_t> plan(
    const Array& starts, const Array& counts, int64_t heads, int64_t kv_heads, int64_t value_dim,
    int64_t window) {
  const Spans spans = spans_of(starts, counts);
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0) {
    refuse("heads", "is no multiple of kv_heads");
  }
  if (value_dim < 1) refuse("value_dim", "must be at least 1");
  if (window < 0) refuse("window", "is negative");
  const AttentionPlan plan = plan_attention(spans.rows, spans.starts, spans.counts, heads, kv_heads,
                                            value_dim, window);
  std::vector<Item> items;
  for (const auto& i : plan.items) {
    items.emplace_back(i.row, i.kv_head, i.query, i.queries, i.begin, i.end, i.part);
  }
  std::vector<Merge> merges;
  for (const auto& m : plan.merges) {
    merges.emplace_back(m.row, m.kv_head, m.query, m.queries, m.first, m.count);
  }
  return {items, merges, plan.parts, plan.part_stride};
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.attr("BLOCK") = kBlock;
  m.def("key_unit", [](const std::string& dtype, int64_t head_dim) {
    if (dtype != "float32" && dtype != "bfloat16") refuse("dtype", "must be float32 or bfloat16");
    return key_unit(dtype == "float32" ? DType::f32 : DType::bf16, head_dim);
  }, nb::arg("dtype"), nb::arg("head_dim"));
  m.def("value_unit", &value_unit, nb::arg("value_dim"));
  m.def("store", &store, nb::arg("keys"), nb::arg("values"), nb::arg("slots"), nb::arg("key"),
        nb::arg("value"));
  m.def("attend", &attend, nb::arg("out"), nb::arg("query"), nb::arg("keys"), nb::arg("values"),
        nb::arg("starts"), nb::arg("counts"), nb::arg("block_tables"), nb::arg("heads"),
        nb::arg("scaling"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
        nb::arg("sinks") = nb::none());
  m.def("plan_attention", &plan, nb::arg("starts"), nb::arg("counts"), nb::arg("heads"),
        nb::arg("kv_heads"), nb::arg("value_dim"), nb::arg("window") = 0);
}

}  // namespace batchdeck
