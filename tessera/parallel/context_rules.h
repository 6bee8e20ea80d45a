// SPDX-License-Identifier: Apache-2.0
// The requirements of context parallelism (parallel.context) on the model, the sequence length and
// the optimizer. Each problem names the key to change and its place.
#pragma once

#include <cstdint>
#include <set>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"

namespace tessera::parallel {

/// The parts of a configuration on which the sharing of tokens depends.
struct ContextChoice {
  const ParallelOptions& parallel;
  const optim::OptimizerOptions& optimizer;
  /// 0: unknown, or samples are padded to a number of tokens that ranks can share.
  std::int64_t sequence_length = 0;
  std::set<std::int64_t> heads;  ///< numbers of heads of the layers; empty: unknown
  bool own = false;              ///< no section describes the model
};
/// Does nothing if context.size is 1.
void check_context(const ContextChoice& choice,
                   const nn::Model& model,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::parallel
