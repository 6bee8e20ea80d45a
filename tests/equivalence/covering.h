// SPDX-License-Identifier: Apache-2.0
// A selection of the cells of a matrix in which every pair of values stands together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

namespace tessera::testing {

/// Cells in which every pair of values of two dimensions that stands together in any cell stands
/// together once: the one that adds most pairs next, until none is missing. `C` has kDimensions
/// and `index`, the number of its value in each of them.
template <class C>
std::vector<C> covering(const std::vector<C>& cells) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  const auto pairs_of = [](const C& cell) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < C::kDimensions; ++a) {
      for (std::size_t b = a + 1; b < C::kDimensions; ++b)
        pairs.emplace_back(a, cell.index[a], b, cell.index[b]);
    }
    return pairs;
  };
  std::set<Pair> missing;
  for (const C& cell : cells) {
    for (const Pair& pair : pairs_of(cell))
      missing.insert(pair);
  }
  std::vector<C> chosen;
  while (!missing.empty()) {
    const auto adds = [&](const C& cell) {
      const std::vector<Pair> pairs = pairs_of(cell);
      return std::count_if(
          pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.contains(pair); });
    };
    const C* best = nullptr;
    std::ptrdiff_t most = 0;
    for (const C& cell : cells) {
      const std::ptrdiff_t count = adds(cell);
      if (count <= most) continue;
      most = count;
      best = &cell;
    }
    for (const Pair& pair : pairs_of(*best))
      missing.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

}  // namespace tessera::testing
