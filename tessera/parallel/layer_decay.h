// SPDX-License-Identifier: Apache-2.0
// optimizer.layer_decay: lower learning rates for layers closer to the input.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/optim/rule.h"

namespace tessera::parallel {

/// The depth of every parameter, by name, in a model of n layers (blocks with a number). Layer i,
/// counted from 0, has depth i + 1; blocks before the first layer have depth 0; blocks between or
/// after layers have one more than the layers before them; the objective, often with a final norm,
/// has n + 2. A tied parameter has the depth of the first block that uses it.
std::map<std::string, std::int64_t> layer_depths(const nn::Model& model);
/// The factor of every parameter's learning rate, by name: decay^(n + 2 - depth). Source: Clark et
/// al. 2020, "ELECTRA: pre-training text encoders as discriminators rather than generators".
std::map<std::string, double> layer_factors(const nn::Model& model, double decay);
/// Reports the key `path` if the model has no layers.
void check_layers(const char* path,
                  const nn::Model& model,
                  config::Problems& problems,
                  const config::Origins& origins);
/// Reports a decay that the model or the rule cannot apply.
void check_layer_decay(double decay,
                       const nn::Model& model,
                       const optim::Rule& rule,
                       config::Problems& problems,
                       const config::Origins& origins);

}  // namespace tessera::parallel
