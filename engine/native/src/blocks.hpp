// Weights as GGUF stores them: rows of blocks, each of codes and their scales (ggml's block types,
// by the GGUF specification). Types of integers with scales are listed; others are read as floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace batchdeck {

enum class BlockType : uint8_t {
  q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, tq2_0, mxfp4, nvfp4,
  tq1_0, iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s
};

// Attributes of a type: features and bytes of a block; and its packed codes: bits, features that
// share a scale, and whether scales have zeros. Those of IQ4 are looked up in a table of whole
// numbers of 8 bits. IQ2 has 8, 25 and 43 of either sign, IQ3_XXS twice 2 to 31; IQ3_S has the odd
// numbers up to 15, and IQ1 has -1, 0 and 1, each an eighth more or less, of which zeros make 4
// bits.
struct BlockLayout {
  const char* name;  // as GGUF has it
  int64_t features, bytes;
  int64_t bits, group;
  bool has_zeros;
};
constexpr std::array kBlockLayouts = {
    BlockLayout{"Q4_0", 32, 18, 4, 32, false},    BlockLayout{"Q4_1", 32, 20, 4, 32, true},
    BlockLayout{"Q5_0", 32, 22, 5, 32, false},    BlockLayout{"Q5_1", 32, 24, 5, 32, true},
    BlockLayout{"Q8_0", 32, 34, 8, 32, false},    BlockLayout{"Q2_K", 256, 84, 4, 16, true},
    BlockLayout{"Q3_K", 256, 110, 4, 16, false},  BlockLayout{"Q4_K", 256, 144, 4, 32, true},
    BlockLayout{"Q5_K", 256, 176, 5, 32, true},   BlockLayout{"Q6_K", 256, 210, 6, 16, false},
    BlockLayout{"IQ4_NL", 32, 18, 8, 32, false},  BlockLayout{"IQ4_XS", 256, 136, 8, 32, false},
    BlockLayout{"TQ2_0", 256, 66, 4, 32, false}, BlockLayout{"MXFP4", 32, 17, 5, 32, false},
    BlockLayout{"NVFP4", 64, 36, 6, 16, false},   BlockLayout{"TQ1_0", 256, 54, 4, 32, false},
    BlockLayout{"IQ3_S", 256, 110, 4, 32, true},  BlockLayout{"IQ3_XXS", 256, 98, 6, 32, false},
    BlockLayout{"IQ2_S", 256, 82, 8, 16, false},  BlockLayout{"IQ2_XS", 256, 74, 8, 16, false},
    BlockLayout{"IQ2_XXS", 256, 66, 8, 32, false}, BlockLayout{"IQ1_M", 256, 56, 4, 16, true},
    BlockLayout{"IQ1_S", 256, 50, 4, 32, true}};
constexpr const BlockLayout& layout_of(BlockType type) { return kBlockLayouts[std::size_t(type)]; }

// Features of the largest block.
constexpr int64_t kLargestBlock = 256;

}  // namespace batchdeck
