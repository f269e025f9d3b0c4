// Weights that were integers with scales before they were unpacked: finds the scales and the zeros.
#pragma once

#include "quantize.hpp"

namespace batchdeck::LEVEL {

// Numbers step (code - zero), where a zero need not be an integer.
struct Lattice {
  float step, zero;
};

constexpr int64_t kMostRecognized = 128;  // numbers of a group

// The numbers of a group, and the lattice on which they lie. They may have been rounded to
// bfloat16, which has 8 bits, after they were computed from a scale in float16. Floats are first
// assumed to be exact: a step that is 1/256 too small fits all codes of 8 bits up to such a
// rounding.
class Group {
 public:
  template <class T>
  Group(const T* weight, int64_t count) : count_(count), is_exact_(sizeof(T) == 4) {
    for (int64_t i = 0; i < count; i += 16) store(values_ + i, load_first(weight + i, count - i));
    // Vectors are padded with existing numbers.
    for (int64_t i = count; i % 16 != 0; i++) values_[i] = values_[0];
    f32x16 low = load(values_), high = low;
    for (int64_t i = 16; i < count; i += 16) {
      low = min(low, load(values_ + i));
      high = max(high, load(values_ + i));
    }
    low_ = -max_of(-low);
    high_ = max_of(high);
    greatest_ = max(-low_, high_);
  }

  // Codes from -middle to middle - 1, with the zero 0. Returns whether any fit.
  bool find(int64_t middle, float step_before, Lattice& found) const {
    found = {0, 0};
    if (greatest_ == 0 || !is_finite()) return is_finite();
    return (is_exact_ && find_by(kExact, middle, step_before, found)) ||
           find_by(kRounding, middle, step_before, found);
  }
  // Codes from 0 to most, with any zero: the coarsest that fit.
  bool find_with_zero(int64_t most, Lattice& found) const {
    if (!is_finite()) return false;
    if (high_ == low_) {  // one number, which has code 1
      found = {high_, 0};
      return settles(found, 0, most, true, kRounding, found);
    }
    for (int64_t end = 1; end <= most; end++) {
      const float step = (high_ - low_) / float(end);
      // Numbers may be off by a quarter of a step, if they are so far from 0 that rounding has lost
      // their codes. Only the finest steps remain for these.
      if (slack_of(splat(greatest_), true, kRounding)[0] > step / 4) break;
      if (settles({step, -low_ / step}, 0, most, true, kRounding, found)) return true;
    }
    const float step = widen_half(narrow_half((high_ - low_) / float(most)));
    found = {step, widen_half(narrow_half(-low_ / step))};
    return fits(found, 0, most, true, 2 * kRounding);
  }

 private:
  // 2^-8 for bfloat16, and something for the scale.
  static constexpr float kRounding = 0x1.2p-8f;
  // 2^-11 for float16, and as much for the scale.
  static constexpr float kExact = 0x1.1p-10f;

  // As `find`, for numbers that were rounded by this much.
  bool find_by(float rounding, int64_t middle, float step_before, Lattice& found) const {
    const auto fits_by = [&](float step) {
      return step != 0 && settles({step, 0}, -middle, middle - 1, false, rounding, found);
    };
    // If rows have one scale, it is that of the previous group. Otherwise the greatest number
    // mostly has the last code; it may be rounded by half a step if codes have 8 bits.
    if (fits_by(step_before)) return true;
    const int64_t around = middle > 8 && rounding == kRounding ? 2 : 0;
    for (int64_t end = middle; end > 0; end--) {
      for (int64_t off = -around; off <= around; off++) {
        const float step = greatest_ / float(end) * (1 + float(off) * 0x1p-9f);
        if (fits_by(step) || (end == middle && fits_by(-step))) return true;
      }
    }
    return false;
  }

