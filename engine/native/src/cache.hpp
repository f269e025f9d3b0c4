// Writing keys and values to their slots.
#pragma once

#include "simd.hpp"

namespace batchdeck::LEVEL {

// Keys and values of heads in a piece, 4 us for heads of 128: their destination is fetched from
// memory line by line, and two threads wait for half of it each.
constexpr int64_t kStoreUnits = 32;

inline int64_t store_rows(const StoreArgs& args) {
  return max<int64_t>(kStoreUnits / args.cache.kv_heads, 1);
}

// A column of the unit: its numbers are a vector apart, in pairs for bfloat16.
inline void store_key(const float* key, int64_t head_dim, int64_t place, float* unit) {
  for (int64_t d = 0; d < head_dim; d++) unit[d * kBlock + place] = key[d];
}
inline void store_key(const bf16* key, int64_t head_dim, int64_t place, bf16* unit) {
  auto* to = reinterpret_cast<char*>(unit + place * 2);
  constexpr int64_t kApart = kBlock * 2 * sizeof(bf16);
  const int64_t pairs = head_dim / 2;
  for (int64_t d = 0; d < pairs; d++) std::memcpy(to + d * kApart, key + d * 2, 2 * sizeof(bf16));
  for (int64_t d = pairs; d < key_depth(DType::bf16, head_dim) / 2; d++) {
    const bf16 pair[2] = {d * 2 < head_dim ? key[d * 2] : bf16{0}, 0};
    std::memcpy(to + d * kApart, pair, sizeof pair);
  }
}

inline void store_value(const float* value, int64_t value_dim, int64_t place, float* unit) {
  std::memcpy(unit + place * value_dim, value, size_t(value_dim) * sizeof(float));
}
// Every second number of a line belongs to another token, and another thread may write it.
inline void store_value(const bf16* value, int64_t value_dim, int64_t place, bf16* unit) {
  bf16* to = unit + place / 2 * value_dim * 2 + place % 2;
  int64_t d = 0;
#ifdef __AVX512BW__
  for (; d + 16 <= value_dim; d += 16) {
    const __m512i apart = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(value + d)));
    _mm512_mask_storeu_epi16(to + d * 2, 0x55555555, apart);
  }
#endif
  for (; d < value_dim; d++) to[d * 2] = value[d];
}

template <class T>
inline void store_tokens(const StoreArgs& args, int64_t first, int64_t last) {
  const Cache& cache = args.cache;
  const int64_t key_size = key_unit(cache.dtype, cache.head_dim);
  const int64_t value_size = value_unit(cache.value_dim);
  for (int64_t row = first; row < last; row++) {
    const int64_t unit = args.slots[row] / kBlock * cache.kv_heads;
    const int64_t place = args.slots[row] % kBlock;
    const T* key = static_cast<const T*>(args.key) + row * args.key_stride;
    for (int64_t head = 0; head < cache.kv_heads; head++) {
      store_key(key + head * cache.head_dim, cache.head_dim, place,
                static_cast<T*>(cache.keys) + (unit + head) * key_size);
      if (cache.values == nullptr) continue;
      const T* value = static_cast<const T*>(args.value) + row * args.value_stride;
      store_value(value + head * cache.value_dim, cache.value_dim, place,
                  static_cast<T*>(cache.values) + (unit + head) * value_size);
    }
  }
}

inline int64_t store_pieces(const StoreArgs& args, int) {
  return ceil_div(args.rows, store_rows(args));
}

inline void store(const StoreArgs& args, int, int64_t piece, Scratch&) {
  const int64_t first = piece * store_rows(args);
  const int64_t last = min(first + store_rows(args), args.rows);
  if (args.cache.dtype == DType::f32) {
    store_tokens<float>(args, first, last);
  } else {
    store_tokens<bf16>(args, first, last);
  }
}

}  // namespace batchdeck::LEVEL
