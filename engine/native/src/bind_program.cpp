// Program and Step for Python: arguments checked and named, arrays kept alive.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <variant>

#include "arrays.hpp"
#include "program.hpp"

namespace batchdeck {
namespace {

using std::to_string;

// Buffer, first column, columns.
using View = std::tuple<int64_t, int64_t, int64_t>;

void check_equal(int64_t number, int64_t wanted, const char* name, const char* unit) {
  if (number != wanted) {
    refuse(name, "has " + to_string(number) + " " + unit + ", not " + to_string(wanted));
  }
}

void check_at_least(int64_t number, int64_t least, const char* name) {
  if (number < least) {
    refuse(name, "is " + to_string(number) + "; it must be at least " + to_string(least));
  }
}

void check_contiguous(const Array& array, const char* name) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != stride) refuse(name, "is not contiguous");
    stride *= int64_t(array.shape(i));
  }
}

void check_dtype(DType dtype, DType wanted, const char* name) {
  if (dtype != wanted) {
    refuse(name, wanted == DType::f32 ? "is bfloat16, not float32" : "is float32, not bfloat16");
  }
}

// Whether two views share columns.
bool overlap(const View& a, const View& b) {
  const auto [buffer, first, count] = a;
  const auto [other, start, number] = b;
  return buffer == other && first < start + number && start < first + count;
}

// `out` and `x` must be the same columns or none in common; none where `apart`.
void check_overlap(const View& out, const View& x, const char* name, bool apart) {
  if (overlap(out, x) && (apart || out != x)) {
    refuse(name, apart ? "shares columns with x" : "shares some columns with another argument");
  }
}

// A packed table or matrix of n rows and k columns.
const void* packed_of(const Array& array, int64_t n, int64_t k, DType dtype, const char* name) {
  check_dtype(dtype_of(array, name), dtype, name);
  check_equal(int64_t(array.ndim()), 1, name, "dimensions");
  check_contiguous(array, name);
  check_equal(int64_t(array.shape(0)), packed_size(n, k), name, "numbers");
  return array.data();
}

class BoundStep {
 public:
  BoundStep(const Array& input_ids, const Array& position_ids, const Array& slots,
            const Array& starts, const Array& counts, const Array& block_tables,
            const Array& last_tokens)
      : kept_{input_ids, position_ids, slots, starts, counts, block_tables, last_tokens},
        step_(inputs(input_ids, position_ids, slots, starts, counts, block_tables, last_tokens)) {}

  Step& step() { return step_; }

 private:
  static int64_t length(const Array& array, const char* name) {
    check_equal(int64_t(array.ndim()), 1, name, "dimensions");
    return int64_t(array.shape(0));
  }

  static StepInputs inputs(const Array& input_ids, const Array& position_ids, const Array& slots,
                           const Array& starts, const Array& counts, const Array& block_tables,
                           const Array& last_tokens) {
    const int64_t tokens = length(input_ids, "input_ids"), rows = length(starts, "starts");
    const int64_t samples = length(last_tokens, "last_tokens");
    if (block_tables.dtype() != nb::dtype<int64_t>() || block_tables.ndim() != 2) {
      refuse("block_tables", "must be int64 and have two dimensions");
    }
    check_equal(int64_t(block_tables.shape(0)), rows, "block_tables", "rows");
    if (block_tables.shape(1) > 1 && block_tables.stride(1) != 1) {
      refuse("block_tables", "has columns that are not adjacent");
    }
    return {.tokens = tokens,
            .input_ids = vector<int64_t>(input_ids, tokens, "input_ids"),
            .position_ids = vector<int64_t>(position_ids, tokens, "position_ids"),
            .slots = vector<int64_t>(slots, tokens, "slots"),
            .rows = rows,
            .starts = vector<int64_t>(starts, rows, "starts"),
            .counts = vector<int64_t>(counts, rows, "counts"),
            .tables = static_cast<const int64_t*>(block_tables.data()),
            .table_width = int64_t(block_tables.shape(1)),
            .table_stride = block_tables.stride(0),
            .samples = samples,
            .last_tokens = vector<int64_t>(last_tokens, samples, "last_tokens")};
  }

  std::vector<Array> kept_;
  Step step_;
};

class BoundProgram {
 public:
  int64_t buffer(const Array& array, bool per_sample) {
    const Rows rows = rows_of(array, "rows");
    if (rows.stride < rows.width) refuse("rows", "lie on each other");
    int64_t& limit = per_sample ? program_.limits.samples : program_.limits.tokens;
    limit = std::min(limit, rows.rows);
    buffers_.push_back({rows, per_sample});
    kept_.push_back(array);
    return int64_t(buffers_.size()) - 1;
  }

