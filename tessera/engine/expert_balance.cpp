// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expert_balance.h"

#include <algorithm>
#include <utility>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/denominators.h"
#include "tessera/nn/expert_load.h"

namespace tessera::engine {

bool ExpertBalance::has_experts(const nn::Model& model) {
  const nn::ParamInfos all = nn::parameters_of(model);
  return std::any_of(all.begin(), all.end(), [](const auto& info) { return info->stacked(); });
}

void ExpertBalance::count(const nn::Batch& batch) {
  const std::vector<double> of_micro = nn::common_denominators(batch, model_.context_parallel());
  for (std::size_t i = 0; i < counts_.size(); ++i)
    counts_[i] += of_micro[i];
}

std::vector<double> ExpertBalance::take_counts() {
  std::vector<double> out = std::exchange(counts_, {0.0, 0.0, 0.0});
  // Every stage and every tensor-parallel rank loads the same samples.
  const mesh::AxisSet same = mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet::tp();
  if (world_.group(same).index > 0) std::fill(out.begin(), out.end(), 0.0);
  return out;
}

}  // namespace tessera::engine
