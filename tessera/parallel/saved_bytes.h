// SPDX-License-Identifier: Apache-2.0
// The size of a checkpoint of a training.
#pragma once

#include <cstdint>

#include "tessera/nn/block.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/parameter_rules.h"

namespace tessera::parallel {

/// The values of ranks in a checkpoint.
struct SavedRanks {
  int data_ranks = 1;
  bool residuals = false;  ///< ReductionOptions::keeps_residuals()
};

/// Bytes of all ranks' pieces together: weights and states in fp32, whatever the dtypes of the run,
/// and what ranks keep of values that they rounded before they sent them. `frozen_in_saves`:
/// checkpoints contain frozen parameters. Pure.
std::int64_t saved_bytes(const nn::Model& model,
                         const SavedRanks& ranks,
                         const ParameterRules& rules,
                         const optim::Rule& rule,
                         bool frozen_in_saves);

}  // namespace tessera::parallel
