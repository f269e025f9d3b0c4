// Chooses one token of each row: a least logit that the filters leave, then a draw by inversion.
//
// Nothing is sorted. A row is read once for its maxima by chunks; where those show that few chunks
// hold all that can be chosen, only what is worth keeping of them is looked at from there on.
// Bounds (the k-th largest logit, the least of a nucleus) are found by probing: how much lies at or
// above a value? Every probe is a pass, so pivots come from a sample, and what they rule out leaves.
#pragma once

#include <cfloat>
#include <cmath>
#include <initializer_list>

#include "simd.hpp"

namespace batchdeck::LEVEL {

// Weights are summed in float32 by chunks of this many, then in double.
constexpr int64_t kChunk = 128;
// Weights below e^-60 of the largest count as 0: 2^31 of them together are below half a unit in the
// last place of a sum in double, and none is a denormal number, which is slow.
constexpr float kFaintest = -60.0f;
// Search samples this many vectors, and probes one number after another below four times as many.
constexpr int64_t kSampled = 64 * 16;
constexpr int64_t kFew = 4 * kSampled;

// Those of <algorithm> would be one for all levels.
template <class T>
inline T smaller(T a, T b) { return b < a ? b : a; }
template <class T>
inline T larger(T a, T b) { return a < b ? b : a; }

// The first `count` of 16, the rest -inf; all 16 where `count` is larger.
inline f32x16 load_or_least(const float* from, int64_t count) {
  if (count >= 16) return load(from);
#ifdef __AVX512F__
  return (f32x16)_mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), __mmask16((1u << count) - 1), from);
#else
  float whole[16];
  for (int64_t i = 0; i < 16; i++) whole[i] = i < count ? from[i] : -INFINITY;
  return load(whole);
#endif
}

// A bit for each number that is at least `bound`.
inline uint32_t at_least(f32x16 value, float bound) {
#ifdef __AVX512F__
  return _mm512_cmp_ps_mask((__m512)value, _mm512_set1_ps(bound), _CMP_GE_OQ);
#else
  __m256 half[2];
  std::memcpy(half, &value, sizeof half);
  const __m256 bounds = _mm256_set1_ps(bound);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(half[0], bounds, _CMP_GE_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(half[1], bounds, _CMP_GE_OQ));
  return uint32_t(low | high << 8);
#endif
}

inline bool has_nan(f32x16 a, f32x16 b) {
#ifdef __AVX512F__
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#else
  __m256 x[2], y[2];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x[0], y[0], _CMP_UNORD_Q),
                                         _mm256_cmp_ps(x[1], y[1], _CMP_UNORD_Q))) != 0;
#endif
}

// Writes the numbers whose bit is set one after another; `to` may be anywhere up to where `value`
// came from, and has room for 16.
template <class V, class T>
inline void compress(V value, uint32_t bits, T* to) {
#ifdef __AVX512F__
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(bits), (__m512i)value));
#else
  for (; bits != 0; bits &= bits - 1) *to++ = value[__builtin_ctz(bits)];
#endif
}

// Whole vectors of one number.
inline void fill(float* to, int64_t count, float value) {
  for (int64_t i = 0; i < count; i += 16) store(to + i, splat(value));
}

