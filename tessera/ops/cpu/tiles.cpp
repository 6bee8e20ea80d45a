// SPDX-License-Identifier: Apache-2.0
// Headers come before the pragma, because their inline functions must run on every CPU.
#include "tessera/ops/cpu/tiles.h"

#include <immintrin.h>

#include "tessera/ops/cpu/isa.h"

// clang, which is used only for clang-tidy, has no target pragma.
#if !defined(__clang__)
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#pragma GCC target("prefer-vector-width=512")
#define TESSERA_LANES 16
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a call that is not inlined

namespace tessera::ops::cpu {
namespace {

// The vectors come first.
// clang-format off
#include "tessera/ops/cpu/vec.inc"
#include "tessera/ops/cpu/variant_scores.inc"
// clang-format on

/// Computes the sums of kRows rows and kTiles * 16 columns, in registers, over a part of the inner
/// size.
template <int kRows, int kTiles>
INLINE void add_dots(const TileProduct& p, i64 row, i64 column, i64 inner, i64 depth) {
  float* const c = p.c + row * p.c_stride + column;
  const std::uint16_t* const a = p.a + row * p.a_stride + inner;
  const std::uint16_t* const b = p.b.at(p.b_inner + inner, p.b_column + column);
  const i64 beside = p.b.inner_tiles * kTileValues;
  const bool begins = inner == 0 && !p.accumulate;
  F sums[kRows][kTiles];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t)
      sums[i][t] = begins ? F{} : load(c + i * p.c_stride + t * kTileRows, Whole{});
  }
  for (i64 pair = 0; pair < depth / 2; ++pair) {
    __m512bh right[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t)
      right[t] = (__m512bh)read<U>(b + t * beside + pair * kTileInner, Whole{});
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      std::uint32_t two;
      __builtin_memcpy(&two, a + i * p.a_stride + 2 * pair, sizeof(two));
      const auto left = (__m512bh)(U{} + two);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t)
        sums[i][t] = (F)_mm512_dpbf16_ps((__m512)sums[i][t], left, right[t]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t)
      store(c + i * p.c_stride + t * kTileRows, sums[i][t], Whole{});
  }
}

/// All rows, with a part of the right operand that stays in the first-level cache.
template <int kTiles>
INLINE void add_columns(const TileProduct& p, i64 column, i64 inner, i64 depth) {
  constexpr int kRows = 8;
  for (i64 row = 0; row < p.m; row += kRows)
    add_dots<kRows, kTiles>(p, row, column, inner, depth);
}

/// 16 vectors of 16 words each.
struct Square {
  U row[16];
};

INLINE U interleaved(U a, U b, int half) {
  const U low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  return __builtin_shuffle(a, b, half == 0 ? low : low + 8);
}
/// Each round exchanges the highest remaining bit of the column's number with that of the row's.
INLINE void transpose(Square& x) {
  for (int round = 0; round < 4; ++round) {
    Square next;
    for (int i = 0; i < 8; ++i) {
      next.row[2 * i] = interleaved(x.row[i], x.row[i + 8], 0);
      next.row[2 * i + 1] = interleaved(x.row[i], x.row[i + 8], 1);
    }
    x = next;
  }
}

INLINE __mmask32 first(i64 count) {
  return count >= 32 ? 0xffffffffU : count <= 0 ? 0U : (1U << count) - 1;
}
/// Values [column, column + 32) of row `row`, or [column, column + 16); zero beyond the matrix.
INLINE __m512i values32(const PackedRows& from, i64 row, i64 column) {
  if (row >= from.count) return __m512i{};
  const auto* data = static_cast<const std::uint16_t*>(from.x.data) + row * from.x.stride + column;
  return _mm512_maskz_loadu_epi16(first(from.width - column), data);
}
INLINE U values16(const PackedRows& from, i64 row, i64 column) {
  if (row >= from.count) return U{};
  const auto* data = static_cast<const std::uint16_t*>(from.x.data) + row * from.x.stride + column;
  const auto lanes = static_cast<__mmask16>(first(from.width - column));
  return (U)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(lanes, data));
}
/// Rows `row` and `row` + 1, interleaved.
INLINE U pairs(const PackedRows& from, i64 row, i64 column) {
  return values16(from, row, column) | (values16(from, row + 1, column) << 16);
}
/// The pairs of 32 rows and 16 columns.
INLINE Square pair_square(const PackedRows& from, i64 row, i64 column) {
  Square out;
  for (int i = 0; i < 16; ++i)
    out.row[i] = pairs(from, row + 2 * i, column);
  return out;
}

