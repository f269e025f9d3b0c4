#include "coded_memory.hpp"

#include "pool.hpp"

namespace batchdeck {
namespace {

// Codes begin on a cache line, and the groups follow them.
struct Room {
  Room(const LinearArgs& args, int64_t rows)
      : groups(ceil_div(args.k, args.quantization.group)),
        stride(round_up(groups * args.quantization.group, 64)),
        codes(rows * stride * kCodeBytes),
        bytes(codes + rows * groups * int64_t(sizeof(CodedGroup))) {}

  int64_t groups, stride, codes, bytes;
};

}  // namespace

void CodedMemory::reserve(const LinearArgs& args, int64_t rows) {
  if (args.quantization.coding == Coding::none) return;
  memory_.get(size_t(Room(args, rows).bytes));
}

void CodedMemory::code(const Kernels& kernels, LinearArgs& args) {
  if (args.quantization.coding == Coding::none || args.m == 0) return;
  const Room room(args, args.m);
  auto* memory = static_cast<char*>(memory_.get(size_t(room.bytes)));
  auto* groups = reinterpret_cast<CodedGroup*>(memory + room.codes);
  const CodeRowsArgs coding{.dtype = args.dtype, .rows = args.m, .width = args.k,
                            .group = args.quantization.group, .x = args.x,
                            .x_stride = args.x_stride,
                            .codes = reinterpret_cast<int8_t*>(memory), .stride = room.stride,
                            .groups = groups, .groups_stride = room.groups};
  run_pieces(kernels.code_rows_pieces, kernels.code_rows, coding);
  args.coded = {coding.codes, coding.stride, groups, room.groups};
}

}  // namespace batchdeck