  void cache(int64_t layer, const Array& keys, const Array& values, int64_t head_dim,
             int64_t value_dim) {
    check_at_least(head_dim, 1, "head_dim");
    check_at_least(value_dim, 1, "value_dim");
    const DType dtype = dtype_of(keys, "keys");
    check_dtype(dtype_of(values, "values"), dtype, "values");
    check_equal(int64_t(keys.ndim()), 3, "keys", "dimensions");
    check_equal(int64_t(values.ndim()), 3, "values", "dimensions");
    check_contiguous(keys, "keys");
    check_contiguous(values, "values");
    const int64_t blocks = int64_t(keys.shape(0)), kv_heads = int64_t(keys.shape(1));
    check_at_least(kv_heads, 1, "kv_heads");
    check_equal(int64_t(keys.shape(2)), key_unit(dtype, head_dim), "keys", "numbers a unit");
    check_equal(int64_t(values.shape(0)), blocks, "values", "blocks");
    check_equal(int64_t(values.shape(1)), kv_heads, "values", "heads");
    check_equal(int64_t(values.shape(2)), value_unit(value_dim), "values", "numbers a unit");
    const Cache cache{dtype, kv_heads, head_dim, value_dim, keys.data(), values.data()};
    if (const auto before = program_.caches.find(layer); before != program_.caches.end()) {
      check_dtype(dtype, before->second.dtype, "keys");
      check_equal(kv_heads, before->second.kv_heads, "keys", "heads");
      check_equal(head_dim, before->second.head_dim, "head_dim", "columns");
      check_equal(value_dim, before->second.value_dim, "value_dim", "columns");
    }
    program_.caches[layer] = cache;
    pools_[layer] = {blocks, keys, values};
    program_.limits.blocks = blocks;
    for (const auto& [_, pool] : pools_) {
      program_.limits.blocks = std::min(program_.limits.blocks, pool.blocks);
    }
  }

  int64_t embed(const View& out_view, const Array& table, int64_t vocab_size, bool packed,
                bool positions) {
    const Rows out = tokens(out_view, "out");
    check_at_least(vocab_size, 1, "vocab_size");
    const void* data;
    if (packed) {
      data = packed_of(table, vocab_size, out.width, out.dtype, "table");
    } else {
      const Rows rows = rows_of(table, "table");
      check_dtype(rows.dtype, out.dtype, "table");
      check_equal(rows.rows, vocab_size, "table", "rows");
      check_equal(rows.width, out.width, "table", "columns");
      check_contiguous(table, "table");
      data = rows.data;
    }
    int64_t& limit = positions ? program_.limits.positions : program_.limits.ids;
    limit = std::min(limit, vocab_size);
    keep(table);
    const EmbedArgs args{.dtype = out.dtype, .packed = packed, .rows = 0, .width = out.width,
                         .vocab_size = vocab_size, .ids = nullptr, .table = data,
                         .out = out.data, .out_stride = out.stride};
    return program_.add(Embed{args, positions}, false);
  }

  int64_t norm(const View& out_view, const View& x_view, int64_t groups,
               const std::optional<Array>& weight, const std::optional<Array>& bias, float eps,
               bool center) {
    const Rows x = at(x_view, "x");
    const Rows out = like(out_view, x, x_view, "out");
    check_at_least(groups, 1, "groups");
    if (x.width % groups) refuse("groups", "is " + to_string(groups) + ", which does not divide x");
    check_overlap(out_view, x_view, "out", false);
    const int64_t width = x.width / groups;
    const NormArgs args{.dtype = x.dtype, .rows = 0, .groups = groups, .width = width,
                        .x = x.data, .x_stride = x.stride,
                        .center = center, .eps = eps,
                        .weight = vector<float>(weight, width, "weight"),
                        .bias = vector<float>(bias, width, "bias"),
                        .out = out.data, .out_stride = out.stride};
    keep(weight, bias);
    return program_.add(args, is_per_sample(x_view));
  }

