// All kernels for one level of instructions; LEVEL is its name (CMakeLists.txt).
#include "attention.hpp"
#include "cache.hpp"
#include "codes.hpp"
#include "convolve.hpp"
#include "elementwise.hpp"
#include "embed.hpp"
#include "level_name.hpp"
#include "linear.hpp"
#include "norm.hpp"
#include "quantize.hpp"
#include "recognize.hpp"
#include "recur.hpp"
#include "rotate.hpp"
#include "route.hpp"
#include "sample.hpp"
#include "unpack.hpp"

namespace batchdeck {

const Kernels& JOIN(kernels_, LEVEL)() {
  static const Kernels table = {
      .name = TEXT(LEVEL),
      .pack_linear = LEVEL::pack_linear,
      .linear_pieces = LEVEL::linear_pieces,
      .linear = LEVEL::linear,
      .code_rows_pieces = LEVEL::code_rows_pieces,
      .code_rows = LEVEL::code_rows,
      .quantize_pieces = LEVEL::quantize_pieces,
      .quantize = LEVEL::quantize,
      .recognize_row = LEVEL::recognize_row,
      .pack_coded = LEVEL::pack_coded,
      .pack_blocks = LEVEL::pack_blocks,
      .unpack_blocks = LEVEL::unpack_blocks,
      .norm_pieces = LEVEL::norm_pieces,
      .norm = LEVEL::norm,
      .rotate_pieces = LEVEL::rotate_pieces,
      .rotate = LEVEL::rotate,
      .store_pieces = LEVEL::store_pieces,
      .store = LEVEL::store,
      .attend = LEVEL::attend,
      .merge = LEVEL::merge,
      .embed_pieces = LEVEL::embed_pieces,
      .embed = LEVEL::embed,
      .elementwise_pieces = LEVEL::elementwise_pieces,
      .elementwise = LEVEL::elementwise,
      .convolve_pieces = LEVEL::convolve_pieces,
      .convolve = LEVEL::convolve,
      .recur_pieces = LEVEL::recur_pieces,
      .recur = LEVEL::recur,
      .route = LEVEL::route,
      .combine_pieces = LEVEL::combine_pieces,
      .combine = LEVEL::combine,
      .sample = LEVEL::sample,
  };
  return table;
}

}  // namespace batchdeck
