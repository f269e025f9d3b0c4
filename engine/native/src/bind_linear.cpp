// pack_linear, packed_size, linear, and their memory.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "choice.hpp"
#include "coded_memory.hpp"
#include "names.hpp"
#include "pool.hpp"

namespace batchdeck {
namespace {

void pack_linear(const Array& weight, const Array& packed) {
  const Rows from = rows_of(weight, "weight");
  void* to = packed_of(packed, from.rows, from.width, from.dtype, "packed");
  const nb::gil_scoped_release unlocked;
  const auto pack = kernels().pack_linear;
  Pool::get().each(ceil_div(from.rows, kPanel), [&](int64_t panel, Scratch&) {
    pack(from.dtype, from.data, from.stride, from.rows, from.width, panel, panel + 1, to);
  });
}

void check_shape(const Rows& array, const char* name, int64_t rows, int64_t columns) {
  if (array.rows == rows && array.width >= columns) return;
  refuse(name, "is [" + std::to_string(array.rows) + ", " + std::to_string(array.width) +
                   "]; it must be [" + std::to_string(rows) + ", " + std::to_string(columns) +
                   " or more]");
}

void check_zeros(const Quantization& quantization, const std::optional<Array>& zeros) {
  if (quantization.has_zeros == zeros.has_value()) return;
  refuse("zeros", zeros ? "are given, but the quantization has none" : "are missing");
}

// Replaces weights [n, k] by the values of their codes: see QuantizeArgs.
void quantize(const Array& weight, const Array& scales, const Quantization& quantization) {
  const Rows rows = writable_rows_of(weight, "weight");
  size_of_packed(rows.rows, rows.width);
  if (quantization.has_zeros) refuse("quantization", "has zeros, which are not looked for");
  const int64_t groups = ceil_div(rows.width, quantization.group);
  const QuantizeArgs args{.dtype = rows.dtype, .quantization = quantization, .n = rows.rows,
                          .k = rows.width, .weight = rows.data, .stride = rows.stride,
                          .scales = halves_of(scales, rows.rows, groups, "scales"),
                          .scales_stride = groups};
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  run_pieces(level.quantize_pieces, level.quantize, args);
}

bool recognize(const Array& weight, const Array& scales, const std::optional<Array>& zeros,
               const Quantization& quantization) {
  const Rows rows = rows_of(weight, "weight");
  size_of_packed(rows.rows, rows.width);
  check_at_most(quantization.group, 128, "group");
  check_zeros(quantization, zeros);
  if (zeros && quantization.coding != Coding::int4) {
    refuse("zeros", "of more than 4 bits fit any numbers that were rounded to bfloat16");
  }
  const int64_t groups = ceil_div(rows.width, quantization.group);
  const RecognizeArgs args{.dtype = rows.dtype, .quantization = quantization, .k = rows.width,
                           .weight = rows.data, .stride = rows.stride,
                           .scales = halves_of(scales, rows.rows, groups, "scales"),
                           .zeros = zeros ? halves_of(*zeros, rows.rows, groups, "zeros") : nullptr,
                           .scales_stride = groups};
  const nb::gil_scoped_release unlocked;
  const auto recognize_row = kernels().recognize_row;
  std::atomic<bool> are_all = true;
  constexpr int64_t kRows = 16;
  Pool::get().each(ceil_div(rows.rows, kRows), [&](int64_t piece, Scratch&) {
    const int64_t last = std::min(rows.rows, (piece + 1) * kRows);
    for (int64_t row = piece * kRows; row < last && are_all; row++) {
      if (!recognize_row(args, row)) are_all = false;
    }
  });
  return are_all;
}

void pack_coded(const Array& weight, const Array& scales, const std::optional<Array>& zeros,
                const Quantization& quantization, const Array& packed) {
  const Rows rows = rows_of(weight, "weight");
  const int64_t n = rows.rows, k = rows.width;
  void* to = coded_of(packed, n, k, quantization, "packed");
  check_zeros(quantization, zeros);
  const int64_t groups = ceil_div(k, quantization.group);
  const PackCodedArgs args{.dtype = rows.dtype, .quantization = quantization, .n = n, .k = k,
                           .weight = rows.data, .stride = rows.stride,
                           .scales = halves_of(scales, n, groups, "scales"),
                           .zeros = zeros ? halves_of(*zeros, n, groups, "zeros") : nullptr,
                           .scales_stride = groups, .packed = static_cast<uint8_t*>(to)};
  const nb::gil_scoped_release unlocked;
  const auto pack = kernels().pack_coded;
  Pool::get().each(ceil_div(n, kPanel), [&](int64_t panel, Scratch&) { pack(args, panel); });
}

BlockType block_type_of(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < kBlockLayouts.size(); i++) {
    if (name == kBlockLayouts[i].name) return BlockType(i);
    known += (known.empty() ? "" : ", ") + std::string(kBlockLayouts[i].name);
  }
  refuse("type", "is '" + name + "'; known are " + known);
}

// Rows of blocks, uint8 [rows, bytes of k features].
struct Blocks {
  Blocks(const Array& array, const std::string& type, int64_t k)
      : type(block_type_of(type)), rows(int64_t(array.ndim() == 2 ? array.shape(0) : 0)) {
    const BlockLayout& layout = layout_of(this->type);
    if (array.dtype() != nb::dtype<uint8_t>() || array.ndim() != 2) {
      refuse("blocks", "must be uint8 and have two dimensions");
    }
    check_contiguous(array, "blocks");
    if (k % layout.features != 0) {
      refuse("k", "is " + std::to_string(k) + "; a block of " + type + " has " +
                      std::to_string(layout.features) + " features");
    }
    bytes = k / layout.features * layout.bytes;
    check_equal(int64_t(array.shape(1)), bytes, "blocks", "bytes a row");
    data = static_cast<const uint8_t*>(array.data());
  }

