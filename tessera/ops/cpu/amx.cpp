// SPDX-License-Identifier: Apache-2.0
// Headers come before the pragma, because their inline functions must run on every CPU.
#include <immintrin.h>

#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tiles.h"

// clang, which is used only for clang-tidy, has no target pragma.
#if !defined(__clang__)
#pragma GCC target("amx-tile,amx-bf16")

namespace tessera::ops::cpu {
namespace {

using i64 = std::int64_t;
#define INLINE inline __attribute__((always_inline))

struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// One or two tiles of sums in each direction: sums in registers 0 to 3, a in 4 and 5, b in 6 and
/// 7.
template <int kTall, int kWide>
INLINE void multiply_block(const TileProduct& p, i64 row, i64 column) {
  const long c_bytes = 4 * p.c_stride, a_bytes = 2 * p.a_stride;
  float* c = p.c + row * p.c_stride + column;
  float* below = c + kTileRows * p.c_stride;
  if (p.accumulate) {
    _tile_loadd(0, c, c_bytes);
    if constexpr (kWide == 2) _tile_loadd(1, c + kTileRows, c_bytes);
    if constexpr (kTall == 2) _tile_loadd(2, below, c_bytes);
    if constexpr (kTall == 2 && kWide == 2) _tile_loadd(3, below + kTileRows, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint16_t* a = p.a + row * p.a_stride;
  const std::uint16_t* b = p.b.at(p.b_inner, p.b_column + column);
  const std::uint16_t* beside = b + p.b.inner_tiles * kTileValues;
  for (i64 inner = 0; inner < p.k; inner += kTileInner) {
    _tile_loadd(4, a + inner, a_bytes);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kWide == 2) {
      _tile_loadd(7, beside, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTall == 2) {
      _tile_loadd(5, a + kTileRows * p.a_stride + inner, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTall == 2 && kWide == 2) _tile_dpbf16ps(3, 5, 7);
    b += kTileValues;
    beside += kTileValues;
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (kWide == 2) _tile_stored(1, c + kTileRows, c_bytes);
  if constexpr (kTall == 2) _tile_stored(2, below, c_bytes);
  if constexpr (kTall == 2 && kWide == 2) _tile_stored(3, below + kTileRows, c_bytes);
}

template <int kTall>
INLINE void multiply_rows(const TileProduct& p, i64 row) {
  i64 column = 0;
  for (; column + 2 * kTileRows <= p.n; column += 2 * kTileRows)
    multiply_block<kTall, 2>(p, row, column);
  if (column < p.n) multiply_block<kTall, 1>(p, row, column);
}

}  // namespace

TileRegisters::TileRegisters() {
  if (isa() != Isa::Amx) return;
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}
TileRegisters::~TileRegisters() {
  if (isa() == Isa::Amx) asm volatile("tilerelease");
}

void multiply_by_amx(const TileProduct& p) {
  asm volatile("" ::: "memory");  // the intrinsics do not declare that they read memory
  i64 row = 0;
  for (; row + 2 * kTileRows <= p.m; row += 2 * kTileRows)
    multiply_rows<2>(p, row);
  if (row < p.m) multiply_rows<1>(p, row);
}

}  // namespace tessera::ops::cpu

#endif
