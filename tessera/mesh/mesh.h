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

/// Atomic axes, outermost first: the last one varies fastest over ranks.
enum class Axis : std::uint8_t { Pp, DpRep, DpShard, Cp, TpDepth, TpRow, TpCol };
inline constexpr int kNumAxes = 7;
std::string_view name(Axis axis) noexcept;

/// A set of axes. `dp()` and `tp()` are the products of axes that users configure.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis a : axes)
      bits_ = static_cast<std::uint8_t>(bits_ | (1U << static_cast<unsigned>(a)));
  }
  static constexpr AxisSet dp() { return {Axis::DpRep, Axis::DpShard}; }
  static constexpr AxisSet tp() { return {Axis::TpDepth, Axis::TpRow, Axis::TpCol}; }
  static constexpr AxisSet all() {
    return {
        Axis::Pp, Axis::DpRep, Axis::DpShard, Axis::Cp, Axis::TpDepth, Axis::TpRow, Axis::TpCol};
  }
  [[nodiscard]] constexpr bool has(Axis axis) const {
    return (bits_ >> static_cast<unsigned>(axis)) & 1U;
  }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// One bit per axis, Pp lowest; a key that is the same on all ranks.
  [[nodiscard]] constexpr std::uint8_t bits() const { return bits_; }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  std::uint8_t bits_ = 0;
};

/// The sizes of the axes. Their product is the number of ranks.
class Mesh {
 public:
  /// Throws Error{Config} with the whole product if a size is below 1 or the product is too large.
  explicit Mesh(std::array<int, kNumAxes> sizes);
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
  /// Returns "pp 1 x dp 2 x cp 1 x tp 1".
  [[nodiscard]] std::string text() const;

 private:
  std::array<int, kNumAxes> sizes_;
};

}  // namespace tessera::mesh
