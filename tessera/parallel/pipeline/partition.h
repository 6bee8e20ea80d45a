// SPDX-License-Identifier: Apache-2.0
// Partitions a sequence of blocks into contiguous parts. Pure arithmetic.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace tessera::parallel {

/// Returns parts + 1 bounds for n blocks: n / parts blocks each, and one more for the first n mod
/// parts parts. With n <= parts the last parts are empty. Source: DeepSpeed's partition_uniform.
std::vector<int> uniform_bounds(int n, int parts);
/// Returns the bounds of stages * chunks parts: every chunk has n / chunks blocks; if the stages do
/// not divide them, the last parts of a chunk have one more. n must be a multiple of the chunks.
/// Source: Colossal-AI's partition_uniform.
std::vector<int> uniform_last_bounds(int n, int stages, int chunks = 1);

/// Returns the bounds that minimize the heaviest part, with at least one block in every part; among
/// those, the bounds with the smallest sum of squares, so that the other parts are balanced too.
/// Weights must not be negative, and parts <= number of weights. Cost: blocks^2 x parts.
std::vector<int> balanced_bounds(std::span<const double> weights, int parts);
/// The same, restricted to parts for which fits(part, first block, end of blocks) is true. Returns
/// an empty vector if there are no such bounds.
std::vector<int> balanced_bounds(std::span<const double> weights,
                                 int parts,
                                 const std::function<bool(int, int, int)>& fits);

}  // namespace tessera::parallel