// Integers in the order of the floats: the next one up is the next float up.
inline int64_t key_of(float value) {
  const int32_t bits = load_as<int32_t>(&value);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
inline float float_of(int64_t key) {
  const int32_t bits = int32_t(key) ^ (int32_t(key) >> 31 & 0x7fffffff);
  return load_as<float>(&bits);
}

// Numbers and what each weighs; there is room for whole vectors of weights.
struct Weighted {
  const float* values;
  const float* weights;
  int64_t count;
};

// What the numbers of the chunk at `first` that are at least `bound` weigh.
inline float chunk_mass(const Weighted& all, int64_t first, float bound) {
  const int64_t last = smaller(first + kChunk, all.count);
  f32x16 sums = {};
  for (int64_t i = first; i < last; i += 16) {
    sums += where<_CMP_GE_OQ>(load_or_least(all.values + i, last - i), splat(bound),
                              load(all.weights + i), f32x16{});
  }
  return sum(sums);
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
  double left = 0;  // what the numbers weigh that have left `all`

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

  // Until no more than `width` keys are left.
  void bisect(int64_t width) {
    while (high - low > width) probe(low + (high - low) / 2);
  }

  // Probes where a sample has what is wanted, give or take its error, which leaves a small part of
  // the numbers if the sample is a good one, and loses nothing if it is not.
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
    const double share = smaller(1.0, (wanted - above) / (reached - above));
    const double error = 2 * std::sqrt(share * (1 - share) / kSampled) + 2.0 / kSampled;
    for (const double side : {-1.0, 1.0}) {
      const double at = share + side * error;
      if (at <= 0) continue;
      Search guess = {sample, over + at * total, low, high, over + total};
      guess.bisect(1 << 10);
      probe(guess.low);
    }
  }

  // Lets go of what is out of bounds; what stays lies in `values` and `weights` from now on.
  void narrow(float* values, float* weights) {
    const float least = float_of(low), most = float_of(high);
    int64_t kept = 0;
    for (int64_t i = 0; i < all.count; i += 16) {
      const f32x16 value = load_or_least(all.values + i, all.count - i);
      const uint32_t bits = at_least(value, least) & ~at_least(value, most);
      if (bits == 0) continue;
      const f32x16 weight = load(all.weights + i);
      compress(value, bits, values + kept);
      compress(weight, bits, weights + kept);
      kept += __builtin_popcount(bits);
    }
    all = {values, weights, kept};
    left = above;
  }

  // The number; `values` and `weights` have room for all of them and a vector more.
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

// One row on its way to a token.
class Draw {
 public:
  Draw(const SampleArgs& args, int64_t row, Scratch& scratch)
      : args_(args), row_(row), all_{args.logits + row * args.stride, nullptr, args.vocab_size} {
    const int64_t chunks = ceil_div(args.vocab_size, kChunk);
    const int64_t size = round_up(args.vocab_size, 16) + 16, few = round_up(chunks, 16);
    float* at = static_cast<float*>(scratch.get(size_t(5 * size + 3 * few) * sizeof(float)));
    const auto take = [&](int64_t count) { return at += count, at - count; };
    weights_ = take(size);
    kept_ = take(size);
    near_ = take(size);
    near_weights_ = take(size);
    tops_ = take(few);
    top_weights_ = take(few);
    sums_ = take(few);
    places_ = reinterpret_cast<int32_t*>(take(size));
    all_.weights = weights_;
  }

  int64_t token() {
    const float temperature = args_.temperature[row_], min_p = args_.min_p[row_];
    const double top_p = args_.top_p[row_];
    if (!scan()) return -1;
    if (temperature == 0) return first_of_top();

    // No temperature overflows: the largest is 0 where weights are taken.
    inverse_ = smaller(1 / temperature, FLT_MAX);
    const auto below_top = [&](double scaled) {
      return larger(float(double(top_) + scaled * double(temperature)), -FLT_MAX);
    };
    float floor = below_top(kFaintest);
    if (args_.top_k[row_] < args_.vocab_size) floor = larger(floor, largest(args_.top_k[row_]));
    const float least_likely = min_p > 0 ? below_top(std::log(double(min_p))) : -FLT_MAX;
    if (top_p >= 1) floor = larger(floor, least_likely);
    keep(floor);
    double total = weigh(floor);
    if (top_p < 1) {
      floor = larger(nucleus(floor, top_p * total, total), least_likely);
      total = add_up(floor);
    }
    return invert(floor, args_.uniform[row_] * total, total);
  }

 private:
  // Maxima of chunks and row; whether the row is one to choose from.
  bool scan() {
    bool nan = false;
    for (int64_t first = 0, chunk = 0; first < all_.count; first += kChunk, chunk++) {
      const int64_t last = smaller(first + kChunk, all_.count);
      f32x16 most = splat(-INFINITY);
      for (int64_t i = first; i < last; i += 32) {
        const f32x16 a = load_or_least(all_.values + i, last - i);
        const f32x16 b = last - i > 16 ? load_or_least(all_.values + i + 16, last - i - 16) : a;
        nan |= has_nan(a, b);
        most = max(most, max(a, b));
      }
      tops_[chunk] = max(most);
      if (tops_[chunk] > top_) {
        top_ = tops_[chunk];
        top_chunk_ = chunk;
      }
    }
    return !nan && top_ > -INFINITY && top_ < INFINITY;
  }

  int64_t first_of_top() const {
    int64_t token = top_chunk_ * kChunk;
    while (all_.values[token] != top_) token++;
    return token;
  }

  // The `count`-th largest; the least float where fewer are finite.
  float largest(int64_t count) {
    // As many chunks reach up to the count-th largest of the maxima, so that many numbers do.
    const Weighted tops = {tops_, top_weights_, ceil_div(all_.count, kChunk)};
    fill(top_weights_, tops.count, 1);
    keep(least_of(tops, double(count), -FLT_MAX));
    fill(weights_, all_.count, 1);
    Search search = {all_, double(count), key_of(-FLT_MAX), key_of(top_) + 1, double(all_.count)};
    return search.find(near_, near_weights_);
  }

  // The least of the nucleus (arXiv 1904.09751, section 3.1), which weighs `wanted` of `total`.
  float nucleus(float floor, double wanted, double total) {
    if (!is_kept_) {
      const Weighted tops = {tops_, top_weights_, ceil_div(all_.count, kChunk)};
      for (int64_t i = 0; i < tops.count; i += 16) {
        store(top_weights_ + i, weight_of(load(tops_ + i), floor));
      }
      keep(least_of(tops, wanted, floor));
      if (is_kept_) weigh(floor);
    }
    Search search = {all_, wanted, key_of(floor), key_of(top_) + 1, total};
    return search.find(near_, near_weights_);
  }

  // By bisection alone; `lowest` where they weigh less than `wanted`.
  float least_of(const Weighted& few, double wanted, float lowest) const {
    Search search = {few, wanted, key_of(lowest), key_of(top_) + 1, 0};
    search.bisect(1);
    return float_of(search.low);
  }

  // Leaves what is at least `bound`, if that lies in few of the chunks.
  void keep(float bound) {
    if (is_kept_) return;
    const int64_t chunks = ceil_div(all_.count, kChunk);
    int64_t reaching = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) reaching += tops_[chunk] >= bound;
    if (reaching > chunks / 4) return;
    int64_t kept = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      if (tops_[chunk] < bound) continue;
      const int64_t last = smaller((chunk + 1) * kChunk, all_.count);
      for (int64_t i = chunk * kChunk; i < last; i += 16) {
        const f32x16 value = load_or_least(all_.values + i, last - i);
        const uint32_t bits = at_least(value, bound);
        if (bits == 0) continue;
        const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        compress(value, bits, kept_ + kept);
        compress(lanes + int32_t(i), bits, places_ + kept);
        kept += __builtin_popcount(bits);
      }
    }
    all_ = {kept_, weights_, kept};
    is_kept_ = true;
  }

  f32x16 weight_of(f32x16 value, float floor) const {
    const f32x16 scaled = max((value - top_) * inverse_, splat(kFaintest));
    return where<_CMP_GE_OQ>(value, splat(floor), exp(scaled), f32x16{});
  }

  // Weights of what is at least `floor`, 0 for the rest; their sum.
  double weigh(float floor) {
    double total = 0;
    for (int64_t first = 0; first < all_.count; first += kChunk) {
      const int64_t last = smaller(first + kChunk, all_.count);
      f32x16 sums = {};
      for (int64_t i = first; i < last; i += 16) {
        const f32x16 weight = weight_of(load_or_least(all_.values + i, last - i), floor);
        store(weights_ + i, weight);
        sums += weight;
      }
      total += sums_[first / kChunk] = sum(sums);
    }
    return total;
  }

  // The sum of those weights whose logit is at least `floor`.
  double add_up(float floor) {
    double total = 0;
    for (int64_t first = 0; first < all_.count; first += kChunk) {
      total += sums_[first / kChunk] = chunk_mass(all_, first, floor);
    }
    return total;
  }

  // The first token at which the sum of weights passes `target`.
  int64_t invert(float floor, double target, double total) const {
    // Below the total, so that rounding cannot choose past the last weight above 0.
    target = smaller(target, std::nextafter(total, 0.0));
    double before = 0;
    int64_t chunk = 0;
    for (; before + sums_[chunk] <= target; chunk++) before += sums_[chunk];
    const int64_t first = chunk * kChunk, last = smaller(first + kChunk, all_.count);
    int64_t place = first;
    for (int64_t i = first; i < last; i++) {
      if (all_.values[i] < floor || weights_[i] == 0) continue;
      place = i;  // the sum in double may stay below that in float32: then it is the last
      before += weights_[i];
      if (before > target) break;
    }
    return is_kept_ ? places_[place] : place;
  }

  const SampleArgs& args_;
  const int64_t row_;
  // The whole row, or what `keep` left of it, in the order of the vocabulary.
  Weighted all_;
  bool is_kept_ = false;
  float top_ = -INFINITY;
  int64_t top_chunk_ = 0;
  float inverse_ = 1;
  float *weights_, *kept_, *near_, *near_weights_, *tops_, *top_weights_, *sums_;
  int32_t* places_;  // in the vocabulary, of what is kept
};

inline void sample(const SampleArgs& args, int64_t row, Scratch& scratch) {
  args.tokens[row] = Draw(args, row, scratch).token();
}

}  // namespace batchdeck::LEVEL