  int64_t linear(const View& out_view, const View& x_view, const Array& weight, int64_t n,
                 int64_t k, const std::optional<Array>& bias, bool gated,
                 const std::string& activation, const std::optional<View>& residual_view,
                 float alpha) {
    const Rows x = at(x_view, "x");
    check_at_least(n, 1, "n");
    check_equal(x.width, k, "x", "columns");
    const auto [buffer, first, count] = x_view;
    const Rows& whole = buffers_[size_t(buffer)].rows;
    if (first + round_up(k, kDepth) > whole.width) {
      refuse("x", "is read in tiles, up to column " + to_string(first + round_up(k, kDepth)) +
                      " of its buffer, which has " + to_string(whole.width));
    }
    if (gated && n % 2) refuse("n", "is " + to_string(n) + "; gates and ups are as many");
    const Rows out = at(out_view, "out");
    check_equal(out.width, gated ? n / 2 : n, "out", "columns");
    check_same_rows(out_view, x_view, "out");
    if (out.dtype != DType::f32) check_dtype(out.dtype, x.dtype, "out");
    const auto reads = View{buffer, first, round_up(k, kDepth)};
    if (overlap(out_view, reads)) refuse("out", "shares columns with x, its last tile included");
    const Activation chosen = activation_of(activation);
    Rows residual{};
    if (residual_view) {
      if (gated || chosen != Activation::none) {
        refuse("residual", "goes with neither gates nor an activation");
      }
      residual = at(*residual_view, "residual");
      check_dtype(residual.dtype, x.dtype, "residual");
      check_equal(residual.width, n, "residual", "columns");
      check_same_rows(*residual_view, x_view, "residual");
      check_overlap(out_view, *residual_view, "out", false);
    } else if (alpha != 1) {
      refuse("alpha", "is " + to_string(alpha) + ", but there is no residual");
    }
    const LinearArgs args{.dtype = x.dtype, .out_dtype = out.dtype, .m = 0, .n = n, .k = k,
                          .x = x.data, .x_stride = x.stride,
                          .weight = packed_of(weight, n, k, x.dtype, "weight"),
                          .bias = vector<float>(bias, n, "bias"),
                          .gated = gated, .activation = chosen,
                          .residual = residual.data, .residual_stride = residual.stride,
                          .alpha = alpha, .out = out.data, .out_stride = out.stride};
    keep(weight, bias);
    return program_.add(args, is_per_sample(x_view));
  }

  int64_t rotate(const View& x_view, int64_t heads, const Array& cos, const Array& sin,
                 bool interleaved) {
    const Rows x = tokens(x_view, "x");
    check_at_least(heads, 1, "heads");
    if (x.width % heads) refuse("heads", "is " + to_string(heads) + ", which does not divide x");
    const int64_t head_dim = x.width / heads;
    const Rows table = rows_of(cos, "cos"), other = rows_of(sin, "sin");
    check_dtype(table.dtype, DType::f32, "cos");
    check_dtype(other.dtype, DType::f32, "sin");
    check_contiguous(cos, "cos");
    check_contiguous(sin, "sin");
    check_equal(other.rows, table.rows, "sin", "rows");
    check_equal(other.width, table.width, "sin", "columns");
    if (table.width < 1 || 2 * table.width > head_dim) {
      refuse("cos", "has " + to_string(table.width) + " columns; a head has " +
                        to_string(head_dim) + " numbers to rotate in pairs");
    }
    program_.limits.positions = std::min(program_.limits.positions, table.rows);
    keep(cos, sin);
    const RotateArgs args{.dtype = x.dtype, .rows = 0, .heads = heads, .head_dim = head_dim,
                          .half = table.width, .interleaved = interleaved, .positions = nullptr,
                          .cos = static_cast<const float*>(table.data),
                          .sin = static_cast<const float*>(other.data),
                          .x = x.data, .x_stride = x.stride};
    return program_.add(args, false);
  }

  int64_t store(int64_t layer, const View& key_view, const View& value_view) {
    const Cache& cache = cache_of(layer);
    const Rows key = tokens(key_view, "key"), value = tokens(value_view, "value");
    check_dtype(key.dtype, cache.dtype, "key");
    check_dtype(value.dtype, cache.dtype, "value");
    check_equal(key.width, cache.kv_heads * cache.head_dim, "key", "columns");
    check_equal(value.width, cache.kv_heads * cache.value_dim, "value", "columns");
    const StoreArgs args{.cache = cache, .rows = 0, .slots = nullptr,
                         .key = key.data, .key_stride = key.stride,
                         .value = value.data, .value_stride = value.stride};
    return program_.add(Store{args, layer}, false);
  }

