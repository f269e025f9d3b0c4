// sample: chooses one token of each row of logits.
#include <algorithm>

#include "arrays.hpp"
#include "bindings.hpp"
#include "choice.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

// Outside these ranges nothing may be left to choose from, which the kernel does not handle.
template <class T, class F>
void check_each(const T* numbers, int64_t count, const char* name, const char* range,
                const F& is_good) {
  const T* wrong = std::find_if_not(numbers, numbers + count, is_good);
  if (wrong != numbers + count) {
    refuse(name, "has " + std::to_string(*wrong) + " at " + std::to_string(wrong - numbers) +
                     "; it must be " + range);
  }
}

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
  const int64_t count = args.rows;
  check_each(args.temperature, count, "temperature", "at least 0", [](float t) { return t >= 0; });
  check_each(args.top_k, count, "top_k", "at least 1", [](int64_t k) { return k >= 1; });
  check_each(args.top_p, count, "top_p", "above 0", [](double p) { return p > 0; });
  check_each(args.min_p, count, "min_p", "from 0 to 1", [](float p) { return p >= 0 && p <= 1; });
  check_each(args.uniform, count, "uniform", "at least 0 and below 1",
             [](double u) { return u >= 0 && u < 1; });
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
