// SPDX-License-Identifier: Apache-2.0
// The grid of ranks: named axes from outermost to innermost. There is one per run; it is passed as
// an argument and never global.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::mesh {

/// Atomic axes, outermost first: the last one varies fastest over ranks. `Ep` is the innermost part
/// of data parallelism: ranks along it train different samples and hold different experts.
enum class Axis : std::uint8_t { Pp, DpRep, DpShard, Ep, Cp, TpDepth, TpRow, TpCol };
inline constexpr int kNumAxes = 8;
std::string_view name(Axis axis) noexcept;

/// A set of axes. `dp()` and `tp()` are the products of axes that users configure.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis a : axes)
      bits_ = static_cast<std::uint16_t>(bits_ | (1U << static_cast<unsigned>(a)));
  }
  /// The ranks with different samples.
  static constexpr AxisSet dp() { return {Axis::DpRep, Axis::DpShard, Axis::Ep}; }
  /// The ranks with different tokens: other samples, or another part of the same ones.
  static constexpr AxisSet tokens() { return dp() | AxisSet{Axis::Cp}; }
  static constexpr AxisSet tp() { return {Axis::TpDepth, Axis::TpRow, Axis::TpCol}; }
  static constexpr AxisSet all() { return AxisSet{Axis::Pp} | tokens() | tp(); }

  [[nodiscard]] constexpr bool has(Axis axis) const {
    return (bits_ >> static_cast<unsigned>(axis)) & 1U;
  }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// One bit per axis, Pp lowest; a key that is the same on all ranks.
  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }
  constexpr bool operator==(const AxisSet&) const = default;

  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return of(a.bits_ | b.bits_); }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) { return of(a.bits_ & b.bits_); }
  /// The axes of `a` that are not in `b`.
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) { return of(a.bits_ & ~b.bits_); }

 private:
  static constexpr AxisSet of(int bits) {
    AxisSet out;
    out.bits_ = static_cast<std::uint16_t>(bits);
    return out;
  }

  std::uint16_t bits_ = 0;
};

/// The sizes of the axes. Their product is the number of ranks.
class Mesh {
 public:
  /// One size for each axis.
  struct Sizes {
    /// Stands first, so that sizes cannot be given without the names of their axes.
    struct Named {
    } named = {};
    int pp = 1, dp_rep = 1, dp_shard = 1, ep = 1, cp = 1, tp_depth = 1, tp_row = 1, tp_col = 1;
  };

  /// Throws Error{Config} with the whole product if a size is below 1 or the product is too large.
  explicit Mesh(const Sizes& sizes);
  static Mesh data_parallel(int ranks);

  [[nodiscard]] int size() const;  ///< number of ranks
  [[nodiscard]] int size(Axis axis) const;
  [[nodiscard]] int size(AxisSet axes) const;
  [[nodiscard]] int coordinate(int rank, Axis axis) const;
  /// Returns the position of `rank` in its group over `axes`; the last axis varies fastest.
  [[nodiscard]] int index(int rank, AxisSet axes) const;
  /// Returns the ranks that differ from `rank` only along `axes`, in order of index(); contains
  /// `rank`.
  [[nodiscard]] std::vector<int> group(int rank, AxisSet axes) const;
  /// True if `rank` has coordinate 0 on each of `axes`.
  [[nodiscard]] bool is_first(int rank, AxisSet axes) const;
  /// Returns "pp 1 x dp 2 x cp 1 x tp 1".
  [[nodiscard]] std::string text() const;

 private:
  std::array<int, kNumAxes> sizes_;
};

}  // namespace tessera::mesh
