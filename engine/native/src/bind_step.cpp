// Step for Python.
#include "bindings.hpp"
#include "bound_step.hpp"

namespace batchdeck {
namespace {

int64_t length(const Array& array, const char* name) {
  check_equal(int64_t(array.ndim()), 1, name, "dimensions");
  return int64_t(array.shape(0));
}

StepInputs inputs_of(const Array& input_ids, const Array& position_ids, const Array& slots,
                     const Array& starts, const Array& counts, const Array& block_tables,
                     const Array& last_tokens, const std::optional<Array>& states) {
  const int64_t tokens = length(input_ids, "input_ids"), rows = length(starts, "starts");
  const int64_t samples = length(last_tokens, "last_tokens");
  const Tables tables = tables_of(block_tables, rows, "block_tables");
  return {.tokens = tokens,
          .input_ids = vector<int64_t>(input_ids, tokens, "input_ids"),
          .position_ids = vector<int64_t>(position_ids, tokens, "position_ids"),
          .slots = vector<int64_t>(slots, tokens, "slots"),
          .rows = rows,
          .starts = vector<int64_t>(starts, rows, "starts"),
          .counts = vector<int64_t>(counts, rows, "counts"),
          .tables = tables.data,
          .table_width = tables.width,
          .table_stride = tables.stride,
          .samples = samples,
          .last_tokens = vector<int64_t>(last_tokens, samples, "last_tokens"),
          .states = vector<int64_t>(states, rows, "states")};
}

}  // namespace

BoundStep::BoundStep(const Array& input_ids, const Array& position_ids, const Array& slots,
                     const Array& starts, const Array& counts, const Array& block_tables,
                     const Array& last_tokens, const std::optional<Array>& states)
    : kept_{input_ids, position_ids, slots, starts, counts, block_tables, last_tokens},
      step_(inputs_of(input_ids, position_ids, slots, starts, counts, block_tables, last_tokens,
                      states)) {
  if (states) kept_.push_back(*states);
}

void bind_step(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundStep>(m, "Step", "The inputs of one step.")
      .def(nb::init<const Array&, const Array&, const Array&, const Array&, const Array&,
                    const Array&, const Array&, const std::optional<Array>&>(),
           "input_ids"_a, "position_ids"_a, "slots"_a, "starts"_a, "counts"_a, "block_tables"_a,
           "last_tokens"_a, "states"_a = nb::none());
}

}  // namespace batchdeck
