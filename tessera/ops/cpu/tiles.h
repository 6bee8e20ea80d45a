// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices for blocks that stay in a core's cache, by the CPU's matrix tiles (AMX)
// or, where it has none, by its dot products (AVX512-BF16), and what brings operands into the order
// that both read. A tile holds 16 rows of 64 bytes: 32 bf16 values or 16 sums. All sizes are padded
// to whole tiles. Requires runs_here(Isa::Avx512Bf16).
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/ops/cpu/kernels.h"

namespace tessera::ops::cpu {

inline constexpr std::int64_t kTileRows = 16;   ///< and columns of sums
inline constexpr std::int64_t kTileInner = 32;  ///< values of bf16 that a row of a tile holds
inline constexpr std::int64_t kTileValues = kTileRows * kTileInner;

constexpr std::int64_t whole_tiles(std::int64_t size, std::int64_t tile) {
  return (size + tile - 1) / tile * tile;
}

/// While it lives, this thread may multiply. Nothing without matrix tiles.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// The right operand of a product, [inner, columns] in tiles of pairs: for every 16 columns one
/// tile for each 32 of the inner size, `inner_tiles` of them, one behind the other; row r of a tile
/// holds values 2 r and 2 r + 1 of its columns side by side.
struct PairTiles {
  std::uint16_t* data;
  std::int64_t inner_tiles;
  [[nodiscard]] std::uint16_t* at(std::int64_t inner, std::int64_t column) const {
    return data + (column / kTileRows * inner_tiles + inner / kTileInner) * kTileValues;
  }
};

/// c [m, n] = a [m, k] b [k, n] + (accumulate ? c : 0) with a in rows of `a_stride`, c in rows of
/// `c_stride`; m, n: multiples of 16, k of 32; b begins at (b_inner, b_column).
struct TileProduct {
  std::int64_t m, n, k;
  const std::uint16_t* a;
  std::int64_t a_stride;
  PairTiles b;
  std::int64_t b_inner, b_column;
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};
/// Of isa().
void multiply_tiles(const TileProduct& p);
/// Requires runs_here(Isa::Amx), and TileRegisters of a process whose isa() it is.
void multiply_by_amx(const TileProduct& p);
void multiply_by_dots(const TileProduct& p);

/// x: `count` rows of `width` bf16 values. What is padding becomes zero.
struct PackedRows {
  StridedRows x;
  std::int64_t count, width;
};
/// As they are, in rows of whole_tiles(width, 32), whole_tiles(count, 32) of them: a left operand.
void pack_rows(const PackedRows& from, std::uint16_t* to);
/// Transposed, in whole_tiles(width, 16) rows of whole_tiles(count, 32): a left operand.
void pack_columns(const PackedRows& from, std::uint16_t* to);
/// As a right operand [count, width].
void pack_pairs(const PackedRows& from, std::uint16_t* to);
/// As a right operand [width, count]; count is padded to 32.
void pack_pairs_transposed(const PackedRows& from, std::uint16_t* to);
/// to [columns, rows] = x^T rounded; x: `rows` rows of `columns` values at distance `stride`.
void round_transposed(
    const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, StridedRows to);

/// A strip of at most 32 queries of attention and the keys of a block that they see: row r those in
/// [first_begin + r, first_visible + r). Scores and what is made of them lie in rows of `stride`,
/// `columns` of each in whole tiles.
struct TileStrip {
  std::int64_t rows, columns, keys, first_visible, first_begin, stride;
  ScoreForm form;
  const float* kept = nullptr;  ///< in rows of `stride`: what dropout multiplies probabilities by
  /// The keys that row `row` sees: [from, to).
  [[nodiscard]] std::int64_t to(std::int64_t row) const {
    return std::clamp<std::int64_t>(first_visible + row, 0, keys);
  }
  [[nodiscard]] std::int64_t from(std::int64_t row) const {
    return std::clamp<std::int64_t>(first_begin + row, 0, to(row));
  }
};
/// Softmax over one block of keys at a time: probabilities become a left operand [32, keys], zero
/// for what is not seen.
struct TileAttend {
  TileStrip strip;
  float* scores;  ///< overwritten where the form is more than a scale
  std::uint16_t* probabilities;
  float *max, *sum, *shrink;  ///< one a row: of all blocks so far; what earlier sums shrink by
};
void attend_tiles(const TileAttend& a);
/// Its gradient.
struct TileAttendGrad {
  TileStrip strip;
  float* scores;  ///< overwritten where the form is more than a scale
  const float* dprobabilities;
  const float *log_sum, *mean;  ///< one a row; mean: sum of dprobabilities * probabilities
  PairTiles probabilities, dscores_pairs;  ///< right operands [queries, keys]
  std::int64_t query;                      ///< of row 0, in these
  std::uint16_t* dscores;                  ///< a left operand [32, keys]
  float* cap_slopes;  ///< two rows of `stride`, scratch where the form has a cap
  float* dpairs;      ///< of form.of_pairs, in rows of `dpair_stride`: added to; or nullptr
  std::int64_t dpair_stride;
};
void attend_grad_tiles(const TileAttendGrad& a);

}  // namespace tessera::ops::cpu