  // By how much a number of this size may be off. With a zero, all may also be off by the rounding
  // of the greatest, and so may the line through them.
  f32x16 slack_of(f32x16 size, bool has_zero, float rounding) const {
    return (has_zero ? splat(1.5f * greatest_) : size) * rounding;
  }
  bool is_finite() const { return greatest_ < INFINITY; }
  bool fits(const Lattice& lattice, int64_t least, int64_t most, bool has_zero,
            float rounding) const {
    const float inverse = 1 / lattice.step;
    for (int64_t i = 0; i < count_; i += 16) {
      const f32x16 value = load(values_ + i), size = max(value, -value);
      const f32x16 nearest = round_nearest(value * inverse + lattice.zero);
      const f32x16 code = max(min(nearest, splat(float(most))), splat(float(least)));
      const f32x16 off = value - (code - lattice.zero) * lattice.step;
      const f32x16 slack = slack_of(size, has_zero, rounding);
      if (bits_of(at_least(slack, max(off, -off))) != 0xffff) return false;
    }
    return true;
  }
  // Whether the numbers fit, and still do with the best step and zero, in float16. At first the
  // step is as far off as the number from which it was computed.
  bool settles(Lattice lattice, int64_t least, int64_t most, bool has_zero, float rounding,
               Lattice& found) const {
    if (lattice.step != 0 && !fits(lattice, least, most, has_zero, 2 * rounding)) return false;
    // A better step changes some codes.
    for (int time = 0; time < 2; time++) lattice = has_zero ? nearest(lattice) : central(lattice, most, rounding);
    const float whole = nearbyintf(lattice.zero);
    if (fabsf(lattice.zero - whole) < 0x1p-6f) lattice.zero = whole;
    found = {widen_half(narrow_half(lattice.step)), widen_half(narrow_half(lattice.zero))};
    return found.step == 0 ? greatest_ == 0 : fits(found, least, most, has_zero, rounding);
  }
  // The middle of all steps with which the numbers can have been rounded to these values. None has
  // a code above the last: with a step that is a little too small the greatest would, and would
  // keep it so.
  Lattice central(const Lattice& lattice, int64_t last, float rounding) const {
    f32x16 least = {}, most = splat(INFINITY);
    for (int64_t i = 0; i < count_; i += 16) {
      const f32x16 value = load(values_ + i);
      const f32x16 code = min(round_nearest(value * (1 / lattice.step)), splat(float(last)));
      const f32x16 step = value / code;  // of either sign; of the code 0 it is NaN, or infinite
      const f32x16 size = max(step, -step);
      const Mask is_some = less(size, splat(INFINITY));
      least = max(select(is_some, size * (1 - rounding), f32x16{}), least);
      most = min(select(is_some, size * (1 + rounding), splat(INFINITY)), most);
    }
    return {copysignf((max_of(least) - max_of(-most)) / 2, lattice.step), 0};
  }
  // With the least squares between the numbers and the values of their codes.
  Lattice nearest(const Lattice& lattice) const {
    if (high_ == low_) return lattice;
    double codes = 0, values = 0, squares = 0, products = 0;
    for (int64_t i = 0; i < count_; i++) {
      const double code = double(nearbyintf(values_[i] / lattice.step + lattice.zero));
      codes += code;
      values += double(values_[i]);
      squares += code * code;
      products += code * double(values_[i]);
    }
    const double mean = codes / double(count_), middle = values / double(count_);
    const double step = (products - codes * middle) / (squares - codes * mean);
    return {float(step), float(mean - middle / step)};
  }

  int64_t count_;
  bool is_exact_;
  float values_[kMostRecognized];
  float low_, high_, greatest_;
};

template <class T>
inline bool recognize_row_of(const RecognizeArgs& args, int64_t row) {
  const Quantization& q = args.quantization;
  const int64_t middle = middle_of(q.coding);
  const T* weight = static_cast<const T*>(args.weight) + row * args.stride;
  float step = 0;
  for (int64_t k = 0, at = row * args.scales_stride; k < args.k; k += q.group, at++) {
    const Group group(weight + k, min(q.group, args.k - k));
    Lattice found;
    if (q.has_zeros) {
      if (!group.find_with_zero(2 * middle - 1, found)) return false;
      args.zeros[at] = narrow_half(found.zero);
    } else if (!group.find(middle, step, found)) {
      return false;
    }
    step = found.step;
    args.scales[at] = narrow_half(found.step);
  }
  return true;
}

inline bool recognize_row(const RecognizeArgs& args, int64_t row) {
  if (args.dtype == DType::f32) return recognize_row_of<float>(args, row);
  return recognize_row_of<bf16>(args, row);
}

}  // namespace batchdeck::LEVEL
