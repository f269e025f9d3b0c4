// The greatest number such that those at least as large weigh a wanted sum: the k-th largest, the
// least of a nucleus. Nothing is sorted: bounds are found by probing how much lies at or above a
// value. Every probe is a pass, so pivots come from a sample, and numbers that they rule out are
// dropped.
#pragma once

#include <initializer_list>

#include "simd.hpp"

namespace batchdeck::LEVEL {

// Weights are summed in float32 by chunks of this many, then in double.
constexpr int64_t kChunk = 128;
// Search samples this many vectors, and probes one number after another below four times as many.
constexpr int64_t kSampled = 64 * 16;
constexpr int64_t kFew = 4 * kSampled;

// Integers in the order of the floats: the next one up is the next float up.
inline int64_t key_of(float value) {
  const int32_t bits = load_as<int32_t>(&value);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
inline float float_of(int64_t key) {
  const int32_t bits = int32_t(key) ^ (int32_t(key) >> 31 & 0x7fffffff);
  return load_as<float>(&bits);
}

// Numbers and their weights; there is space for whole vectors of weights.
struct Weighted {
  const float* values;
  const float* weights;
  int64_t count;
};

// The weight of the numbers of the chunk at `first` that are at least `bound`.
inline float chunk_mass(const Weighted& all, int64_t first, float bound) {
  const int64_t last = min(first + kChunk, all.count);
  f32x16 sums = {};
  for (int64_t i = first; i < last; i += 16) {
    const Mask is_in = at_least(load_first_or_least(all.values + i, last - i), splat(bound));
    sums += select(is_in, load(all.weights + i), f32x16{});
  }
  return sum_of(sums);
}

inline double mass(const Weighted& all, float bound) {
  double total = 0;
  for (int64_t i = 0; i < all.count; i += kChunk) total += chunk_mass(all, i, bound);
  return total;
}

// For the greatest number such that those at least as large weigh `wanted`: it is at or above `low`
// and below `high`. Those at or above `high` weigh `above`, those at or above `low` `reached`.
struct Search {
  Weighted all;
  double wanted;
  int64_t low, high;  // keys
  double reached;
  double above = 0;
  double left = 0;  // the weight of numbers dropped from `all`

  void probe(int64_t key) {
    if (key <= low || key >= high) return;
    const double found = left + mass(all, float_of(key));
    if (found >= wanted) {
      low = key;
      reached = found;
    } else {
      high = key;
      above = found;
    }
  }

  // Until at most `width` keys remain.
  void bisect(int64_t width) {
    while (high - low > width) probe(low + (high - low) / 2);
  }

  // Probes where a sample reaches the wanted sum, plus and minus its error, which leaves a small
  // part of the numbers if the sample is a good one, and loses nothing if it is not.
  void probe_by_sample() {
    float values[kSampled], weights[kSampled];
    const int64_t stride = all.count / kSampled * 16;
    for (int64_t i = 0; i < kSampled; i += 16) {
      store(values + i, load(all.values + i / 16 * stride));
      store(weights + i, load(all.weights + i / 16 * stride));
    }
    const Weighted sample = {values, weights, kSampled};
    const double over = mass(sample, float_of(high));
    const double total = mass(sample, float_of(low)) - over;
    const double share = min((wanted - above) / (reached - above), 1.0);  // 1 of 0 / 0
    const double error = 2 * std::sqrt(share * (1 - share) / kSampled) + 2.0 / kSampled;
    for (const double side : {-1.0, 1.0}) {
      const double at = share + side * error;
      if (at <= 0) continue;
      Search guess = {sample, over + at * total, low, high, over + total};
      guess.bisect(1 << 10);
      probe(guess.low);
    }
  }

  // Drops the numbers out of bounds; the others are in `values` and `weights` from now on.
  void narrow(float* values, float* weights) {
    const float least = float_of(low), most = float_of(high);
    int64_t kept = 0;
    for (int64_t i = 0; i < all.count; i += 16) {
      const f32x16 value = load_first_or_least(all.values + i, all.count - i);
      const uint32_t bits =
          bits_of(at_least(value, splat(least))) & ~bits_of(at_least(value, splat(most)));
      if (bits == 0) continue;
      const f32x16 weight = load(all.weights + i);
      compress(value, bits, values + kept);
      compress(weight, bits, weights + kept);
      kept += __builtin_popcount(bits);
    }
    all = {values, weights, kept};
    left = above;
  }

  // The number; `values` and `weights` have space for all of them and a vector more.
  float find(float* values, float* weights) {
    for (int64_t before = INT64_MAX; all.count > kFew && all.count <= before / 2;) {
      before = all.count;
      probe_by_sample();
      narrow(values, weights);
    }
    bisect(1);
    return float_of(low);
  }
};

}  // namespace batchdeck::LEVEL
