// Products of codes in emulated tiles against those in vectors: equal to the bit.
// compare_tiles ROUNDS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels.hpp"

namespace batchdeck {
const Kernels& kernels_avx2() {
  static const Kernels none{};
  return none;
}
}  // namespace batchdeck

using namespace batchdeck;

namespace {

std::mt19937 engine(1);
int64_t between(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(engine);
}
template <class T>
std::vector<T> some(int64_t count, int64_t least, int64_t most) {
  std::vector<T> numbers(size_t(count) + 64);
  for (T& one : numbers) one = T(between(least, most));
  return numbers;
}

std::vector<float> product(const Kernels& kernels, LinearArgs args) {
  std::vector<float> out(size_t(args.m * args.n));
  args.out = out.data();
  args.out_stride = args.n;
  Scratch scratch;
  const int64_t pieces = kernels.linear_pieces(args, 2);
  for (int64_t piece = 0; piece < pieces; piece++) kernels.linear(args, 2, piece, scratch);
  return out;
}

bool is_equal() {
  constexpr Coding kCodings[] = {Coding::int8, Coding::int4, Coding::int5, Coding::int6};
  const Coding coding = kCodings[between(0, 3)];
  const Quantization q{coding, between(0, 1) == 1, unit_of(coding) * between(1, 6)};
  const int64_t m = between(0, 1) ? between(1, 40) : between(41, 300);
  const int64_t n = between(1, 200), k = between(1, 1200), groups = ceil_div(k, q.group);
  const int64_t stride = groups * q.group;
  const auto x = some<int8_t>(m * kCodeBytes * stride, -64, 63);
  std::vector<CodedGroup> x_groups;
  for (int64_t i = 0; i < m * groups; i++) {
    int32_t sum = 0;
    const int64_t begin = i / groups * kCodeBytes * stride + i % groups * q.group;
    for (int64_t j = begin; j < begin + q.group; j++) sum += 128 * x[size_t(j)] + x[size_t(j + stride)];
    x_groups.push_back({float(between(1, 1000)) / 1000, sum});
  }
  const int64_t bytes = coded_bytes(q, n, k), group_size = kPanel * q.group * bits_of(q.coding) / 8;
  auto weight = some<uint8_t>(bytes, 0, 255);
  for (int64_t at = group_size; at < bytes; at += group_bytes(q)) {
    for (int64_t i = 0; i < group_bytes(q) - group_size; i += 2) weight[size_t(at + i + 1)] = 0x30;
  }
  const LinearArgs args{.dtype = DType::f32, .out_dtype = DType::f32, .m = m, .n = n, .k = k,
                        .weight = weight.data(), .alpha = 1, .quantization = q,
                        .coded = {x.data(), stride, x_groups.data(), groups}};
  const auto expected = product(kernels_avx512(), args), found = product(kernels_amx(), args);
  if (!memcmp(expected.data(), found.data(), expected.size() * sizeof(float))) return true;
  printf("m %d n %d k %d group %d bits %d zeros %d\n", int(m), int(n), int(k), int(q.group),
         int(bits_of(q.coding)), q.has_zeros);
  return false;
}

}  // namespace

int main(int, char** arguments) {
  for (int round = atoi(arguments[1]); round > 0; round--) {
    if (!is_equal()) return 1;
  }
  puts("ok");
}