  int64_t attend(const View& out_view, const View& query_view, int64_t layer, int64_t heads,
                 float scaling, int64_t window, float softcap, const std::optional<Array>& sinks) {
    const Cache& cache = cache_of(layer);
    const Rows out = tokens(out_view, "out"), query = tokens(query_view, "query");
    check_at_least(heads, 1, "heads");
    if (heads % cache.kv_heads) {
      refuse("heads", "is " + to_string(heads) + "; the cache's " + to_string(cache.kv_heads) +
                          " heads do not divide it");
    }
    check_dtype(out.dtype, cache.dtype, "out");
    check_dtype(query.dtype, cache.dtype, "query");
    check_equal(out.width, heads * cache.value_dim, "out", "columns");
    check_equal(query.width, heads * cache.head_dim, "query", "columns");
    if (overlap(out_view, query_view)) refuse("out", "shares columns with query");
    check_at_least(window, 0, "window");
    if (!(softcap >= 0)) refuse("softcap", "is " + to_string(softcap) + ", less than 0");
    AttentionArgs args{};
    args.cache = cache;
    args.heads = heads;
    args.query = query.data;
    args.query_stride = query.stride;
    args.out = out.data;
    args.out_stride = out.stride;
    args.scaling = scaling;
    args.window = window;
    args.softcap = softcap;
    args.sinks = vector<float>(sinks, heads, "sinks");
    keep(sinks);
    return program_.add(Attend{args, layer}, false);
  }

  int64_t elementwise(const View& out_view, const View& x_view, const std::string& combine,
                      const std::optional<std::variant<View, Array>>& y,
                      const std::string& activation, float alpha) {
    const Rows x = at(x_view, "x");
    const Rows out = like(out_view, x, x_view, "out");
    check_overlap(out_view, x_view, "out", false);
    const Combine how = combine_of(combine);
    const Activation chosen = activation_of(activation);
    if (y.has_value() != (how != Combine::none)) {
      refuse("y", y ? "is given, but combine is 'none'" : "is missing; combine is '" + combine + "'");
    }
    if (how == Combine::add && chosen != Activation::none) {
      refuse("activation", "is '" + activation + "'; a sum has none");
    }
    Rows other{};
    if (y && std::holds_alternative<View>(*y)) {
      const View& y_view = std::get<View>(*y);
      other = like(y_view, x, x_view, "y");
      check_overlap(out_view, y_view, "out", false);
    } else if (y) {
      const Array& row = std::get<Array>(*y);
      check_dtype(dtype_of(row, "y"), x.dtype, "y");
      check_equal(int64_t(row.ndim()), 1, "y", "dimensions");
      check_equal(int64_t(row.shape(0)), x.width, "y", "columns");
      check_contiguous(row, "y");
      other = {x.dtype, row.data(), 1, x.width, 0};
      keep(row);
    }
    const ElementwiseArgs args{.dtype = x.dtype, .combine = how, .activation = chosen,
                               .alpha = alpha, .rows = 0, .width = x.width,
                               .x = x.data, .x_stride = x.stride,
                               .y = other.data, .y_stride = other.stride,
                               .out = out.data, .out_stride = out.stride};
    return program_.add(args, is_per_sample(x_view));
  }

  int64_t gather(const View& out_view, const View& x_view) {
    const Rows out = at(out_view, "out"), x = tokens(x_view, "x");
    if (!is_per_sample(out_view)) refuse("out", "has a row for each token, not for each sample");
    check_dtype(out.dtype, x.dtype, "out");
    check_equal(out.width, x.width, "out", "columns");
    const Gather args{x.dtype, x.width, x.data, x.stride, out.data, out.stride};
    return program_.add(args, true);
  }

  int64_t size() const { return program_.size(); }

  void run(BoundStep& step, int64_t first, int64_t last) {
    const nb::gil_scoped_release unlocked;
    program_.run(step.step(), first, last);
  }

  std::map<std::string, std::pair<int64_t, double>> profile() {
    Program::Profile costs;
    {
      const nb::gil_scoped_release unlocked;
      costs = program_.profile();
    }
    std::map<std::string, std::pair<int64_t, double>> named;
    for (size_t i = 0; i < costs.size(); i++) {
      if (costs[i].runs) named[kOperationNames[i]] = {costs[i].runs, costs[i].seconds};
    }
    return named;
  }

 private:
  struct Buffer {
    Rows rows;
    bool per_sample;
  };
  // A layer's cache, kept while it is in use.
  struct LayerPool {
    int64_t blocks;
    Array keys, values;
  };

  const Buffer& buffer_of(const View& view, const char* name) const {
    const int64_t buffer = std::get<0>(view);
    if (buffer < 0 || buffer >= int64_t(buffers_.size())) {
      refuse(name, "names buffer " + to_string(buffer) + " of " + to_string(buffers_.size()));
    }
    return buffers_[size_t(buffer)];
  }

