// SPDX-License-Identifier: Apache-2.0
// optimizer.layer_decay: lower learning rates for layers closer to the input.
#pragma once

#include <map>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/optim/rule.h"

namespace tessera::planner {

/// The factor of the learning rate of every parameter by name: decay^(n + 2 - depth) in a model of
/// n layers (blocks with a number), where layer i from 0 has depth i + 1, what comes before the
/// first layer 0, what comes between layers or after them one more than the layers before it, and
/// the objective, often with a final norm, n + 2. A tied parameter has the depth of the first block
/// that uses it. Source: Clark et al. 2020, "ELECTRA: pre-training text encoders as discriminators
/// rather than generators".
std::map<std::string, double> layer_factors(const nn::Model& model, double decay);
/// Tells of a decay that the model or the rule cannot follow.
void check_layer_decay(double decay,
                       const nn::Model& model,
                       const optim::Rule& rule,
                       config::Problems& problems,
                       const config::Origins& origins);

}  // namespace tessera::planner
