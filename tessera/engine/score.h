// SPDX-License-Identifier: Apache-2.0
// The likelihood of a text under a model: of a text alone, or of one that answers another.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// Returns the natural logarithms of the probabilities of ids[1], ids[2], ..., each given the
/// preceding tokens. A text longer than the model's positions is processed in windows that overlap
/// by half, so that each token sees at least half a window. Float64 computed from fp32 logits.
/// Throws Error{Data} for ids beyond the vocabulary. Collective if ranks share the model.
std::vector<double> log_probabilities(parallel::Executor& executor,
                                      const models::Resolved& model,
                                      const std::vector<std::int32_t>& ids);

/// The same for an encoder-decoder model: the logarithms of the probabilities of all ids of
/// `target`, each given `source`, which the encoder reads, and the preceding ids. Both include
/// their end of text. Cost: one forward of both, and fp32 logits of the whole target. Throws
/// Error{Unsupported} for a model that is not an encoder-decoder.
std::vector<double> answer_log_probabilities(parallel::Executor& executor,
                                             const models::Resolved& model,
                                             const std::vector<std::int32_t>& source,
                                             const std::vector<std::int32_t>& target);

}  // namespace tessera::engine
