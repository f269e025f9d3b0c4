// sample: one token of each row of logits.
#include "arrays.hpp"

namespace batchdeck {
namespace {

void sample(const Array& logits, const Array& temperature, const Array& top_k, const Array& top_p,
            const Array& min_p, const Array& uniform, const Array& tokens) {
  const Rows rows = rows_of(logits, "logits");
  if (rows.dtype != DType::f32) refuse("logits", "must be float32");
  if (rows.width == 0) refuse("logits", "has no columns");
  const SampleArgs args = {
      .rows = rows.rows,
      .vocab_size = rows.width,
      .logits = static_cast<const float*>(rows.data),
      .stride = rows.stride,
      .temperature = vector<float>(temperature, rows.rows, "temperature"),
      .top_k = vector<int64_t>(top_k, rows.rows, "top_k"),
      .top_p = vector<double>(top_p, rows.rows, "top_p"),
      .min_p = vector<float>(min_p, rows.rows, "min_p"),
      .uniform = vector<double>(uniform, rows.rows, "uniform"),
      .tokens = vector<int64_t>(tokens, rows.rows, "tokens"),
  };
  const nb::gil_scoped_release unlocked;
  const auto kernel = kernels().sample;
  Pool::get().each(args.rows,
                   [&](int64_t row, Scratch& scratch) { kernel(args, row, scratch); });
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample", &sample, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"),
        nb::arg("top_p"), nb::arg("min_p"), nb::arg("uniform"), nb::arg("tokens"),
        "Chooses a token of each row of logits [rows, vocab_size] (SampleArgs in kernels.hpp).");
}

}  // namespace batchdeck
