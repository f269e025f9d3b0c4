// Tiles of bytes as plain code, so that what is written for them runs where there are none. It is
// included before everything else.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EMULATED_TILES
#define __AMX_TILE__
#define __AMX_BF16__
#define __AMX_INT8__

namespace emulated {

struct Tile {
  uint8_t bytes[16][64];
  int rows, width;  // as they were shaped; a row has `width` bytes
};
inline Tile tiles[8];

inline void shape(const uint8_t* rows, const uint16_t* bytes) {
  for (int i = 0; i < 8; i++) {
    tiles[i] = {};
    tiles[i].rows = rows[i];
    tiles[i].width = bytes[i];
    if (rows[i] > 16 || bytes[i] > 64) abort();
  }
}
inline void zero(int tile) { memset(tiles[tile].bytes, 0, sizeof tiles[tile].bytes); }
inline void load(int tile, const void* from, int64_t stride) {
  zero(tile);
  for (int r = 0; r < tiles[tile].rows; r++) {
    memcpy(tiles[tile].bytes[r], static_cast<const char*>(from) + r * stride, size_t(tiles[tile].width));
  }
}
inline void put(int tile, void* to, int64_t stride) {
  for (int r = 0; r < tiles[tile].rows; r++) {
    memcpy(static_cast<char*>(to) + r * stride, tiles[tile].bytes[r], size_t(tiles[tile].width));
  }
}
// Intel SDM vol. 2: the shapes must fit, else the processor raises an exception.
inline void check(const Tile& sums, const Tile& a, const Tile& b) {
  if (sums.rows != a.rows || sums.width != b.width || b.rows != a.width / 4) abort();
}
inline void dot_signed_by_unsigned(int to, int from, int by) {
  Tile &sums = tiles[to], &a = tiles[from], &b = tiles[by];
  check(sums, a, b);
  for (int m = 0; m < sums.rows; m++) {
    for (int n = 0; n < sums.width / 4; n++) {
      int32_t sum;
      memcpy(&sum, &sums.bytes[m][4 * n], 4);
      for (int k = 0; k < a.width; k++) sum += int8_t(a.bytes[m][k]) * b.bytes[k / 4][4 * n + k % 4];
      memcpy(&sums.bytes[m][4 * n], &sum, 4);
    }
  }
}

}  // namespace emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_release
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::put(tile, to, stride)
#define _tile_release() (void)0
#define _tile_dpbsud(to, from, by) emulated::dot_signed_by_unsigned(to, from, by)
#define _tile_dpbf16ps(to, from, by) abort()  // none of bfloat16 is multiplied here
