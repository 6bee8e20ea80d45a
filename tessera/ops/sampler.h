// SPDX-License-Identifier: Apache-2.0
// Samples the next token from logits.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct SamplerOptions {
  double temperature = 1.0;  ///< 0: greedy (the lowest id among equal logits)
  std::int64_t top_k = 0;    ///< 0: all
  double top_p = 1.0;
};
/// Samples from the first `vocab` entries of logits_V (fp32): temperature, then top-k, then
/// nucleus; the random number is Philox(seed)(position), so a sequence depends only on its seed.
std::int64_t sample_token(const at::Tensor& logits_V,
                          std::int64_t vocab,
                          const SamplerOptions& options,
                          std::uint64_t seed,
                          std::int64_t position);

}  // namespace tessera::ops
