// Norms, rotation, embeddings and elementwise operations, each on its own.
#include <cstdlib>

#include "arrays.hpp"
#include "bindings.hpp"
#include "choice.hpp"
#include "names.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

std::string shape_text(int64_t rows, int64_t width) {
  return "[" + std::to_string(rows) + ", " + std::to_string(width) + "]";
}

// Checks for the dtype and shape of another.
void check_like(const Rows& rows, const char* name, const Rows& other, const char* other_name) {
  if (rows.dtype != other.dtype) refuse(name, std::string("is not of the dtype of ") + other_name);
  if (rows.rows != other.rows || rows.width != other.width) {
    refuse(name, "is " + shape_text(rows.rows, rows.width) + ", not " +
                     shape_text(other.rows, other.width) + " as " + other_name);
  }
}

// Checks an output with the dtype and shape of its input: if they share memory, row upon row.
void check_over(const Rows& rows, const char* name, const Rows& other, const char* other_name) {
  check_like(rows, name, other, other_name);
  if (rows.rows == 0 || rows.width == 0) return;
  const auto bytes = [](const Rows& r) {
    return ((r.rows - 1) * r.stride + r.width) * size_of(r.dtype);
  };
  const auto* mine = static_cast<const char*>(rows.data);
  const auto* theirs = static_cast<const char*>(other.data);
  const bool apart = mine + bytes(rows) <= theirs || theirs + bytes(other) <= mine;
  const bool same = mine == theirs && rows.stride == other.stride;
  // Column blocks of one matrix share their range of memory, not their numbers.
  const int64_t shift = std::abs(mine - theirs) / size_of(rows.dtype);
  const bool beside = rows.stride == other.stride && shift % rows.stride >= rows.width &&
                      shift % rows.stride + rows.width <= rows.stride;
  if (!apart && !same && !beside) {
    refuse(name, std::string("overlaps ") + other_name + " and is not the same");
  }
}

// int64 indices, each in [0, end).
const int64_t* indices(const Array& array, int64_t count, int64_t end, const char* name) {
  const auto* values = vector<int64_t>(array, count, name);
  for (int64_t i = 0; i < count; i++) {
    if (values[i] < 0 || values[i] >= end) {
      refuse(name, "has " + std::to_string(values[i]) + " at " + std::to_string(i) +
                       ", which is not in [0, " + std::to_string(end) + ")");
    }
  }
  return values;
}

int64_t share_out(int64_t width, int64_t parts, const char* name) {
  if (parts < 1 || width % parts != 0) {
    refuse(name, "is " + std::to_string(parts) + ", which does not divide the " +
                     std::to_string(width) + " columns");
  }
  return width / parts;
}

void norm(const Array& out, const Array& x, int64_t groups, const std::optional<Array>& weight,
          const std::optional<Array>& bias, float eps, bool center) {
  const Rows from = rows_of(x, "x"), to = writable_rows_of(out, "out");
  check_over(to, "out", from, "x");
  const int64_t width = share_out(from.width, groups, "groups");
  const NormArgs args{.dtype = from.dtype, .rows = from.rows, .groups = groups, .width = width,
                      .x = from.data, .x_stride = from.stride, .center = center, .eps = eps,
                      .weight = vector<float>(weight, width, "weight"),
                      .bias = vector<float>(bias, width, "bias"),
                      .out = to.data, .out_stride = to.stride};
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.norm_pieces, level.norm, args);
}

void rotate(const Array& x, int64_t heads, const Array& positions, const Array& cos,
            const Array& sin, bool interleaved) {
  const Rows to = writable_rows_of(x, "x");
  const int64_t head_dim = share_out(to.width, heads, "heads");
  const Rows c = rows_of(cos, "cos"), s = rows_of(sin, "sin");
  check_dtype(c.dtype, DType::f32, "cos");
  check_like(s, "sin", c, "cos");
  check_contiguous(cos, "cos");
  check_contiguous(sin, "sin");
  if (2 * c.width > head_dim) {
    refuse("cos", "has " + std::to_string(c.width) + " columns, more than half a head of " +
                      std::to_string(head_dim));
  }
  const RotateArgs args = {.dtype = to.dtype, .rows = to.rows, .heads = heads,
                           .head_dim = head_dim, .half = c.width, .interleaved = interleaved,
                           .positions = indices(positions, to.rows, c.rows, "positions"),
                           .cos = static_cast<const float*>(c.data),
                           .sin = static_cast<const float*>(s.data),
                           .x = to.data, .x_stride = to.stride};
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.rotate_pieces, level.rotate, args);
}

