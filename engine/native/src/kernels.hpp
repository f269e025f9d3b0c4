// The kernels' interface: arguments of each, and the table that a level of instructions fills.
//
// Every kernel is divided into pieces that any thread may run in any order. `pieces` returns their
// number for a number of threads; `run` computes one. Pieces are small (aim at 20 to 100 us), so
// that a thread which the system delays delays only its piece. Kernels allocate nothing: their
// temporaries are in their thread's Scratch.
#pragma once

#include <cstdint>
#include <limits>

#include "blocks.hpp"
#include "experts_args.hpp"
#include "scratch.hpp"

namespace batchdeck {

// Token slots of a block of the KV cache: one vector of floats, one tile of keys.
constexpr int64_t kBlock = 16;
// Output features of a panel of packed weights: two tiles.
constexpr int64_t kPanel = 32;
// Input features of a tile of bfloat16; packed weights are padded to it with zeros.
constexpr int64_t kDepth = 32;

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// bfloat16 is stored as its 16 bits.
using bf16 = uint16_t;

enum class DType : uint8_t { f32, bf16 };
constexpr int64_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// gelu is exact (erf), gelu_tanh its tanh approximation, quick_gelu x * sigmoid(1.702 x),
// relu2 relu squared, softplus log(1 + e^x).
enum class Activation : uint8_t {
  none, silu, gelu, gelu_tanh, quick_gelu, relu, relu2, tanh, sigmoid, softplus
};

// How weights are quantized: to integers of 4, 5, 6 or 8 bits, with a scale for each output feature
// and `group` adjacent input features: w = scale (code - zero). A zero is the middle of the codes
// (8, 16, 32 or 128), unless `has_zeros`; then each scale has its own. A group is a multiple of
// kCodeUnit; for 5 bits, of twice as many, because that many upper bits make a word.
constexpr int64_t kCodeUnit = 16;
enum class Coding : uint8_t { none, int8, int4, int5, int6 };
struct Quantization {
  Coding coding = Coding::none;
  bool has_zeros = false;
  int64_t group = 0;
};
constexpr int64_t bits_of(Coding coding) {
  switch (coding) {
    case Coding::int4: return 4;
    case Coding::int5: return 5;
    case Coding::int6: return 6;
    default: return 8;
  }
}
constexpr int32_t middle_of(Coding coding) { return 1 << (bits_of(coding) - 1); }
constexpr int64_t unit_of(Coding coding) { return coding == Coding::int5 ? 2 * kCodeUnit : kCodeUnit; }

// Rows of x as integers of 15 bits, for products with quantized weights: x = scale code, with a
// scale for each row and group. `sum` is that of the group's codes. For SmolLM2 135M (Q4_1), 96.3 %
// of the likeliest next tokens are the unrounded ones with codes of 8 bits, and 99.9 % with these;
// greedy replies change.
struct CodedGroup {
  float scale;
  int32_t sum;
};
constexpr int64_t kMostCode = 127 * 128;
// A code is 128 upper + lower, two signed bytes in a plane each; or, if products are of 16 bits,
// one number of 16 bits.
constexpr int64_t kCodeBytes = 2;
struct CodedRows {
  const int8_t* codes;  // [rows][2][stride]; or [rows][stride] of 16 bits
  int64_t stride;       // in codes
  const CodedGroup* groups;  // [rows][groups_stride]
  int64_t groups_stride;
};
// Features of the largest group whose sums fit into 32 bits.
constexpr int64_t kMostGroup = 512;
static_assert(kMostGroup * kMostCode * 255 <= std::numeric_limits<int32_t>::max());

// y = x W^T + bias, then the epilogue.
//
// Packed weights, panels of kPanel output features one after another, both n and k filled up with
// zeros: bf16 [n/32][k/32][2][16 pairs of k][16 n][2 of the pair], float32 [n/32][k][32 n].
// Of x, columns up to round_up(k, kDepth) are read; the columns past k must hold finite numbers.
struct LinearArgs {
  DType dtype;      // of x, weight, residual
  DType out_dtype;  // f32 or that of x
  int64_t m, n, k;
  const void* x;
  int64_t x_stride;  // strides are in elements, from row to row
  const void* weight;
  const float* bias;  // [n], or null
  // Gated: output features come in pairs of tiles, 16 gates then their 16 ups: panel p holds gates
  // and ups of outputs [16 p, 16 p + 16), and out[:, j] = activation(gate_j) * up_j, n / 2 columns;
  // n is then a multiple of kPanel.
  // Otherwise out = activation(y), or residual + alpha * y where a residual is given.
  bool gated;
  Activation activation;
  const void* residual;  // [m, n], or null; may be `out`
  int64_t residual_stride;
  float alpha;
  void* out;
  int64_t out_stride;
  // Gated: activation(min(gate, limit)) * (up within [-limit, limit], + shift).
  float limit = std::numeric_limits<float>::infinity();
  float shift = 0;
  // Quantized weights, and x as codes; `dtype` is then that of the residual.
  Quantization quantization = {};
  CodedRows coded = {};
};

// Numbers in packed weights.
constexpr int64_t packed_size(int64_t n, int64_t k) {
  return round_up(n, kPanel) * round_up(k, kDepth);
}

// Quantized weights are packed in panels of groups one after another, both n and k filled up. A group is
// its codes, its scales [32 n] and, where there are some, its zeros [32 n], both in float16. Codes of
// 8 bits: [group/4][32 n][4 of k]; of 4: [group/8][32 n][4], in the lower half of each byte features
// 0 to 3 of the eight, in the upper 4 to 7. Of 5 and 6 bits the lower four lie as codes of 4 do, and behind
// them all the upper ones, in words of 32 features (5) or 16 (6): [group/32 or /16][32 n][4 bytes]. Byte b
// of a word holds those of the features 4 j + b, for j from 0 on, from its lowest bit on.
constexpr int64_t group_bytes(const Quantization& q) {
  return kPanel * (q.group * bits_of(q.coding) / 8 + (q.has_zeros ? 4 : 2));
}
constexpr int64_t coded_bytes(const Quantization& q, int64_t n, int64_t k) {
  return ceil_div(n, kPanel) * ceil_div(k, q.group) * group_bytes(q);
}

// Rows of x to codes, symmetric, rounded to nearest; a group's greatest number becomes kMostCode. A
// group with a non-finite number has the scale NaN.
struct CodeRowsArgs {
  DType dtype;
  int64_t rows, width, group;
  const void* x;
  int64_t x_stride;
  int8_t* codes;  // as CodedRows has them, filled up with zeros to whole groups
  int64_t stride;
  CodedGroup* groups;  // [rows][groups_stride]
  int64_t groups_stride;
};

// Bytes of a product's packed weights.
constexpr int64_t weight_bytes(const LinearArgs& args) {
  if (args.quantization.coding == Coding::none) return packed_size(args.n, args.k) * size_of(args.dtype);
  return coded_bytes(args.quantization, args.n, args.k);
}

// A scale for each group of weights [n, k], k / group (rounded up) of them a row, with which their
// codes lose least of the group's squares. The weights are replaced by the values of their codes,
// rounded to `dtype`. A group with a non-finite number becomes NaN. There are no zeros.
struct QuantizeArgs {
  DType dtype;
  Quantization quantization;
  int64_t n, k;
  void* weight;
  int64_t stride;
  uint16_t* scales;  // float16
  int64_t scales_stride;
};

// Scales, and zeros if `quantization` has them, of weights that were made from codes: for each
// group such that each number is the value of a code, up to rounding to bfloat16. Zeros need not be
// integers. Groups have at most 128 numbers.
struct RecognizeArgs {
  DType dtype;
  Quantization quantization;
  int64_t k;
  const void* weight;
  int64_t stride;
  uint16_t* scales;  // float16
  uint16_t* zeros;   // or null
  int64_t scales_stride;  // of both
};

// Weights [n, k] to packed codes, the nearest ones by these scales and zeros.
struct PackCodedArgs {
  DType dtype;
  Quantization quantization;
  int64_t n, k;
  const void* weight;
  int64_t stride;
  const uint16_t* scales;  // float16
  const uint16_t* zeros;   // or null
  int64_t scales_stride;   // of both
  uint8_t* packed;
};

// Rows of weights as GGUF stores them (blocks.hpp) to packed codes: panel by panel, without
// conversion to floats.
struct BlockRow {
  const uint8_t* blocks;  // of k features; null: the row is padding
  BlockType type;
};
struct PackBlocksArgs {
  Quantization quantization;  // its group divides that of each row's type, or equals it
  int64_t n, k;
  const BlockRow* rows;  // [n]
  uint8_t* packed;
};
struct UnpackBlocksArgs {
  BlockType type;
  int64_t k;
  const uint8_t* blocks;  // of a row
  DType dtype;
  void* out;  // [k]
};

// Normalises groups of `width` columns: RMSNorm (arXiv 1910.07467), or LayerNorm (arXiv 1607.06450)
// if `center`.
struct NormArgs {
  DType dtype;
  int64_t rows, groups, width;
  const void* x;
  int64_t x_stride;
  bool center;
  float eps;
  const float* weight;  // [width], or null
  const float* bias;    // [width], or null
  void* out;            // may be `x`
  int64_t out_stride;
};

// Rotates the first 2 * half columns of each head in place (RoFormer, arXiv 2104.09864): pair i is
// (i, i + half), or (2 i, 2 i + 1) where `interleaved`; (a, b) -> (a cos - b sin, b cos + a sin).
struct RotateArgs {
  DType dtype;
  int64_t rows, heads, head_dim, half;
  bool interleaved;
  const int64_t* positions;  // [rows]
  const float* cos;          // [positions, half]
  const float* sin;
  void* x;
  int64_t x_stride;
};

// The cache of one layer. Blocks of kBlock tokens, in units that vectors and tiles read as they are:
// keys    bf16 [block][kv_head][depth/2][16 tokens][2 dims], float32 [block][kv_head][depth][16 tokens]
// values  bf16 [block][kv_head][8 pairs of tokens][value_dim][2 tokens],
//         float32 [block][kv_head][16 tokens][value_dim]
// where depth is head_dim filled up with zeros to a multiple of kDepth (bf16; float32: head_dim).
// Where `values` is null, they are the first value_dim numbers of the keys.
struct Cache {
  DType dtype;
  int64_t kv_heads, head_dim, value_dim;
  void* keys;
  void* values;
};
constexpr int64_t key_depth(DType dtype, int64_t head_dim) {
  return dtype == DType::bf16 ? round_up(head_dim, kDepth) : head_dim;
}
constexpr int64_t key_unit(DType dtype, int64_t head_dim) { return key_depth(dtype, head_dim) * kBlock; }
constexpr int64_t value_unit(int64_t value_dim) { return value_dim * kBlock; }

// Writes tokens' keys and values to their slots.
struct StoreArgs {
  Cache cache;
  int64_t rows;
  const int64_t* slots;  // [rows]: block * kBlock + index in it
  const void* key;       // [rows, kv_heads * head_dim]
  int64_t key_stride;
  const void* value;  // [rows, kv_heads * value_dim]
  int64_t value_stride;
};

// A share of attention: queries [first, first + count) of one row (of a step) and one key/value head
// against the blocks [begin, end) of that row's table.
struct AttentionItem {
  int64_t row;
  int64_t kv_head;
  int64_t query, queries;  // in the row
  int64_t begin, end;      // blocks
  int64_t part;            // where its partial result begins; -1 if it holds the whole context
};
// `count` consecutive parts from `first` on make the result of these queries.
struct AttentionMerge {
  int64_t row, kv_head, query, queries;
  int64_t first, count;
};

// Causal attention over paged keys and values (PagedAttention, SOSP'23; FlashDecoding's split of a
// context; FlashAttention-2's running softmax, arXiv 2307.08691). Row r holds the tokens at positions
// [starts[r], starts[r] + counts[r]) of a sequence; they are packed one row after another.
// Head h reads kv head h / (heads / kv_heads).
struct AttentionArgs {
  Cache cache;
  int64_t heads;
  int64_t rows;
  const int64_t* starts;
  const int64_t* counts;
  const int64_t* offsets;  // [rows], of a row's first token in the packed step
  const int64_t* tables;   // [rows, table_stride]
  int64_t table_stride;
  const void* query;  // [tokens, heads * head_dim], in the cache's dtype
  int64_t query_stride;
  void* out;  // [tokens, heads * value_dim], in the cache's dtype
  int64_t out_stride;
  float scaling;
  int64_t window;      // 0: none; else a token attends to this many positions, including itself
  float softcap;       // 0: none; else scores are softcap * tanh(score / softcap)
  const float* sinks;  // [heads] logits that take part in the softmax without a value, or null
  // The division into items, made once a step for all layers of the same window (`plan_attention`).
  const AttentionItem* items;
  // Piece p is the items [pieces[p], pieces[p + 1]): the first blocks of each are fetched while the
  // previous one computes.
  const int64_t* pieces;
  int64_t num_pieces;
  const AttentionMerge* merges;
  int64_t num_merges;
  // A part: for each query and head of the group, maximum, sum and value_dim unnormalised numbers.
  float* parts;
};
// Floats of a part of `rows` queries and heads.
constexpr int64_t part_size(int64_t rows, int64_t value_dim) { return rows * (2 + value_dim); }

// Rows of an embedding. `packed` tables are packed weights of n = vocabulary, k = width, quantized or not.
struct EmbedArgs {
  DType dtype;  // of out, and of a table that is not quantized
  bool packed;
  Quantization quantization;
  int64_t rows, width, vocab_size;
  const int64_t* ids;  // [rows]
  const void* table;   // [vocab_size, width] where not packed
  void* out;
  int64_t out_stride;
};

// out = activation(alpha * x), or with y: out = x + alpha * y, or activation(x) * y * alpha.
enum class Combine : uint8_t { none, add, multiply };
struct ElementwiseArgs {
  DType dtype;
  Combine combine;
  Activation activation;
  float alpha;
  int64_t rows, width;
  const void* x;
  int64_t x_stride;
  const void* y;  // or null
  int64_t y_stride;  // 0 repeats one row
  void* out;
  int64_t out_stride;
  int64_t y_repeat = 1;  // columns that each number of y serves
};

// The rows of a step, as in AttentionArgs, and the slot of each sequence's state. A row that starts
// at 0 has no state yet: the slot is not read.
struct StateRows {
  int64_t rows;
  const int64_t* starts;
  const int64_t* counts;
  const int64_t* offsets;
  const int64_t* slots;
};

// Causal convolution of each column with its own `taps` weights, at least 2 and at most kMostTaps:
// out_t = activation(bias + sum_j weight_j x_(t - taps + 1 + j)). The state is the last taps - 1 rows
// of x.
struct ConvolveArgs {
  DType dtype;
  StateRows rows;
  int64_t width, taps;
  const void* x;
  int64_t x_stride;
  const float* weight;  // [taps, width]
  const float* bias;    // [width], or null
  Activation activation;
  void* state;  // [slots, taps - 1, width], in `dtype`
  void* out;    // not `x`
  int64_t out_stride;
};
constexpr int64_t kMostTaps = 8;

// A linear recurrence over a matrix S [key_dim, value_dim] of each head, from token to token:
//   step = decay_h + bias_h, or softplus of it, within [low, high];  d = exp(scale_h step)
//   u = v, or step v where `scaled`;  where there is a beta: u = beta (u - (d S)^T k)
//   S = d S + k u^T;  out = scaling S^T q + skip_h v
// With beta it is the gated delta rule (arXiv 2412.06464, equation 10), scaled it is Mamba 2's state
// space (arXiv 2405.21060, section 3), else linear attention with a decay (RetNet, arXiv 2307.08621).
// Head h reads key head h / (heads / key_heads). Where `normalize`, queries and keys are divided by
// their lengths.
struct RecurArgs {
  DType dtype;
  StateRows rows;
  int64_t heads, key_heads, key_dim, value_dim;
  const void* query;  // [tokens, key_heads * key_dim]
  int64_t query_stride;
  const void* key;
  int64_t key_stride;
  const void* value;  // [tokens, heads * value_dim]
  int64_t value_stride;
  const void* decay;  // [tokens, heads]
  int64_t decay_stride;
  const void* beta;  // [tokens, heads], or null
  int64_t beta_stride;
  const float* decay_bias;   // [heads], or null
  const float* decay_scale;  // [heads]
  bool softplus;
  float low, high;
  bool scaled;
  const float* skip;  // [heads], or null
  bool normalize;
  float scaling;
  float* state;  // [slots, heads, key_dim, value_dim]
  void* out;     // [tokens, heads * value_dim]; must not overlap inputs
  int64_t out_stride;
};

// Chooses tokens from logits [rows, vocab_size]; the filters are those of
// engine.model.step.sampler.Sampler: each is a least logit that a row still allows, and the draw inverts
// the distribution function in the order of the vocabulary.
struct SampleArgs {
  int64_t rows, vocab_size;
  const float* logits;
  int64_t stride;
  const float* temperature;  // [rows], at least 0, which chooses the likeliest, the first of equals
  const int64_t* top_k;      // [rows], at least 1; vocab_size: all
  const double* top_p;       // [rows], above 0; 1: all
  const float* min_p;        // [rows], in [0, 1]; 0: all
  const double* uniform;     // [rows], in [0, 1)
  int64_t* tokens;           // [rows]; -1 where a row has a NaN, +inf, or nothing finite
};

// The kernels of one level of instructions.
struct Kernels {
  const char* name;

