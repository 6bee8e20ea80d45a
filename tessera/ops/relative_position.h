// SPDX-License-Identifier: Apache-2.0
// Buckets of distances between tokens: near distances have a bucket each, farther ones share
// buckets that grow with the logarithm. Source: Raffel et al. 2020, "Exploring the limits of
// transfer learning with a unified text-to-text transformer", section 2.1, in the arithmetic of
// Hugging Face's models.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct RelativeBuckets {
  std::int64_t count = 32;
  std::int64_t max_distance = 128;  ///< from here on all distances are in one bucket
  /// Keys behind the query have half of the buckets; else they share the bucket of distance 0.
  bool bidirectional = true;
};

/// The fewest buckets that such a rule can have.
[[nodiscard]] std::int64_t least_buckets(bool bidirectional);
/// The buckets of the distances first, first + 1, ... of a key from its query (key - query), int64
/// [number]. Error{Config} for fewer than least_buckets(), and for a max_distance that the buckets
/// of single distances reach.
at::Tensor relative_buckets(const RelativeBuckets& rule, std::int64_t first, std::int64_t number);

}  // namespace tessera::ops
