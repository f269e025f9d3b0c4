// Operations with a state for each sequence, each on its own.
#include <vector>

#include "bindings.hpp"
#include "bound_state.hpp"
#include "choice.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// The rows of a step with `tokens` tokens in total.
struct PackedRows {
  StateRows rows;
  std::vector<int64_t> offsets;

  PackedRows(const Array& starts, const Array& counts, const Array& slots, int64_t tokens,
             int64_t most_slots) {
    check_equal(int64_t(starts.ndim()), 1, "starts", "dimensions");
    const int64_t number = starts.shape(0);
    rows = {number, vector<int64_t>(starts, number, "starts"),
            vector<int64_t>(counts, number, "counts"), nullptr,
            vector<int64_t>(slots, number, "slots")};
    int64_t total = 0;
    for (int64_t row = 0; row < number; row++) {
      check_at_least(rows.starts[row], 0, "starts");
      check_at_least(rows.counts[row], 1, "counts");
      check_at_most(rows.counts[row], tokens - total, "counts");
      check_at_least(rows.slots[row], 0, "slots");
      check_at_most(rows.slots[row], most_slots - 1, "slots");
      offsets.push_back(total);
      total += rows.counts[row];
    }
    check_equal(total, tokens, "counts", "tokens together");
    rows.offsets = offsets.data();
  }
};

// Both have `slots` states, at least one for each row; no two rows share one.
void convolve(const Array& out, const Array& x, const Array& weight,
              const std::optional<Array>& bias, const std::string& activation, const Array& state,
              const Array& starts, const Array& counts, const Array& slots) {
  const Rows from = rows_of(x, "x"), to = writable_rows_of(out, "out");
  check_dtype(to.dtype, from.dtype, "out");
  check_equal(to.rows, from.rows, "out", "rows");
  check_equal(to.width, from.width, "out", "columns");
  ConvolveArgs args = convolve_of(to, from, weight, bias, activation, nullptr);
  const StateMemory memory = state_of(state, args.dtype, (args.taps - 1) * args.width);
  const PackedRows packed(starts, counts, slots, from.rows, memory.slots);
  args.state = memory.data;
  args.rows = packed.rows;
  const nb::gil_scoped_release unlocked;
  run_pieces(kernels().convolve_pieces, kernels().convolve, args);
}

void recur(const Array& out, const Array& query, const Array& key, const Array& value,
           const Array& decay, const std::optional<Array>& beta, int64_t key_heads,
           const std::optional<Array>& decay_bias, const Array& decay_scale, bool softplus,
           float low, float high, bool scaled, const std::optional<Array>& skip, bool normalize,
           float scaling, const Array& state, const Array& starts, const Array& counts,
           const Array& slots) {
  const Rows to = writable_rows_of(out, "out");
  RecurInputs in{rows_of(query, "query"), rows_of(key, "key"), rows_of(value, "value"),
                 rows_of(decay, "decay"), {}};
  if (beta) in.beta = rows_of(*beta, "beta");
  RecurArgs args = recur_of(to, in,
                            {key_heads, decay_bias, decay_scale, softplus, low, high, scaled, skip,
                             normalize, scaling});
  const StateMemory memory =
      state_of(state, DType::f32, args.heads * args.key_dim * args.value_dim);
  const PackedRows packed(starts, counts, slots, to.rows, memory.slots);
  args.state = static_cast<float*>(memory.data);
  args.rows = packed.rows;
  const nb::gil_scoped_release unlocked;
  run_pieces(kernels().recur_pieces, kernels().recur, args);
}

}  // namespace

void bind_state(nb::module_& m) {
  using namespace nb::literals;
  m.def("convolve", &convolve, "out"_a, "x"_a, "weight"_a, "bias"_a.none(), "activation"_a,
        "state"_a, "starts"_a, "counts"_a, "slots"_a,
        "Causal convolution of each column of x [tokens, width] into out, which is apart from x;\n"
        "weight float32 [taps, width]; state [slots, taps - 1, width], the last rows of each\n"
        "sequence. Row r of the step has counts[r] tokens of the sequence in slots[r], of which\n"
        "starts[r] came before.");
  m.def("recur", &recur, "out"_a, "query"_a, "key"_a, "value"_a, "decay"_a, "beta"_a.none(),
        "key_heads"_a, "decay_bias"_a.none(), "decay_scale"_a, "softplus"_a, "low"_a, "high"_a,
        "scaled"_a, "skip"_a.none(), "normalize"_a, "scaling"_a, "state"_a, "starts"_a, "counts"_a,
        "slots"_a,
        "A linear recurrence (kernels.hpp, RecurArgs) over rows as `convolve` has them; state\n"
        "float32 [slots, heads, key_dim, value_dim].");
}

}  // namespace batchdeck