  void (*pack_linear)(DType dtype, const void* weight, int64_t stride, int64_t n, int64_t k,
                      int64_t first_panel, int64_t last_panel, void* packed);
  int64_t (*linear_pieces)(const LinearArgs&, int threads);
  void (*linear)(const LinearArgs&, int threads, int64_t piece, Scratch&);

  int64_t (*code_rows_pieces)(const CodeRowsArgs&, int threads);
  void (*code_rows)(const CodeRowsArgs&, int threads, int64_t piece, Scratch&);
  int64_t (*quantize_pieces)(const QuantizeArgs&, int threads);
  void (*quantize)(const QuantizeArgs&, int threads, int64_t piece, Scratch&);
  // Whether the numbers of a row were codes.
  bool (*recognize_row)(const RecognizeArgs&, int64_t row);
  void (*pack_coded)(const PackCodedArgs&, int64_t panel);
  // Whether float16 can represent the panel's scales; if not, the packed data is invalid.
  bool (*pack_blocks)(const PackBlocksArgs&, int64_t panel);
  void (*unpack_blocks)(const UnpackBlocksArgs&);

  int64_t (*norm_pieces)(const NormArgs&, int threads);
  void (*norm)(const NormArgs&, int threads, int64_t piece, Scratch&);
  int64_t (*rotate_pieces)(const RotateArgs&, int threads);
  void (*rotate)(const RotateArgs&, int threads, int64_t piece, Scratch&);
  int64_t (*store_pieces)(const StoreArgs&, int threads);
  void (*store)(const StoreArgs&, int threads, int64_t piece, Scratch&);

