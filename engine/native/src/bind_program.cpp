// Program for Python: arguments checked and named, arrays kept alive.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "arrays.hpp"
#include "bindings.hpp"
#include "bound_cache.hpp"
#include "bound_experts.hpp"
#include "bound_state.hpp"
#include "bound_step.hpp"
#include "buffers.hpp"
#include "names.hpp"
#include "program.hpp"

namespace batchdeck {
namespace {

using std::to_string;

class BoundProgram {
 public:
  int64_t buffer(const Array& array, bool per_sample) {
    const Rows rows = writable_rows_of(array, "rows");
    Limits limits;
    (per_sample ? limits.samples : limits.tokens) = rows.rows;
    program_.limit(limits);
    keep(array);
    return buffers_.add(rows, per_sample);
  }

  void cache(int64_t layer, const Array& keys, const std::optional<Array>& values, int64_t head_dim,
             int64_t value_dim) {
    const auto [cache, blocks] =
        cache_of(keys, values.has_value() ? &*values : nullptr, head_dim, value_dim);
    // May wait for a run to end, which never waits for the interpreter. Then the previous arrays
    // can be freed.
    program_.set_cache(layer, cache, blocks);
    caches_[layer] = {keys, values};
  }

  int64_t embed(const View& out_view, const Array& table, int64_t vocab_size, bool packed,
                bool positions, const std::optional<Quantization>& quantization) {
    const Rows out = buffers_.tokens(out_view, "out");
    const void* data = table_of(table, packed, vocab_size, out.width, out.dtype, quantization);
    Limits limits;
    (positions ? limits.positions : limits.ids) = vocab_size;
    keep(table);
    const EmbedArgs args{.dtype = out.dtype, .packed = packed,
                         .quantization = quantization.value_or(Quantization{}), .rows = 0,
                         .width = out.width, .vocab_size = vocab_size, .ids = nullptr, .table = data,
                         .out = out.data, .out_stride = out.stride};
    return program_.add(Embed{args, positions}, false, limits);
  }

  int64_t norm(const View& out_view, const View& x_view, int64_t groups,
               const std::optional<Array>& weight, const std::optional<Array>& bias, float eps,
               bool center) {
    const Rows x = buffers_.at(x_view, "x");
    const Rows out = buffers_.like(out_view, x, x_view, "out");
    check_at_least(groups, 1, "groups");
    if (x.width % groups) refuse("groups", "is " + to_string(groups) + ", which does not divide x");
    check_same_or_apart(out_view, x_view, "out");
    const int64_t width = x.width / groups;
    const NormArgs args{.dtype = x.dtype, .rows = 0, .groups = groups, .width = width,
                        .x = x.data, .x_stride = x.stride,
                        .center = center, .eps = eps,
                        .weight = vector<float>(weight, width, "weight"),
                        .bias = vector<float>(bias, width, "bias"),
                        .out = out.data, .out_stride = out.stride};
    keep(weight, bias);
    return program_.add(args, buffers_.is_per_sample(x_view));
  }

  int64_t linear(const View& out_view, const View& x_view, const Array& weight, int64_t n,
                 int64_t k, const std::optional<Array>& bias, bool gated,
                 const std::string& activation, const std::optional<View>& residual_view,
                 float alpha, const std::optional<Quantization>& quantization) {
    const Rows x = buffers_.at(x_view, "x");
    check_at_least(n, 1, "n");
    check_equal(x.width, k, "x", "columns");
    const View reads = buffers_.whole_tiles(x_view, "x");
    if (gated && n % kPanel) refuse("n", "is " + to_string(n) + "; gated, it must be a multiple of 32");
    const Rows out = buffers_.at(out_view, "out");
    check_equal(out.width, gated ? n / 2 : n, "out", "columns");
    buffers_.check_same_rows(out_view, x_view, "out");
    if (out.dtype != DType::f32) check_dtype(out.dtype, x.dtype, "out");
    if (overlap(out_view, reads)) refuse("out", "shares columns with x, its last tile included");
    const Activation chosen = activation_of(activation);
    Rows residual{};
    if (residual_view) {
      if (gated || chosen != Activation::none) {
        refuse("residual", "goes with neither gates nor an activation");
      }
      residual = buffers_.at(*residual_view, "residual");
      check_dtype(residual.dtype, x.dtype, "residual");
      check_equal(residual.width, n, "residual", "columns");
      buffers_.check_same_rows(*residual_view, x_view, "residual");
      check_same_or_apart(out_view, *residual_view, "out");
    } else if (alpha != 1) {
      refuse("alpha", "is " + to_string(alpha) + ", but there is no residual");
    }
    const LinearArgs args{.dtype = x.dtype, .out_dtype = out.dtype, .m = 0, .n = n, .k = k,
                          .x = x.data, .x_stride = x.stride,
                          .weight = weights_of(weight, n, k, x.dtype, quantization, "weight"),
                          .bias = vector<float>(bias, n, "bias"),
                          .gated = gated, .activation = chosen,
                          .residual = residual.data, .residual_stride = residual.stride,
                          .alpha = alpha, .out = out.data, .out_stride = out.stride,
                          .quantization = quantization.value_or(Quantization{})};
    keep(weight, bias);
    return program_.add(Linear{args, x.rows}, buffers_.is_per_sample(x_view));
  }

