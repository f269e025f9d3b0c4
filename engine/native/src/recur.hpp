// Linear recurrences: gated delta rule, Mamba 2's state space, linear attention with a decay.
#pragma once

#include "multiply.hpp"
#include "share.hpp"

namespace batchdeck::LEVEL {

// Columns of a state are independent of each other. This many registers of them at once, with two
// sums each, hide the latency of a sum.
constexpr int kRecurVectors = 4;

// A token's numbers for a head beside its value.
struct RecurToken {
  float decay, step, beta, product;  // product: query times key, scaled
};

// The length of keys is computed as in fla's kernels, with the epsilon within the root.
constexpr float kLengthEps = 1e-6f;

// Queries and keys of a head as floats, the queries scaled.
template <class T>
inline void widen_vector(const T* x, int64_t size, bool normalize, float scaling, float* to) {
  f32x16 squares = {};
  each_vector(0, size, [&](int64_t i, auto count) {
    const f32x16 value = load_first(x + i, count);
    squares = fma(value, value, squares);
    store(to + i, value);
  });
  const float scale = normalize ? scaling / std::sqrt(sum_of(squares) + kLengthEps) : scaling;
  for (int64_t i = 0; i < size; i += 16) store(to + i, load(to + i) * scale);
}

inline float dot(const float* a, const float* b, int64_t size) {
  f32x16 sum = {};
  for (int64_t i = 0; i < size; i += 16) sum = fma(load(a + i), load(b + i), sum);
  return sum_of(sum);
}

template <class T>
inline float number_at(const void* base, int64_t at) {
  const T* number = static_cast<const T*>(base) + at;
  if constexpr (sizeof(T) == 2) return widen(*number);
  return *number;
}

template <class T>
inline RecurToken recur_token(const RecurArgs& args, int64_t token, int64_t head) {
  float step = number_at<T>(args.decay, token * args.decay_stride + head);
  if (args.decay_bias != nullptr) step += args.decay_bias[head];
  if (args.softplus && step < 20) step = std::log1p(std::exp(step));
  step = max(min(step, args.high), args.low);
  const float beta =
      args.beta == nullptr ? 1 : number_at<T>(args.beta, token * args.beta_stride + head);
  return {std::exp(args.decay_scale[head] * step), step, beta, 0};
}

// A head's inputs in floats: query, key, value and other numbers of each token of a tile. The
// output replaces the value.
struct RecurTile {
  float *query, *key, *value;
  RecurToken* tokens;
  int64_t key_room, value_room;  // floats from token to token
};

// Tokens of a tile: their queries and keys stay in a cache while the state's columns are processed.
constexpr int64_t kRecurTile = 16;

// One token, kVectors times V columns of a head's state. V is a register, or a single float.
template <class V, int kVectors>
inline void recur_columns(const RecurArgs& args, const RecurToken& token, const float* query,
                          const float* key, float* value, float* state, float skip, bool is_first) {
  constexpr int64_t kStep = sizeof(V) / sizeof(float);
  const int64_t width = args.value_dim;
  V read[kVectors] = {}, known[kVectors] = {}, given[kVectors];
  if (!is_first) {
    for (int64_t i = 0; i < args.key_dim; i++) {
      for (int j = 0; j < kVectors; j++) {
        const V row = load_as<V>(state + i * width + j * kStep);
        read[j] += row * query[i];
        known[j] += row * key[i];
      }
    }
  }
  for (int j = 0; j < kVectors; j++) {
    const V v = load_as<V>(value + j * kStep);
    given[j] = args.scaled ? v * token.step : v;
    if (args.beta != nullptr) given[j] = (given[j] - known[j] * token.decay) * token.beta;
    const V out = read[j] * token.decay + given[j] * token.product + v * skip;
    std::memcpy(value + j * kStep, &out, sizeof out);
  }
  // A sequence's first token does not read the previous state.
  for (int64_t i = 0; i < args.key_dim; i++) {
    for (int j = 0; j < kVectors; j++) {
      float* row = state + i * width + j * kStep;
      V sum = given[j] * key[i];
      if (!is_first) sum += load_as<V>(row) * token.decay;
      std::memcpy(row, &sum, sizeof sum);
    }
  }
}

// The columns of a head's state from `column` on, as many registers at once as possible; returns
// the first remaining column.
template <class V, int kVectors>
inline int64_t recur_tile(const RecurArgs& args, const RecurTile& tile, int64_t count, float* state,
                          float skip, bool is_first, int64_t column) {
  constexpr int64_t kColumns = kVectors * sizeof(V) / sizeof(float);
  for (; column + kColumns <= args.value_dim; column += kColumns) {
    for (int64_t i = 0; i < count; i++) {
      recur_columns<V, kVectors>(args, tile.tokens[i], tile.query + i * tile.key_room,
                                 tile.key + i * tile.key_room,
                                 tile.value + i * tile.value_room + column, state + column, skip,
                                 is_first && i == 0);
    }
  }
  return column;
}

// Fills a tile with a head's tokens [first, first + count).
template <class T>
inline void gather_tile(const RecurArgs& args, int64_t first, int64_t count, int64_t head,
                        const RecurTile& tile) {
  const int64_t key_head = head / (args.heads / args.key_heads) * args.key_dim;
  for (int64_t i = 0; i < count; i++) {
    const int64_t token = first + i;
    float *query = tile.query + i * tile.key_room, *key = tile.key + i * tile.key_room;
    widen_vector(static_cast<const T*>(args.query) + token * args.query_stride + key_head,
                 args.key_dim, args.normalize, args.scaling, query);
    widen_vector(static_cast<const T*>(args.key) + token * args.key_stride + key_head,
                 args.key_dim, args.normalize, 1, key);
    widen_vector(static_cast<const T*>(args.value) + token * args.value_stride +
                     head * args.value_dim,
                 args.value_dim, false, 1, tile.value + i * tile.value_room);
    tile.tokens[i] = recur_token<T>(args, token, head);
    tile.tokens[i].product = dot(query, key, tile.key_room);
  }
}

template <class T>
inline void recur_head(const RecurArgs& args, int64_t row, int64_t head, const RecurTile& tile) {
  const int64_t tokens = args.rows.counts[row], width = args.value_dim;
  float* state = args.state + (args.rows.slots[row] * args.heads + head) * args.key_dim * width;
  const float skip = args.skip == nullptr ? 0 : args.skip[head];
  for (int64_t done = 0; done < tokens; done += kRecurTile) {
    const int64_t count = min(kRecurTile, tokens - done), first = args.rows.offsets[row] + done;
    const bool is_first = args.rows.starts[row] + done == 0;
    gather_tile<T>(args, first, count, head, tile);
    int64_t column = recur_tile<Lanes, kRecurVectors>(args, tile, count, state, skip, is_first, 0);
    column = recur_tile<Lanes, 1>(args, tile, count, state, skip, is_first, column);
    recur_tile<float, 1>(args, tile, count, state, skip, is_first, column);
    for (int64_t i = 0; i < count; i++) {
      T* out = static_cast<T*>(args.out) + (first + i) * args.out_stride + head * width;
      each_vector(0, width, [&](int64_t at, auto numbers) {
        store_first(out + at, load(tile.value + i * tile.value_room + at), numbers);
      });
    }
  }
}

// A piece is a head of a row. Decoding, it reads and writes a state of 64 KB in 3 us (AVX-512,
// EPYC).
inline int64_t recur_pieces(const RecurArgs& args, int) { return args.rows.rows * args.heads; }

inline void recur(const RecurArgs& args, int, int64_t piece, Scratch& scratch) {
  const int64_t keys = round_up(args.key_dim, 16), values = round_up(args.value_dim, 16);
  auto* memory = static_cast<float*>(
      scratch.get(size_t(kRecurTile) * (size_t(2 * keys + values) * sizeof(float) + sizeof(RecurToken))));
  float* const behind = memory + kRecurTile * (2 * keys + values);
  const RecurTile tile = {memory,
                          memory + kRecurTile * keys,
                          memory + kRecurTile * 2 * keys,
                          reinterpret_cast<RecurToken*>(behind),
                          keys,
                          values};
  const int64_t row = piece / args.heads, head = piece % args.heads;
  if (args.dtype == DType::bf16) return recur_head<bf16>(args, row, head, tile);
  recur_head<float>(args, row, head, tile);
}

}  // namespace batchdeck::LEVEL