  // One call for each merge, after all pieces.
  void (*attend)(const AttentionArgs&, int64_t piece, Scratch&);
  void (*merge)(const AttentionArgs&, int64_t merge, Scratch&);

  int64_t (*embed_pieces)(const EmbedArgs&, int threads);
  void (*embed)(const EmbedArgs&, int threads, int64_t piece, Scratch&);
  int64_t (*elementwise_pieces)(const ElementwiseArgs&, int threads);
  void (*elementwise)(const ElementwiseArgs&, int threads, int64_t piece, Scratch&);

  int64_t (*convolve_pieces)(const ConvolveArgs&, int threads);
  void (*convolve)(const ConvolveArgs&, int threads, int64_t piece, Scratch&);
  int64_t (*recur_pieces)(const RecurArgs&, int threads);
  void (*recur)(const RecurArgs&, int threads, int64_t piece, Scratch&);
  // One row each.
  void (*route)(const RouteArgs&, int64_t row, Scratch&);
  int64_t (*combine_pieces)(const CombineArgs&, int threads);
  void (*combine)(const CombineArgs&, int threads, int64_t piece, Scratch&);

  // One piece for each row.
  void (*sample)(const SampleArgs&, int64_t row, Scratch&);
};

// The tables of the levels that were compiled (level.cpp, once for each; coded_level.cpp).
const Kernels& kernels_avx2();
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx512();
const Kernels& kernels_amx();

}  // namespace batchdeck