INLINE F added(F a, F b) {
  return a + b;
}
/// Reduces all lanes with fn, by halves.
template <class Fn>
INLINE float across(F x, Fn fn) {
  const I lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int half = 8; half > 0; half /= 2)
    x = fn(x, __builtin_shuffle(x, (lane + half) & 15));
  return x[0];
}

INLINE H narrowed(F value) {
  return (H)_mm512_cvtneps_pbh((__m512)value);
}
INLINE U widened(H value) {
  return (U)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)value);
}

/// Mask of those of the 16 keys from `at` on that lie in [from, to).
INLINE __mmask16 seen_lanes(i64 at, i64 from, i64 to) {
  const auto lanes = static_cast<__mmask16>(first(to - at));
  return at >= from ? lanes : static_cast<__mmask16>(lanes & ~first(from - at));
}
/// Invisible keys become zero, whatever dropout's factors are there.
INLINE F dropped(const TileStrip& strip, i64 at, __mmask16 lanes, F probabilities) {
  if (strip.kept == nullptr) return probabilities;
  return (F)_mm512_maskz_mul_ps(
      lanes, (__m512)probabilities, (__m512)load(strip.kept + at, Whole{}));
}

}  // namespace

void multiply_tiles(const TileProduct& p) {
  static const bool amx = isa() == Isa::Amx;
  return amx ? multiply_by_amx(p) : multiply_by_dots(p);
}

void multiply_by_dots(const TileProduct& p) {
  constexpr i64 kDepth = 256;
  for (i64 inner = 0; inner < p.k; inner += kDepth) {
    const i64 depth = std::min(kDepth, p.k - inner);
    i64 column = 0;
    for (; column + 2 * kTileRows <= p.n; column += 2 * kTileRows)
      add_columns<2>(p, column, inner, depth);
    if (column < p.n) add_columns<1>(p, column, inner, depth);
  }
}

void pack_rows(const PackedRows& from, std::uint16_t* to) {
  const i64 width = whole_tiles(from.width, kTileInner), rows = whole_tiles(from.count, kTileInner);
  for (i64 row = 0; row < rows; ++row) {
    for (i64 column = 0; column < width; column += kTileInner)
      _mm512_storeu_si512(to + row * width + column, values32(from, row, column));
  }
}

void pack_columns(const PackedRows& from, std::uint16_t* to) {
  const i64 stride = whole_tiles(from.count, kTileInner);
  for (i64 column = 0; column < from.width; column += kTileRows) {
    for (i64 row = 0; row < stride; row += kTileInner) {
      Square square = pair_square(from, row, column);
      transpose(square);
      for (int i = 0; i < 16; ++i)
        write(to + (column + i) * stride + row, square.row[i], Whole{});
    }
  }
}

void pack_pairs(const PackedRows& from, std::uint16_t* to) {
  for (i64 column = 0; column < from.width; column += kTileRows) {
    for (i64 row = 0; row < from.count; row += kTileInner, to += kTileValues) {
      for (int i = 0; i < 16; ++i)
        write(to + i * kTileInner, pairs(from, row + 2 * i, column), Whole{});
    }
  }
}

void pack_pairs_transposed(const PackedRows& from, std::uint16_t* to) {
  const i64 rows = whole_tiles(from.count, kTileInner);
  for (i64 row = 0; row < rows; row += kTileRows) {
    for (i64 column = 0; column < from.width; column += kTileInner, to += kTileValues) {
      Square square;
      for (int i = 0; i < 16; ++i)
        square.row[i] = (U)values32(from, row + i, column);
      transpose(square);
      for (int i = 0; i < 16; ++i)
        write(to + i * kTileInner, square.row[i], Whole{});
    }
  }
}

void round_transposed(const float* x, i64 stride, i64 rows, i64 columns, StridedRows to) {
  for (i64 row = 0; row < rows; row += kTileRows) {
    for (i64 column = 0; column < columns; column += kTileRows) {
      Square square;
      for (int i = 0; i < 16; ++i)
        square.row[i] = read<U>(x + (row + i) * stride + column, Whole{});
      transpose(square);
      const auto lanes = static_cast<__mmask16>(first(rows - row));
      const i64 count = columns - column < kTileRows ? columns - column : kTileRows;
      for (i64 i = 0; i < count; ++i) {
        auto* data = static_cast<std::uint16_t*>(to.data) + (column + i) * to.stride + row;
        _mm256_mask_storeu_epi16(data, lanes, (__m256i)narrowed((F)square.row[i]));
      }
    }
  }
}

