// Chooses one token of each row: the least logit that the filters allow, then a draw by inversion.
//
// Nothing is sorted. A row is read once for its maxima by chunks; if those show that few chunks
// contain all candidates, only these are copied and read from then on. `Search` finds the bounds of
// the filters.
#pragma once

#include <cfloat>

#include "search.hpp"

namespace batchdeck::LEVEL {

// Weights below e^-60 of the largest count as 0: 2^31 of them together are below half a unit in the
// last place of a sum in double, and none is a denormal number, which is slow.
constexpr float kFaintest = -60.0f;

// Whole vectors of one number.
inline void fill(float* to, int64_t count, float value) {
  for (int64_t i = 0; i < count; i += 16) store(to + i, splat(value));
}

// The sampling of one row.
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

    // No temperature overflows: the largest is 0 when weights are computed.
    inverse_ = min(1 / temperature, FLT_MAX);
    const auto below_top = [&](double scaled) {
      return max(float(double(top_) + scaled * double(temperature)), -FLT_MAX);
    };
    float floor = below_top(kFaintest);
    if (args_.top_k[row_] < args_.vocab_size) floor = max(floor, largest(args_.top_k[row_]));
    const float least_likely = min_p > 0 ? below_top(std::log(double(min_p))) : -FLT_MAX;
    if (top_p >= 1) floor = max(floor, least_likely);
    keep(floor);
    double total = weigh(floor);
    if (top_p < 1) {
      floor = max(nucleus(floor, top_p * total, total), least_likely);
      total = add_up(floor);
    }
    return invert(floor, args_.uniform[row_] * total, total);
  }

 private:
  // Maxima of chunks and row; returns whether the row can be sampled.
  bool scan() {
    bool nan = false;
    for (int64_t first = 0, chunk = 0; first < all_.count; first += kChunk, chunk++) {
      const int64_t last = min(first + kChunk, all_.count);
      f32x16 most = splat(-INFINITY);
      for (int64_t i = first; i < last; i += 32) {
        const f32x16 a = load_first_or_least(all_.values + i, last - i);
        const f32x16 b = last - i > 16 ? load_first_or_least(all_.values + i + 16, last - i - 16) : a;
        nan |= any(unordered(a, b));
        most = max(most, max(a, b));
      }
      tops_[chunk] = max_of(most);
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

  // The `count`-th largest; the least float if fewer are finite.
  float largest(int64_t count) {
    // `count` chunks reach the count-th largest of the maxima, and so do at least as many numbers.
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

  // By bisection only; `lowest` if they weigh less than `wanted`.
  float least_of(const Weighted& few, double wanted, float lowest) const {
    Search search = {few, wanted, key_of(lowest), key_of(top_) + 1, 0};
    search.bisect(1);
    return float_of(search.low);
  }

  // Keeps only numbers of at least `bound`, if they are in few of the chunks.
  void keep(float bound) {
    if (is_kept_) return;
    const int64_t chunks = ceil_div(all_.count, kChunk);
    int64_t reaching = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) reaching += tops_[chunk] >= bound;
    if (reaching > chunks / 4) return;
    int64_t kept = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      if (tops_[chunk] < bound) continue;
      const int64_t last = min((chunk + 1) * kChunk, all_.count);
      for (int64_t i = chunk * kChunk; i < last; i += 16) {
        const f32x16 value = load_first_or_least(all_.values + i, last - i);
        const uint32_t bits = bits_of(at_least(value, splat(bound)));
        if (bits == 0) continue;
        compress(value, bits, kept_ + kept);
        compress(kLaneNumbers + int32_t(i), bits, places_ + kept);
        kept += __builtin_popcount(bits);
      }
    }
    all_ = {kept_, weights_, kept};
    is_kept_ = true;
  }

  f32x16 weight_of(f32x16 value, float floor) const {
    const f32x16 scaled = max((value - top_) * inverse_, splat(kFaintest));
    return select(at_least(value, splat(floor)), exp(scaled), f32x16{});
  }

  // Weights of numbers of at least `floor`, 0 for the rest; returns their sum.
  double weigh(float floor) {
    double total = 0;
    for (int64_t first = 0; first < all_.count; first += kChunk) {
      const int64_t last = min(first + kChunk, all_.count);
      f32x16 sums = {};
      for (int64_t i = first; i < last; i += 16) {
        const f32x16 weight = weight_of(load_first_or_least(all_.values + i, last - i), floor);
        store(weights_ + i, weight);
        sums += weight;
      }
      total += sums_[first / kChunk] = sum_of(sums);
    }
    return total;
  }

  // The sum of the weights whose logit is at least `floor`.
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
    target = min(target, std::nextafter(total, 0.0));
    double before = 0;
    int64_t chunk = 0;
    for (; before + sums_[chunk] <= target; chunk++) before += sums_[chunk];
    const int64_t first = chunk * kChunk, last = min(first + kChunk, all_.count);
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
  int32_t* places_;  // in the vocabulary, of kept numbers
};

inline void sample(const SampleArgs& args, int64_t row, Scratch& scratch) {
  args.tokens[row] = Draw(args, row, scratch).token();
}

}  // namespace batchdeck::LEVEL
