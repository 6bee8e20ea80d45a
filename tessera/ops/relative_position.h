// SPDX-License-Identifier: Apache-2.0
// Buckets of distances between tokens: small distances have one bucket each; larger ones share
// buckets whose size grows with the logarithm. Source: Raffel et al. 2020, "Exploring the limits of
// transfer learning with a unified text-to-text transformer", section 2.1, with the arithmetic of
// Hugging Face's models.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct RelativeBuckets {
  std::int64_t count = 32;
  std::int64_t max_distance = 128;  ///< all distances from here on share one bucket
  /// Keys after the query get half of the buckets; if false, they share the bucket of distance 0.
  bool bidirectional = true;
};

/// The minimum number of buckets.
[[nodiscard]] std::int64_t least_buckets(bool bidirectional);
/// The buckets of the distances first, first + 1, ... of a key from its query (key - query), int64
/// [number]. Throws Error{Config} for fewer than least_buckets(), and for a max_distance within the
/// buckets of single distances.
at::Tensor relative_buckets(const RelativeBuckets& rule, std::int64_t first, std::int64_t number);

}  // namespace tessera::ops