  // Pairs of each head are numbers from `begin` on.
  int64_t rotate(const View& x_view, int64_t heads, const Array& cos, const Array& sin,
                 bool interleaved, int64_t begin) {
    const Rows x = buffers_.tokens(x_view, "x");
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
    check_at_least(begin, 0, "begin");
    check_at_most(begin, head_dim, "begin");
    if (table.width < 1 || 2 * table.width > head_dim - begin) {
      refuse("cos", "has " + to_string(table.width) + " columns; a head has " +
                        to_string(head_dim - begin) + " numbers to rotate in pairs");
    }
    keep(cos, sin);
    const RotateArgs args{.dtype = x.dtype, .rows = 0, .heads = heads, .head_dim = head_dim,
                          .half = table.width, .interleaved = interleaved, .positions = nullptr,
                          .cos = static_cast<const float*>(table.data),
                          .sin = static_cast<const float*>(other.data),
                          .x = static_cast<char*>(x.data) + begin * size_of(x.dtype),
                          .x_stride = x.stride};
    return program_.add(args, false, Limits{.positions = table.rows});
  }

  // No values, if they are in the keys.
  int64_t store(int64_t layer, const View& key_view, const std::optional<View>& value_view) {
    const Cache& cache = program_.cache(layer);
    if (value_view.has_value() != (cache.values != nullptr)) {
      refuse("value", value_view ? "is given, but the cache has values in its keys" : "is missing");
    }
    const Rows key = buffers_.tokens(key_view, "key");
    const Rows value = value_view ? buffers_.tokens(*value_view, "value") : Rows{};
    check_dtype(key.dtype, cache.dtype, "key");
    check_equal(key.width, cache.kv_heads * cache.head_dim, "key", "columns");
    if (value_view) {
      check_dtype(value.dtype, cache.dtype, "value");
      check_equal(value.width, cache.kv_heads * cache.value_dim, "value", "columns");
    }
    const StoreArgs args{.cache = cache, .rows = 0, .slots = nullptr,
                         .key = key.data, .key_stride = key.stride,
                         .value = value.data, .value_stride = value.stride};
    return program_.add(Store{args, layer}, false);
  }

