// SPDX-License-Identifier: Apache-2.0
// The next token out of logits.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct SamplerOptions {
  double temperature = 1.0;  ///< 0: greedy (lowest id among equals)
  std::int64_t top_k = 0;    ///< 0: all
  double top_p = 1.0;
};
/// Draws from the first `vocab` entries of logits_V (fp32): temperature, then top-k, then nucleus;
/// the random number is Philox(seed)(position), so a text depends on its seed alone.
std::int64_t sample_token(const at::Tensor& logits_V,
                          std::int64_t vocab,
                          const SamplerOptions& options,
                          std::uint64_t seed,
                          std::int64_t position);

}  // namespace tessera::ops
