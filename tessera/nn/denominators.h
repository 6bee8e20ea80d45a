// SPDX-License-Identifier: Apache-2.0
// Denominators of loss terms (Term::denominator) that every training counts, besides those of its
// objective. They are the last entries of the list of denominators.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::nn {

// No objective counts so far, so that a wrong number is not taken for one of these.
inline constexpr int kPerMicroBatch = -1001;  ///< micro-batches with samples
inline constexpr int kPerSample = -1002;
inline constexpr int kPerToken = -1003;  ///< tokens of "input_ids" that are not padding

/// The index of `denominator` in a list of `size` entries; `size` or more if there is none.
inline std::size_t denominator_index(int denominator, std::size_t size) {
  if (denominator >= 0) return static_cast<std::size_t>(denominator);
  if (denominator > kPerMicroBatch || denominator < kPerToken) return size;
  const auto back = static_cast<std::size_t>(kPerMicroBatch - denominator + 1);
  return back <= size ? size - back : size;
}

/// The counts of a micro-batch in the order of the list: tokens, samples, micro-batches. Of the
/// ranks that share the tokens (`shared`, or nullptr), the first one counts samples.
std::vector<double> common_denominators(const Batch& batch, const ContextParallel* shared);
/// 1 for each of this rank's tokens that is not padding, else 0: [B, T]; undefined without padding.
at::Tensor token_mask(const Batch& batch, const ContextParallel* shared);

}  // namespace tessera::nn
