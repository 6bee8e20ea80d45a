// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/rule.h"

#include <algorithm>
#include <cmath>

#include "tessera/optim/params.h"

namespace tessera::optim {

Registry<RuleFactory>& rules() {
  static Registry<RuleFactory> registry("optimizer");
  return registry;
}

RuleFactory rule_factory(std::string_view type) {
  return find(rules(), "optimizer", type, {});
}

double gradient_norm(std::span<const double> chunk_sums) {
  double sum = 0.0;
  for (const double chunk : chunk_sums)
    sum += chunk;
  return std::sqrt(sum);
}

double clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera::optim
