// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/sampler.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"

namespace tessera::ops {

std::int64_t sample_token(const at::Tensor& logits_V,
                          std::int64_t vocab,
                          const SamplerOptions& options,
                          std::uint64_t seed,
                          std::int64_t position) {
  TESSERA_REQUIRE(vocab > 0 && vocab <= logits_V.numel(),
                  Shape,
                  "a vocabulary of " + std::to_string(vocab) + " with logits " + shape(logits_V),
                  "expected at least one logit for each token");
  return backend(logits_V.device()).sample_token(logits_V, vocab, options, seed, position);
}

}  // namespace tessera::ops
