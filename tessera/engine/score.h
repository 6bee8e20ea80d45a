// SPDX-License-Identifier: Apache-2.0
// How likely a model finds a text.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// Natural logarithms of the probabilities of ids[1], ids[2], ..., each given the tokens before it.
/// A text longer than the model's positions is read in windows that overlap by half, so that each
/// token sees at least half a window. Float64 from fp32 logits. Error{Data} for ids beyond the
/// vocabulary. Collective where the model is shared by ranks.
std::vector<double> log_probabilities(parallel::Executor& executor,
                                      const models::Resolved& model,
                                      const std::vector<std::int32_t>& ids);

}  // namespace tessera::engine