void attend_tiles(const TileAttend& a) {
  const TileStrip& strip = a.strip;
  for (i64 row = 0; row < strip.rows; ++row) {
    float* s = a.scores + row * strip.stride;
    std::uint16_t* p = a.probabilities + row * strip.stride;
    const i64 to = strip.to(row), from = strip.from(row);
    const i64 covered = from == to ? 0 : whole_tiles(to, kTileRows),
              first_covered = from == to ? 0 : from / kTileRows * kTileRows;
    std::fill(p, p + first_covered, std::uint16_t{0});
    std::fill(p + covered, p + strip.columns, std::uint16_t{0});
    a.shrink[row] = 1.0F;
    if (from == to) continue;
    const float scale = form_row(strip.form, s, row, from, to, /*slopes=*/nullptr);
    F top = splat(-__builtin_inff());
    for (i64 at = first_covered; at < covered; at += kTileRows) {
      const __mmask16 lanes = seen_lanes(at, from, to);
      const F score = load(s + at, Whole{});
      top = (F)_mm512_mask_max_ps((__m512)top, lanes, (__m512)score, (__m512)top);
    }
    const float here = across(top, larger) * scale, before = a.max[row];
    const float max = here > before ? here : before, shift = finite_shift(max);
    F sum = {};
    for (i64 at = first_covered; at < covered; at += kTileRows) {
      const __mmask16 lanes = seen_lanes(at, from, to);
      const F e = exponential(fused(load(s + at, Whole{}), scale, splat(-shift)));
      const F kept = (F)_mm512_maskz_mov_ps(lanes, (__m512)e);
      write(p + at, narrowed(dropped(strip, row * strip.stride + at, lanes, kept)), Whole{});
      sum += kept;
    }
    if (before != max) a.shrink[row] = exponential(splat(before - max))[0];
    a.sum[row] = a.sum[row] * a.shrink[row] + across(sum, added);
    a.max[row] = max;
  }
}

// Processes two queries at a time, because tiles multiply pairs of 16-bit values.
void attend_grad_tiles(const TileAttendGrad& a) {
  const TileStrip& strip = a.strip;
  const bool capped = strip.form.cap > 0.0F;
  for (i64 row = 0; row < kTileInner; row += 2) {
    i64 to[2], from[2];
    float scale[2];
    F log_sum[2], mean[2];
    for (int i = 0; i < 2; ++i) {
      const bool there = row + i < strip.rows;
      to[i] = there ? strip.to(row + i) : 0;
      from[i] = there ? strip.from(row + i) : 0;
      scale[i] = form_row(strip.form,
                          a.scores + (row + i) * strip.stride,
                          row + i,
                          from[i],
                          to[i],
                          capped ? a.cap_slopes + i * strip.stride : nullptr);
      log_sum[i] = splat(there ? -finite_shift(a.log_sum[row + i]) : 0.0F);
      mean[i] = splat(there ? a.mean[row + i] : 0.0F);
    }
    std::uint16_t* const p_words = a.probabilities.at(a.query, 0) + row * kTileRows;
    std::uint16_t* const d_words = a.dscores_pairs.at(a.query, 0) + row * kTileRows;
    for (i64 column = 0; column < strip.columns; column += kTileRows) {
      H p[2], d[2];
      for (int i = 0; i < 2; ++i) {
        const i64 at = (row + i) * strip.stride + column;
        const __mmask16 lanes = seen_lanes(column, from[i], to[i]);
        const F score = load(a.scores + at, Whole{});
        const F e =
            (F)_mm512_maskz_mov_ps(lanes, (__m512)exponential(fused(score, scale[i], log_sum[i])));
        p[i] = narrowed(dropped(strip, at, lanes, e));
        // Memory of invisible keys may have any contents.
        const F share = dropped(strip, at, lanes, load(a.dprobabilities + at, Whole{}));
        F factor = splat(strip.form.scale);
        if (capped) factor *= load(a.cap_slopes + i * strip.stride + column, Whole{});
        if (a.dpairs != nullptr) {
          float* const to_pairs = a.dpairs + (row + i) * a.dpair_stride + column;
          const __m512 slope = _mm512_maskz_mul_ps(lanes, (__m512)e, (__m512)(share - mean[i]));
          _mm512_mask_storeu_ps(
              to_pairs, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to_pairs), slope));
        }
        const F slope = (share - mean[i]) * factor;
        d[i] = narrowed((F)_mm512_maskz_mul_ps(lanes, (__m512)e, (__m512)slope));
        write(a.dscores + at, d[i], Whole{});
      }
      const i64 tile = column / kTileRows * kTileValues;
      write(p_words + tile * a.probabilities.inner_tiles,
            widened(p[0]) | (widened(p[1]) << 16),
            Whole{});
      write(d_words + tile * a.dscores_pairs.inner_tiles,
            widened(d[0]) | (widened(d[1]) << 16),
            Whole{});
    }
  }
}

}  // namespace tessera::ops::cpu

#endif
