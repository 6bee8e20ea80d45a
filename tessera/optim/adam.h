// SPDX-License-Identifier: Apache-2.0
// Adam, as a base of several rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/optim/params.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

/// Options with the defaults of DeepSpeed's and Colossal-AI's Adam.
struct AdamOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  bool bias_correction = true, torch_adam = false, adam_w_mode = true;
  std::optional<bool> adamw_mode = {};  ///< alias of adam_w_mode; check() merges them
  std::int64_t hold_steps = 0;
  ConstructorOptions constructor = {};

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems);
};

/// Returns the rule. State: exp_avg, exp_avg_sq.
std::unique_ptr<Rule> adam(AdamOptions options);

}  // namespace tessera::optim
