// SPDX-License-Identifier: Apache-2.0
// SGD, as a base of several rules.
#pragma once

#include <memory>

#include "tessera/optim/rule.h"

namespace tessera::optim {

/// Options with torch's defaults.
struct SgdOptions {
  double lr = 1e-3, momentum = 0.0, dampening = 0.0, weight_decay = 0.0;
  bool nesterov = false;

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems);
};

/// Returns the rule. State: momentum_buffer, if there is momentum.
std::unique_ptr<Rule> sgd(SgdOptions options);

}  // namespace tessera::optim