  Rows at(const View& view, const char* name) const {
    const Rows& rows = buffer_of(view, name).rows;
    const auto [buffer, first, count] = view;
    if (first < 0 || count < 1 || first > rows.width || count > rows.width - first) {
      refuse(name, "is columns " + to_string(first) + " to " + to_string(first + count) +
                       " of a buffer of " + to_string(rows.width));
    }
    return rows.columns(first, count);
  }

  bool is_per_sample(const View& view) const {
    return buffers_[size_t(std::get<0>(view))].per_sample;
  }

  void check_same_rows(const View& view, const View& x, const char* name) const {
    if (is_per_sample(view) != is_per_sample(x)) {
      refuse(name, "and x differ: one has a row for each token, the other for each sample");
    }
  }

  // A view with x's rows, type and width.
  Rows like(const View& view, const Rows& x, const View& x_view, const char* name) const {
    const Rows rows = at(view, name);
    check_same_rows(view, x_view, name);
    check_dtype(rows.dtype, x.dtype, name);
    check_equal(rows.width, x.width, name, "columns");
    return rows;
  }

  // A view with a row for each token.
  Rows tokens(const View& view, const char* name) const {
    const Rows rows = at(view, name);
    if (is_per_sample(view)) refuse(name, "has a row for each sample, not for each token");
    return rows;
  }

  const Cache& cache_of(int64_t layer) const {
    const auto found = program_.caches.find(layer);
    if (found == program_.caches.end()) refuse("layer", to_string(layer) + " has no cache");
    return found->second;
  }

  static Combine combine_of(const std::string& name) {
    if (name == "none") return Combine::none;
    if (name == "add") return Combine::add;
    if (name == "multiply") return Combine::multiply;
    refuse("combine", "is '" + name + "'; it must be none, add or multiply");
  }

  void keep(const Array& array) { kept_.push_back(array); }
  void keep(const std::optional<Array>& array) {
    if (array) kept_.push_back(*array);
  }
  template <class A, class B>
  void keep(const A& a, const B& b) {
    keep(a);
    keep(b);
  }

  Program program_;
  std::vector<Buffer> buffers_;
  std::map<int64_t, LayerPool> pools_;
  std::vector<Array> kept_;
};

}  // namespace

void bind_program(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundStep>(m, "Step", "The inputs of one step.")
      .def(nb::init<const Array&, const Array&, const Array&, const Array&, const Array&,
                    const Array&, const Array&>(),
           "input_ids"_a, "position_ids"_a, "slots"_a, "starts"_a, "counts"_a, "block_tables"_a,
           "last_tokens"_a);
  nb::class_<BoundProgram>(m, "Program", "A forward pass, written down once, run for each step.")
      .def(nb::init<>())
      .def("buffer", &BoundProgram::buffer, "rows"_a, "per_sample"_a = false)
      .def("cache", &BoundProgram::cache, "layer"_a, "keys"_a, "values"_a, "head_dim"_a,
           "value_dim"_a)
      .def("embed", &BoundProgram::embed, "out"_a, "table"_a, "vocab_size"_a, "packed"_a,
           "positions"_a)
      .def("norm", &BoundProgram::norm, "out"_a, "x"_a, "groups"_a, "weight"_a.none(),
           "bias"_a.none(), "eps"_a, "center"_a)
      .def("linear", &BoundProgram::linear, "out"_a, "x"_a, "weight"_a, "n"_a, "k"_a,
           "bias"_a.none(), "gated"_a, "activation"_a, "residual"_a.none(), "alpha"_a)
      .def("rotate", &BoundProgram::rotate, "x"_a, "heads"_a, "cos"_a, "sin"_a, "interleaved"_a)
      .def("store", &BoundProgram::store, "layer"_a, "key"_a, "value"_a)
      .def("attend", &BoundProgram::attend, "out"_a, "query"_a, "layer"_a, "heads"_a, "scaling"_a,
           "window"_a, "softcap"_a, "sinks"_a.none())
      .def("elementwise", &BoundProgram::elementwise, "out"_a, "x"_a, "combine"_a, "y"_a.none(),
           "activation"_a, "alpha"_a)
      .def("gather", &BoundProgram::gather, "out"_a, "x"_a)
      .def("__len__", &BoundProgram::size)
      .def("run", &BoundProgram::run, "step"_a, "first"_a, "last"_a)
      .def("profile", &BoundProgram::profile);
}

}  // namespace batchdeck