void embed(const Array& out, const Array& ids, const Array& table, int64_t vocab_size, bool packed,
           const std::optional<Quantization>& quantization) {
  const Rows to = writable_rows_of(out, "out");
  const void* rows = table_of(table, packed, vocab_size, to.width, to.dtype, quantization);
  const EmbedArgs args = {.dtype = to.dtype, .packed = packed,
                          .quantization = quantization.value_or(Quantization{}),
                          .rows = to.rows, .width = to.width, .vocab_size = vocab_size,
                          .ids = indices(ids, to.rows, vocab_size, "ids"), .table = rows,
                          .out = to.data, .out_stride = to.stride};
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.embed_pieces, level.embed, args);
}

void elementwise(const Array& out, const Array& x, const std::string& combine,
                 const std::optional<Array>& y, const std::string& activation, float alpha) {
  const Rows from = rows_of(x, "x"), to = writable_rows_of(out, "out");
  check_over(to, "out", from, "x");
  ElementwiseArgs args = {.dtype = from.dtype, .combine = combine_of(combine),
                          .activation = activation_of(activation), .alpha = alpha,
                          .rows = from.rows, .width = from.width,
                          .x = from.data, .x_stride = from.stride, .y = nullptr, .y_stride = 0,
                          .out = to.data, .out_stride = to.stride};
  if (y.has_value() != (args.combine != Combine::none)) {
    refuse("y", y ? "is given, and combine is none" : "is not given, and combine is " + combine);
  }
  if (args.combine == Combine::add && args.activation != Activation::none) {
    refuse("activation", "is '" + activation + "'; a sum has none");
  }
  if (y && y->ndim() == 1) {  // one row for all
    check_dtype(dtype_of(*y, "y"), from.dtype, "y");
    check_equal(int64_t(y->shape(0)), from.width, "y", "numbers");
    check_contiguous(*y, "y");
    args.y = y->data();
  } else if (y) {
    const Rows other = rows_of(*y, "y");
    check_dtype(other.dtype, from.dtype, "y");
    check_equal(other.rows, from.rows, "y", "rows");
    args.y_repeat = repeat_of(other.width, from.width);
    if (args.y_repeat == 1) check_over(to, "out", other, "y");
    args.y = other.data;
    args.y_stride = other.stride;
  }
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.elementwise_pieces, level.elementwise, args);
}

}  // namespace

void bind_layer(nb::module_& m) {
  m.def("norm", &norm, nb::arg("out"), nb::arg("x"), nb::arg("groups") = 1,
        nb::arg("weight") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("eps") = 1e-6f,
        nb::arg("center") = false,
        "Normalises groups of columns of x into out, which may be x: RMSNorm, or LayerNorm where\n"
        "center. Both are [rows, columns] of one dtype; weight and bias float32 [columns / groups].");
  m.def("rotate", &rotate, nb::arg("x"), nb::arg("heads"), nb::arg("positions"), nb::arg("cos"),
        nb::arg("sin"), nb::arg("interleaved") = false,
        "Rotates the first 2 * half columns of each head of x [rows, heads * head_dim] in place;\n"
        "positions int64 [rows]; cos and sin float32 [positions, half].");
  m.def("embed", &embed, nb::arg("out"), nb::arg("ids"), nb::arg("table"), nb::arg("vocab_size"),
        nb::arg("packed"), nb::arg("quantization") = nb::none(),
        "Rows `ids` of a table [vocab_size, width], or of packed weights, into out [rows, width].");
  m.def("elementwise", &elementwise, nb::arg("out"), nb::arg("x"), nb::arg("combine") = "none",
        nb::arg("y") = nb::none(), nb::arg("activation") = "none", nb::arg("alpha") = 1.0f,
        "activation(alpha * x), x + alpha * y, or activation(x) * y * alpha into out; y as x, or\n"
        "one row for all.");
}

}  // namespace batchdeck
