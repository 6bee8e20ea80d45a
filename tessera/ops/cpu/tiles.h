// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices for blocks that stay in a core's cache, with the CPU's matrix tiles
// (AMX) or, without these, its dot products (AVX512-BF16), and functions that pack operands into
// the order that both read. A tile has 16 rows of 64 bytes: 32 bf16 values or 16 sums. All sizes
// are padded to whole tiles. Requires runs_here(Isa::Avx512Bf16).
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/ops/cpu/kernels.h"

namespace tessera::ops::cpu {

inline constexpr std::int64_t kTileRows = 16;   ///< and columns of sums
inline constexpr std::int64_t kTileInner = 32;  ///< bf16 values per row of a tile
inline constexpr std::int64_t kTileValues = kTileRows * kTileInner;

constexpr std::int64_t whole_tiles(std::int64_t size, std::int64_t tile) {
  return (size + tile - 1) / tile * tile;
}

/// Enables the matrix tiles for this thread during its lifetime. Does nothing without matrix tiles.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// The right operand of a product, [inner, columns] in tiles of pairs: for every 16 columns one
/// tile per 32 of the inner size, `inner_tiles` of them, one after the other; row r of a tile has
/// values 2 r and 2 r + 1 of its columns interleaved.
struct PairTiles {
  std::uint16_t* data;
  std::int64_t inner_tiles;
  [[nodiscard]] std::uint16_t* at(std::int64_t inner, std::int64_t column) const {
    return data + (column / kTileRows * inner_tiles + inner / kTileInner) * kTileValues;
  }
};

/// c [m, n] = a [m, k] b [k, n] + (accumulate ? c : 0) with row strides `a_stride` and `c_stride`;
/// m, n: multiples of 16, k of 32; b begins at (b_inner, b_column).
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
/// Uses the variant of isa().
void multiply_tiles(const TileProduct& p);
/// Requires runs_here(Isa::Amx), and TileRegisters in a process with this isa().
void multiply_by_amx(const TileProduct& p);
void multiply_by_dots(const TileProduct& p);

/// x: `count` rows of `width` bf16 values. Padding is zeroed.
struct PackedRows {
  StridedRows x;
  std::int64_t count, width;
};
/// Packs without transposing: whole_tiles(count, 32) rows of whole_tiles(width, 32): a left
/// operand.
void pack_rows(const PackedRows& from, std::uint16_t* to);
/// Packs transposed: whole_tiles(width, 16) rows of whole_tiles(count, 32): a left operand.
void pack_columns(const PackedRows& from, std::uint16_t* to);
/// Packs as a right operand [count, width].
void pack_pairs(const PackedRows& from, std::uint16_t* to);
/// Packs as a right operand [width, count]; count is padded to 32.
void pack_pairs_transposed(const PackedRows& from, std::uint16_t* to);
/// to [columns, rows] = x^T, rounded; x has `rows` rows of `columns` values with the given stride.
void round_transposed(
    const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, StridedRows to);

/// A strip of at most 32 attention queries and the keys of a block that they see: row r sees those
/// in [first_begin + r, first_visible + r). Scores and their derived values have rows of `stride`,
/// of which `columns` are used, in whole tiles.
struct TileStrip {
  std::int64_t rows, columns, keys, first_visible, first_begin, stride;
  ScoreForm form;
  const float* kept = nullptr;  ///< rows of `stride`: dropout's factors of the probabilities
  /// The keys that row `row` sees: [from, to).
  [[nodiscard]] std::int64_t to(std::int64_t row) const {
    return std::clamp<std::int64_t>(first_visible + row, 0, keys);
  }
  [[nodiscard]] std::int64_t from(std::int64_t row) const {
    return std::clamp<std::int64_t>(first_begin + row, 0, to(row));
  }
};
/// Softmax over one block of keys at a time: probabilities become a left operand [32, keys], zero
/// for invisible keys.
struct TileAttend {
  TileStrip strip;
  float* scores;  ///< overwritten if the form is more than a scale
  std::uint16_t* probabilities;
  /// One per row: over all blocks so far; factor by which earlier sums shrink.
  float *max, *sum, *shrink;
};
void attend_tiles(const TileAttend& a);
/// Gradient of TileAttend.
struct TileAttendGrad {
  TileStrip strip;
  float* scores;  ///< overwritten if the form is more than a scale
  const float* dprobabilities;
  const float *log_sum, *mean;  ///< one per row; mean: sum of dprobabilities * probabilities
  PairTiles probabilities, dscores_pairs;  ///< right operands [queries, keys]
  std::int64_t query;                      ///< position of row 0 in these
  std::uint16_t* dscores;                  ///< a left operand [32, keys]
  float* cap_slopes;                       ///< two rows of `stride`, scratch if the form has a cap
  /// Gradient of form.of_pairs, with row stride `dpair_stride`: added to; or nullptr.
  float* dpairs;
  std::int64_t dpair_stride;
};
void attend_grad_tiles(const TileAttendGrad& a);

}  // namespace tessera::ops::cpu
