// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/saved_bytes.h"

#include "tessera/optim/compressed.h"
#include "tessera/parallel/state_bytes.h"

namespace tessera::parallel {
namespace {

// Bytes of an element in checkpoints of compressed rules: every rank's own error feedback, and the
// owners'; with local weights, two states of every rank more.
std::int64_t error_bytes(const optim::Rule& rule, int ranks) {
  if (rule.compressed() == nullptr || ranks == 1) return 0;
  const std::int64_t of_rank = rule.compressed()->local_weights() ? 3 : 1;
  return 4 * (of_rank * ranks + 1);
}

}  // namespace

std::int64_t saved_bytes(const nn::Model& model,
                         const SavedRanks& ranks,
                         const ParameterRules& rules,
                         const optim::Rule& rule,
                         bool frozen_in_saves) {
  const auto trains = [&](const ParamInfo& info) {
    return info.trainable && !(rules.frozen && rules.frozen(info.name));
  };
  const std::int64_t errors = error_bytes(rule, ranks.data_ranks);
  std::int64_t bytes = 0;
  for (const auto& info : nn::parameters_of(model)) {
    const bool trained = trains(*info);
    if (!trained && !frozen_in_saves) continue;
    bytes += (4 + errors) * info->numel();
    if (trained) bytes += saved_state_bytes(rule, *info);
  }
  if (!ranks.residuals) return bytes;
  // Each use of a tied parameter has residuals of its own.
  for (const nn::BlockSpec& spec : model.blocks) {
    for (const auto& info : nn::declared_by(spec))
      if (trains(*info)) bytes += 2 * ranks.data_ranks * info->numel();
  }
  return bytes;
}

}  // namespace tessera::parallel
