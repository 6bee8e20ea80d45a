// SPDX-License-Identifier: Apache-2.0
// optimizer.groups: parameters, found by name, with a learning rate, a decay or no training of
// their own.
#pragma once

#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/block.h"

namespace tessera::planner {

struct ParamGroup {
  std::string pattern;
  std::regex regex;  ///< ECMAScript, searched anywhere in the name
  std::optional<double> lr, weight_decay;
  bool frozen = false;
  json::Place place;
};

/// Reads the list; what is wrong goes to `problems` with its place.
std::vector<ParamGroup> read_param_groups(const json::Value& groups, config::Problems& problems);
/// The first group whose pattern is found in `name`, or nullptr.
const ParamGroup* group_of(const std::vector<ParamGroup>& groups, const std::string& name);
/// A group that fits no parameter is a typing mistake; a model without a trained parameter too.
void check_param_groups(const std::vector<ParamGroup>& groups,
                        const nn::Model& model,
                        config::Problems& problems);
/// Whether the parameter of that name is not trained; empty without such a group.
std::function<bool(const std::string&)> frozen_by(std::vector<ParamGroup> groups);

}  // namespace tessera::planner