  int64_t attend(const View& out_view, const View& query_view, int64_t layer, int64_t heads,
                 float scaling, int64_t window, float softcap, const std::optional<Array>& sinks) {
    const Cache& cache = program_.cache(layer);
    const Rows out = buffers_.tokens(out_view, "out"), query = buffers_.tokens(query_view, "query");
    check_at_least(heads, 1, "heads");
    check_at_most(heads, query.width, "heads");
    if (heads % cache.kv_heads) {
      refuse("heads", "is " + to_string(heads) + "; the cache's " + to_string(cache.kv_heads) +
                          " heads do not divide it");
    }
    check_dtype(out.dtype, cache.dtype, "out");
    check_dtype(query.dtype, cache.dtype, "query");
    check_equal(out.width, heads * cache.value_dim, "out", "columns");
    check_equal(query.width, heads * cache.head_dim, "query", "columns");
    if (overlap(out_view, query_view)) refuse("out", "shares columns with query");
    if (!(scaling > 0)) refuse("scaling", "is " + to_string(scaling) + "; it must be above 0");
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
    const Rows x = buffers_.at(x_view, "x");
    const Rows out = buffers_.like(out_view, x, x_view, "out");
    check_same_or_apart(out_view, x_view, "out");
    const Combine how = combine_of(combine);
    const Activation chosen = activation_of(activation);
    if (y.has_value() != (how != Combine::none)) {
      refuse("y", y ? "is given, but combine is 'none'" : "is missing; combine is '" + combine + "'");
    }
    if (how == Combine::add && chosen != Activation::none) {
      refuse("activation", "is '" + activation + "'; a sum has none");
    }
    Rows other{};
    int64_t repeat = 1;
    if (y && std::holds_alternative<View>(*y)) {
      const View& y_view = std::get<View>(*y);
      other = buffers_.at(y_view, "y");
      buffers_.check_same_rows(y_view, x_view, "y");
      check_dtype(other.dtype, x.dtype, "y");
      repeat = repeat_of(other.width, x.width);
      if (repeat == 1) {
        check_same_or_apart(out_view, y_view, "out");
      } else if (overlap(out_view, y_view)) {
        refuse("out", "shares columns with y, each of which serves several");
      }
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
                               .out = out.data, .out_stride = out.stride, .y_repeat = repeat};
    return program_.add(args, buffers_.is_per_sample(x_view));
  }

  int64_t gather(const View& out_view, const View& x_view) {
    const Rows out = buffers_.at(out_view, "out"), x = buffers_.tokens(x_view, "x");
    if (!buffers_.is_per_sample(out_view)) refuse("out", "has a row for each token, not for each sample");
    check_dtype(out.dtype, x.dtype, "out");
    check_equal(out.width, x.width, "out", "columns");
    const Gather args{x.dtype, x.width, x.data, x.stride, out.data, out.stride};
    return program_.add(args, true);
  }

  int64_t experts(const View& out_view, const View& x_view, const View& logits_view,
                  const BoundExperts& experts) {
    const Rows x = buffers_.at(x_view, "x");
    ExpertsArgs args = experts.args(x.dtype);
    const Rows out = buffers_.like(out_view, x, x_view, "out");
    const Rows logits = buffers_.at(logits_view, "logits");
    check_equal(x.width, args.up.k, "x", "columns");
    check_dtype(logits.dtype, DType::f32, "logits");
    check_equal(logits.width, args.route.experts, "logits", "columns");
    buffers_.check_same_rows(logits_view, x_view, "logits");
    check_same_or_apart(out_view, x_view, "out");
    args.up.x = x.data;
    args.up.x_stride = x.stride;
    args.down.out = out.data;
    args.down.out_stride = out.stride;
    args.route.logits = static_cast<const float*>(logits.data);
    args.route.logits_stride = logits.stride;
    for (const Array& array : experts.kept()) keep(array);
    return program_.add(Experts{args, x.rows}, buffers_.is_per_sample(x_view));
  }

  int64_t convolve(const View& out_view, const View& x_view, const Array& weight,
                   const std::optional<Array>& bias, const std::string& activation,
                   const Array& state) {
    const Rows x = buffers_.tokens(x_view, "x");
    const Rows out = buffers_.like(out_view, x, x_view, "out");
    if (overlap(out_view, x_view)) refuse("out", "shares columns with x");
    ConvolveArgs args = convolve_of(out, x, weight, bias, activation, nullptr);
    const StateMemory memory = state_of(state, args.dtype, (args.taps - 1) * args.width);
    args.state = memory.data;
    keep(weight, bias);
    keep(state);
    return program_.add(args, false, Limits{.states = memory.slots});
  }

