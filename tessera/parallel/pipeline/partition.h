// SPDX-License-Identifier: Apache-2.0
// Cuts a row of blocks into parts of neighbours. Pure arithmetic.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace tessera::parallel {

/// Bounds of the parts of n blocks, parts + 1 of them: n / parts each, and one more for the first n
/// mod parts. With n <= parts the last parts are empty. Source: DeepSpeed's partition_uniform.
std::vector<int> uniform_bounds(int n, int parts);
/// Bounds of stages * chunks parts: every chunk has n / chunks blocks, and of its parts the last
/// have one more where the stages do not divide them. n is a multiple of the chunks.
/// Source: Colossal-AI's partition_uniform.
std::vector<int> uniform_last_bounds(int n, int stages, int chunks = 1);

/// Bounds whose heaviest part is as light as it can be, every part with at least one block; of
/// those the ones with the smallest sum of squares, so that the others are even as well. Weights
/// are not negative, parts <= weights. Cost: blocks^2 x parts.
std::vector<int> balanced_bounds(std::span<const double> weights, int parts);
/// The same among the bounds whose parts are all allowed: fits(part, first block, after the last).
/// Empty where there are none.
std::vector<int> balanced_bounds(std::span<const double> weights,
                                 int parts,
                                 const std::function<bool(int, int, int)>& fits);

}  // namespace tessera::parallel
