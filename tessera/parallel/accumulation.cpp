// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/action.h"

namespace tessera::parallel {

std::vector<Action> accumulation_schedule(int micro_batches) {
  std::vector<Action> actions;
  actions.reserve(3 * static_cast<std::size_t>(micro_batches));
  for (int m = 0; m < micro_batches; ++m)
    actions.push_back({.kind = ActionKind::Load, .micro = m});
  for (int m = 0; m < micro_batches; ++m) {
    actions.push_back({.kind = ActionKind::Forward, .micro = m});
    actions.push_back({.kind = ActionKind::Backward, .micro = m});
  }
  return actions;
}

}  // namespace tessera::parallel
