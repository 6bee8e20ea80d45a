// SPDX-License-Identifier: Apache-2.0
// A selection of the cells of a matrix that contains every pair of values, or every triple.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace tessera::test {

/// Numbers all tuples of values of `strength` of the N dimensions.
template <std::size_t N>
class ValueGroups {
 public:
  using Index = std::array<std::size_t, N>;

  ValueGroups(const Index& sizes, int strength) : sizes_(sizes) {
    for (unsigned chosen = 0; chosen < 1U << N; ++chosen) {
      if (std::popcount(chosen) != strength) continue;
      groups_.push_back({{}, count_});
      std::size_t ways = 1;
      for (std::size_t d = 0; d < N; ++d) {
        if ((chosen >> d & 1U) == 0) continue;
        groups_.back().first.push_back(d);
        ways *= sizes[d];
      }
      count_ += ways;
    }
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Calls `f` with the number of the cell's tuple in each choice of dimensions.
  template <class F>
  void each(const Index& index, const F& f) const {
    for (const auto& [dimensions, begin] : groups_) {
      std::size_t number = 0;
      for (const std::size_t d : dimensions)
        number = number * sizes_[d] + index[d];
      f(begin + number);
    }
  }

 private:
  Index sizes_;
  std::vector<std::pair<std::vector<std::size_t>, std::size_t>> groups_;
  std::size_t count_ = 0;
};

template <class C>
ValueGroups<C::kDimensions> groups_of(const std::vector<C>& cells, int strength) {
  std::array<std::size_t, C::kDimensions> sizes{};
  for (const C& cell : cells) {
    for (std::size_t d = 0; d < sizes.size(); ++d)
      sizes[d] = std::max(sizes[d], cell.index[d] + 1);
  }
  return {sizes, strength};
}

/// Selects cells so that every tuple of values of any `strength` dimensions that occurs in `cells`
/// occurs in the selection. Each time it takes the cell that adds most missing tuples, the first of
/// equals, until none is missing. `C` has kDimensions and `index`, the number of its value in each
/// of them.
template <class C>
std::vector<C> covering(const std::vector<C>& cells, int strength = 2) {
  const auto groups = groups_of(cells, strength);
  std::vector<char> missing(groups.count(), 0);
  for (const C& cell : cells)
    groups.each(cell.index, [&](std::size_t group) { missing[group] = 1; });
  const auto adds = [&](const C& cell) {
    std::size_t count = 0;
    groups.each(cell.index, [&](std::size_t group) { count += missing[group] != 0 ? 1 : 0; });
    return count;
  };
  // The count of a cell never grows: it need not be counted again where it was already too small.
  std::vector<std::size_t> at_most(cells.size(), std::numeric_limits<std::size_t>::max());
  std::vector<C> chosen;
  while (true) {
    const C* best = nullptr;
    std::size_t most = 0;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (at_most[c] <= most) continue;
      at_most[c] = adds(cells[c]);
      if (at_most[c] <= most) continue;
      most = at_most[c];
      best = &cells[c];
    }
    if (best == nullptr) return chosen;
    groups.each(best->index, [&](std::size_t group) { missing[group] = 0; });
    chosen.push_back(*best);
  }
}

/// Counts the tuples of values of any `strength` dimensions that occur in `all` but not in
/// `chosen`.
template <class C>
std::size_t left_out(const std::vector<C>& all, const std::vector<C>& chosen, int strength) {
  const auto groups = groups_of(all, strength);
  std::vector<char> missing(groups.count(), 0);
  for (const C& cell : all)
    groups.each(cell.index, [&](std::size_t group) { missing[group] = 1; });
  for (const C& cell : chosen)
    groups.each(cell.index, [&](std::size_t group) { missing[group] = 0; });
  return static_cast<std::size_t>(std::count(missing.begin(), missing.end(), 1));
}

}  // namespace tessera::test
