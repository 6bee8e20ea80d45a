// SPDX-License-Identifier: Apache-2.0
// Makes the rule of the section `optimizer`, and answers questions about it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/options.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

/// Returns `params`, or an empty object at `place` if there are none.
json::Value params_or(const json::Value& params, const json::Place& place);
/// optimizer.type and params. Problems of the parameters are added with their paths. Throws
/// Error{Config} for an unknown type. `place`: of the section.
std::unique_ptr<Rule> make_rule(const OptimizerOptions& options,
                                const json::Place& place,
                                config::Problems& problems);
/// The rule of options that may have errors, which are reported elsewhere; nullptr if it cannot be
/// made.
std::unique_ptr<Rule> rule_if_any(const OptimizerOptions& options);
/// For an optimizer with an unknown name: checks its parameters against the one with the nearest
/// name, or against AdamW. The intended one may have other parameters, so an unknown key is not
/// reported.
void check_params_of_unknown(const OptimizerOptions& options,
                             const json::Place& place,
                             config::Problems& problems);

/// The requirements that an optimizer has of the communication between ranks.
struct ExchangeNeeds {
  bool compressed = false;     ///< a CompressedRule
  bool local_weights = false;  ///< it is also one of local weights
  bool fused = false;          ///< it also sends all parameters as one vector
};
/// Those of AdamW if none is configured. Nothing is checked.
ExchangeNeeds exchange_needs(const OptimizerOptions& options);

/// Notes for the user about parameters that have no effect.
std::vector<std::string> optimizer_notes(const OptimizerOptions& options);
/// Sets hidden_size of a mu-P rule if the configuration leaves it to the model.
void fill_width(OptimizerOptions& options, std::int64_t hidden_size);
/// optimizer.params completed with the defaults.
json::Value complete_optimizer_params(const OptimizerOptions& options);

}  // namespace tessera::optim