  BlockType type;
  int64_t rows, bytes = 0;
  const uint8_t* data = nullptr;
};

// Row i of the packed weights is row rows[i] of all blocks, concatenated; -1 is padding.
bool pack_blocks(const std::vector<std::pair<Array, std::string>>& blocks, const Array& rows,
                 int64_t k, const Quantization& quantization, const Array& packed) {
  const auto n = int64_t(rows.ndim() == 1 ? rows.shape(0) : 0);
  const auto* numbers = vector<int64_t>(rows, n, "rows");
  uint8_t* to = coded_of(packed, n, k, quantization, "packed");
  std::vector<BlockRow> found;
  for (const auto& [array, type] : blocks) {
    const Blocks part(array, type, k);
    const BlockLayout& layout = layout_of(part.type);
    if (layout.bits > bits_of(quantization.coding) || layout.group % quantization.group != 0 ||
        layout.has_zeros > quantization.has_zeros) {
      refuse("quantization", "has no room for blocks of " + type);
    }
    for (int64_t row = 0; row < part.rows; row++) found.push_back({part.data + row * part.bytes, part.type});
  }
  std::vector<BlockRow> chosen(size_t(n), BlockRow{nullptr, BlockType::q8_0});
  for (int64_t i = 0; i < n; i++) {
    if (numbers[i] < 0) continue;
    check_at_most(numbers[i], int64_t(found.size()) - 1, "rows");
    chosen[size_t(i)] = found[size_t(numbers[i])];
  }
  const PackBlocksArgs args{.quantization = quantization, .n = n, .k = k, .rows = chosen.data(),
                            .packed = to};
  const nb::gil_scoped_release unlocked;
  const auto pack = kernels().pack_blocks;
  std::atomic<bool> fit = true;
  Pool::get().each(ceil_div(n, kPanel), [&](int64_t panel, Scratch&) {
    if (!pack(args, panel)) fit = false;
  });
  return fit;
}

void unpack_blocks(const Array& blocks, const std::string& type, const Array& out) {
  const Rows to = writable_rows_of(out, "out");
  const Blocks from(blocks, type, to.width);
  check_equal(to.rows, from.rows, "out", "rows");
  const nb::gil_scoped_release unlocked;
  const auto unpack = kernels().unpack_blocks;
  constexpr int64_t kRows = 16;
  Pool::get().each(ceil_div(from.rows, kRows), [&](int64_t piece, Scratch&) {
    for (int64_t row = piece * kRows; row < std::min(from.rows, (piece + 1) * kRows); row++) {
      unpack({.type = from.type, .k = to.width, .blocks = from.data + row * from.bytes,
              .dtype = to.dtype,
              .out = static_cast<char*>(to.data) + row * to.stride * size_of(to.dtype)});
    }
  });
}

void linear(const Array& out, const Array& x, const Array& weight, int64_t n, int64_t k,
            const std::optional<Array>& bias, bool gated, const std::string& activation,
            const std::optional<Array>& residual, float alpha,
            const std::optional<Quantization>& quantization) {
  const Rows input = rows_of(x, "x"), result = writable_rows_of(out, "out");
  const void* packed = weights_of(weight, n, k, input.dtype, quantization, "weight");
  if (gated && n % kPanel != 0) {
    refuse("n", "is " + std::to_string(n) + "; gated, it must be a multiple of 32");
  }
  if (result.dtype != input.dtype && result.dtype != DType::f32) {
    refuse("out", "must be float32 or of x's type");
  }
  check_shape(input, "x", input.rows, input.dtype == DType::bf16 ? round_up(k, kDepth) : k);
  check_shape(result, "out", input.rows, gated ? n / 2 : n);
  LinearArgs args{};
  args.dtype = input.dtype;
  args.out_dtype = result.dtype;
  args.m = input.rows;
  args.n = n;
  args.k = k;
  args.x = input.data;
  args.x_stride = input.stride;
  args.weight = packed;
  args.bias = vector<float>(bias, n, "bias");
  args.gated = gated;
  args.activation = activation_of(activation);
  args.alpha = alpha;
  args.out = result.data;
  args.out_stride = result.stride;
  if (residual) {
    if (gated || args.activation != Activation::none) {
      refuse("residual", "goes with neither gates nor an activation");
    }
    const Rows added = rows_of(*residual, "residual");
    if (added.dtype != input.dtype) refuse("residual", "must be of x's type");
    check_shape(added, "residual", input.rows, n);
    args.residual = added.data;
    args.residual_stride = added.stride;
  } else if (alpha != 1) {
    refuse("alpha", "goes with a residual only");
  }
  args.quantization = quantization.value_or(Quantization{});
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  CodedMemory memory;
  memory.code(level, args);
  run_pieces(level.linear_pieces, level.linear, args);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("packed_size", &size_of_packed, nb::arg("n"), nb::arg("k"),
        "How many numbers packed weights of shape [n, k] take.");
  m.def("pack_linear", &pack_linear, nb::arg("weight"), nb::arg("packed"),
        "Packs weights [n, k] into packed [packed_size(n, k)].");
  nb::class_<Quantization>(
      m, "Quantization",
      "How weights are quantized: to codes of 4, 5, 6 or 8 bits, with a scale, and a zero where there "
      "are some, for each `group` input features: scale * (code - zero), zero in the middle where there "
      "are none.")
      .def("__init__",
           [](Quantization* self, int64_t bits, int64_t group, bool has_zeros) {
             new (self) Quantization(quantization_of(bits, group, has_zeros));
           },
           nb::arg("bits"), nb::arg("group"), nb::arg("has_zeros") = false)
      .def_prop_ro("bits", [](const Quantization& self) { return bits_of(self.coding); })
      .def_ro("group", &Quantization::group)
      .def_ro("has_zeros", &Quantization::has_zeros);
  m.def("coded_size", &size_of_coded, nb::arg("n"), nb::arg("k"), nb::arg("quantization"),
        "How many bytes quantized weights [n, k] take.");
  m.def("quantize", &quantize, nb::arg("weight"), nb::arg("scales"), nb::arg("quantization"),
        "Finds scales [n, groups] float16 for weights [n, k], which become what their codes mean.");
  m.def("recognize", &recognize, nb::arg("weight"), nb::arg("scales"), nb::arg("zeros").none(),
        nb::arg("quantization"),
        "Finds scales and zeros [n, groups] float16 by which weights [n, k] are what codes mean, and "
        "returns whether there are such.");
  m.def("pack_coded", &pack_coded, nb::arg("weight"), nb::arg("scales"), nb::arg("zeros").none(),
        nb::arg("quantization"), nb::arg("packed"),
        "Packs the codes of weights [n, k], by scales and zeros [n, groups] float16.");
  m.def("block_types",
        [] {
          std::map<std::string, std::tuple<int64_t, int64_t, Quantization>> types;
          for (const BlockLayout& one : kBlockLayouts) {
            types[one.name] = {one.features, one.bytes, quantization_of(one.bits, one.group, one.has_zeros)};
          }
          return types;
        },
        "GGUF's types of blocks that become codes: features and bytes of a block, and how the codes are "
        "quantized.");
  m.def("pack_blocks", &pack_blocks, nb::arg("blocks"), nb::arg("rows"), nb::arg("k"),
        nb::arg("quantization"), nb::arg("packed"),
        "Packs rows of GGUF's blocks, uint8 [rows, bytes] and their type. Row i is row rows[i] of all of "
        "them, or is filled up where that is -1. Returns whether float16 has all of their scales.");
  m.def("unpack_blocks", &unpack_blocks, nb::arg("blocks"), nb::arg("type"), nb::arg("out"),
        "Rows of GGUF's blocks, uint8 [rows, bytes], as floats [rows, k].");
  m.def("linear", &linear, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("n"),
        nb::arg("k"), nb::arg("bias") = nb::none(), nb::arg("gated") = false,
        nb::arg("activation") = "none", nb::arg("residual") = nb::none(), nb::arg("alpha") = 1.0f,
        nb::arg("quantization") = nb::none(),
        "out = activation(x W^T + bias), gated, or residual + alpha (x W^T + bias).");
}

}  // namespace batchdeck
