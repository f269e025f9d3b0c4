// pack_linear, packed_size, linear, and what they need of memory.
#include <malloc.h>
#include <sys/mman.h>

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

// Codes [n, k], scales and zeros [n, groups] to packed weights.
void pack_codes(const Array& codes, const Array& scales, const std::optional<Array>& zeros,
                int64_t bits, int64_t group, const Array& packed) {
  if (codes.dtype() != nb::dtype<uint8_t>() || codes.ndim() != 2) {
    refuse("codes", "must be uint8 and have two dimensions");
  }
  check_contiguous(codes, "codes");
  const int64_t n = codes.shape(0), k = codes.shape(1);
  const Quantization quantization = quantization_of(bits, group, zeros.has_value());
  const int64_t groups = ceil_div(k, quantization.group);
  const uint8_t* numbers = static_cast<const uint8_t*>(codes.data());
  if (quantization.coding == Coding::int4) {
    for (int64_t i = 0; i < n * k; i++) {
      if (numbers[i] > 15) refuse("codes", "of 4 bits must be at most 15");
    }
  }
  const PackCodesArgs args{.quantization = quantization, .n = n, .k = k, .codes = numbers,
                           .stride = k, .scales = halves_of(scales, n, groups, "scales"),
                           .zeros = zeros ? halves_of(*zeros, n, groups, "zeros") : nullptr,
                           .scales_stride = groups,
                           .packed = coded_of(packed, n, k, quantization, "packed")};
  const nb::gil_scoped_release unlocked;
  const auto pack = kernels().pack_codes;
  Pool::get().each(ceil_div(n, kPanel), [&](int64_t panel, Scratch&) { pack(args, panel); });
}

void linear(const Array& out, const Array& x, const Array& weight, int64_t n, int64_t k,
            const std::optional<Array>& bias, bool gated, const std::string& activation,
            const std::optional<Array>& residual, float alpha, int64_t bits, int64_t group,
            bool has_zeros) {
  const Rows input = rows_of(x, "x"), result = writable_rows_of(out, "out");
  Quantization quantization;
  if (bits != 0) quantization = quantization_of(bits, group, has_zeros);
  const void* packed = bits == 0 ? packed_of(weight, n, k, input.dtype, "weight")
                                 : coded_of(weight, n, k, quantization, "weight");
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
  args.quantization = quantization;
  const nb::gil_scoped_release unlocked;
  const Kernels& level = kernels();
  CodedMemory memory;
  memory.code(level, args);
  run_pieces(level.linear_pieces, level.linear, args);
}

// Huge pages for the whole pages of an array: a plain sum read 40 GB/s from them, 26 from small
// ones (two Sapphire Rapids cores, a virtual machine).
void advise_huge(const Array& array) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (uintptr_t(array.data()) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (uintptr_t(array.data()) + array.nbytes()) / kPage * kPage;
  // Advice: where the system does not take it, all works, slower.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// What was freed goes back to the system: holes between matrices that are in use, which the
// allocator would keep.
void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("packed_size", &size_of_packed, nb::arg("n"), nb::arg("k"),
        "How many numbers packed weights of shape [n, k] take.");
  m.def("pack_linear", &pack_linear, nb::arg("weight"), nb::arg("packed"),
        "Packs weights [n, k] into packed [packed_size(n, k)].");
  m.def("coded_size", &size_of_coded, nb::arg("n"), nb::arg("k"), nb::arg("bits"),
        nb::arg("group"), nb::arg("has_zeros"), "How many bytes quantized weights [n, k] take.");
  m.def("pack_codes", &pack_codes, nb::arg("codes"), nb::arg("scales"), nb::arg("zeros"),
        nb::arg("bits"), nb::arg("group"), nb::arg("packed"),
        "Packs codes [n, k] uint8 with scales and zeros [n, groups] float16: weights are "
        "scale * (code - zero), zero 128 or 8 where there are none.");
  m.def("linear", &linear, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("n"),
        nb::arg("k"), nb::arg("bias") = nb::none(), nb::arg("gated") = false,
        nb::arg("activation") = "none", nb::arg("residual") = nb::none(), nb::arg("alpha") = 1.0f,
        nb::arg("bits") = 0, nb::arg("group") = 0, nb::arg("has_zeros") = false,
        "out = activation(x W^T + bias), gated, or residual + alpha (x W^T + bias).");
  m.def("advise_huge", &advise_huge, nb::arg("array"),
        "Asks for huge pages under an array; do so before it is written.");
  m.def("trim_heap", &trim_heap, nb::call_guard<nb::gil_scoped_release>(),
        "Gives memory that was freed back to the system.");
}

}  // namespace batchdeck
