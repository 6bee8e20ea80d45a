// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/expert_load.h"

#include <utility>

namespace tessera::nn {

void ExpertLoad::add(const std::vector<std::int64_t>& chosen_E, std::int64_t dropped) {
  counts_.chosen_E.resize(chosen_E.size(), 0);
  for (std::size_t e = 0; e < chosen_E.size(); ++e)
    counts_.chosen_E[e] += chosen_E[e];
  counts_.dropped += dropped;
}

ExpertLoad::Counts ExpertLoad::take() {
  return std::exchange(counts_, {});
}

}  // namespace tessera::nn
