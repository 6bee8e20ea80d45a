// SPDX-License-Identifier: Apache-2.0
// The support of a distribution that is sampled with top-k and nucleus.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// The tokens that can be sampled: the `top_k` most likely ones (0: all), and of these the smallest
/// number of most likely ones that together reach the share `top_p`.
struct Support {
  std::int64_t vocab = 0;  ///< if it is a part of the vocabulary: of its first `vocab` tokens
  std::int64_t top_k = 0;
  double top_p = 1.0;
  /// True if the support is the whole vocabulary.
  [[nodiscard]] bool whole() const { return top_k == 0 && top_p >= 1.0; }
};
/// Overwrites logits with -inf where a token is not in the support; the row's label, if there are
/// labels, always is. logits_NV: fp32, contiguous; labels_N: int64 [N] on the same device,
/// or undefined. Of equal logits the lower id comes first. Cost: a pass over the logits, and a sort
/// of the most likely ones.
void keep_support_(const at::Tensor& logits_NV, const at::Tensor& labels_N, const Support& support);

}  // namespace tessera::ops
