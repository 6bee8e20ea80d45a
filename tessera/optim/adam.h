// SPDX-License-Identifier: Apache-2.0
// Adam, for the rules that are made of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/optim/params.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

/// With the defaults of DeepSpeed's and Colossal-AI's Adam.
struct AdamOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  bool bias_correction = true, torch_adam = false, adam_w_mode = true;
  std::optional<bool> adamw_mode = {};  ///< another name of adam_w_mode; check() joins them
  std::int64_t hold_steps = 0;
  ConstructorWords words = {};

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems);
};

/// State: exp_avg, exp_avg_sq.
std::unique_ptr<Rule> adam(AdamOptions options);

}  // namespace tessera::optim