  int64_t recur(const View& out_view, const std::vector<View>& reads,
                const std::optional<View>& beta, int64_t key_heads,
                const std::optional<Array>& decay_bias, const Array& decay_scale, bool softplus,
                float low, float high, bool scaled, const std::optional<Array>& skip,
                bool normalize, float scaling, const Array& state) {
    check_equal(int64_t(reads.size()), 4, "reads", "views");
    const Rows out = buffers_.tokens(out_view, "out");
    RecurInputs in{buffers_.tokens(reads[0], "query"), buffers_.tokens(reads[1], "key"),
                   buffers_.tokens(reads[2], "value"), buffers_.tokens(reads[3], "decay"), {}};
    if (beta) in.beta = buffers_.tokens(*beta, "beta");
    for (const View& view : reads) {
      if (overlap(out_view, view)) refuse("out", "shares columns with what is read");
    }
    if (beta && overlap(out_view, *beta)) refuse("out", "shares columns with beta");
    RecurArgs args = recur_of(out, in,
                              {key_heads, decay_bias, decay_scale, softplus, low, high, scaled,
                               skip, normalize, scaling});
    const StateMemory memory =
        state_of(state, DType::f32, args.heads * args.key_dim * args.value_dim);
    args.state = static_cast<float*>(memory.data);
    keep(decay_bias, skip);
    keep(decay_scale, state);
    return program_.add(args, false, Limits{.states = memory.slots});
  }

  int64_t size() const { return program_.size(); }

  void run(BoundStep& step, int64_t first, int64_t last) {
    const nb::gil_scoped_release unlocked;
    const auto turn = step.take_turn();
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
  void keep(const Array& array) { kept_.push_back(array); }
  void keep(const std::optional<Array>& array) {
    if (array) kept_.push_back(*array);
  }
  template <class A, class B>
  void keep(const A& a, const B& b) {
    keep(a);
    keep(b);
  }

  // The owners of the memory to which the program's pointers lead.
  std::vector<Array> kept_;
  std::map<int64_t, std::pair<Array, std::optional<Array>>> caches_;  // keys and values by layer
  Buffers buffers_;
  Program program_;
};

}  // namespace

void bind_program(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundProgram>(m, "Program", "A forward pass, written down once, run for each step.")
      .def(nb::init<>())
      .def("buffer", &BoundProgram::buffer, "rows"_a, "per_sample"_a = false)
      .def("cache", &BoundProgram::cache, "layer"_a, "keys"_a, "values"_a.none(),
           "head_dim"_a, "value_dim"_a)
      .def("embed", &BoundProgram::embed, "out"_a, "table"_a, "vocab_size"_a, "packed"_a,
           "positions"_a, "quantization"_a = nb::none())
      .def("norm", &BoundProgram::norm, "out"_a, "x"_a, "groups"_a, "weight"_a.none(),
           "bias"_a.none(), "eps"_a, "center"_a)
      .def("linear", &BoundProgram::linear, "out"_a, "x"_a, "weight"_a, "n"_a, "k"_a,
           "bias"_a = nb::none(), "gated"_a = false, "activation"_a = "none",
           "residual"_a = nb::none(), "alpha"_a = 1.0f, "quantization"_a = nb::none())
      .def("rotate", &BoundProgram::rotate, "x"_a, "heads"_a, "cos"_a, "sin"_a, "interleaved"_a,
           "begin"_a = 0)
      .def("store", &BoundProgram::store, "layer"_a, "key"_a, "value"_a.none())
      .def("attend", &BoundProgram::attend, "out"_a, "query"_a, "layer"_a, "heads"_a, "scaling"_a,
           "window"_a, "softcap"_a, "sinks"_a.none())
      .def("elementwise", &BoundProgram::elementwise, "out"_a, "x"_a,
           "combine"_a = "none", "y"_a = nb::none(), "activation"_a = "none", "alpha"_a = 1.0f)
      .def("gather", &BoundProgram::gather, "out"_a, "x"_a)
      .def("convolve", &BoundProgram::convolve, "out"_a, "x"_a, "weight"_a, "bias"_a.none(),
           "activation"_a, "state"_a)
      .def("recur", &BoundProgram::recur, "out"_a, "reads"_a, "beta"_a.none(), "key_heads"_a,
           "decay_bias"_a.none(), "decay_scale"_a, "softplus"_a, "low"_a, "high"_a, "scaled"_a,
           "skip"_a.none(), "normalize"_a, "scaling"_a, "state"_a)
      .def("experts", &BoundProgram::experts, "out"_a, "x"_a, "logits"_a, "experts"_a)
      .def("__len__", &BoundProgram::size)
      .def("run", &BoundProgram::run, "step"_a, "first"_a, "last"_a)
      .def("profile", &BoundProgram::profile);
}

}  // namespace batchdeck
