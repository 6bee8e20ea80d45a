// SPDX-License-Identifier: Apache-2.0
// optimizer.groups: parameters, selected by name, with their own learning rate or weight decay, or
// without training.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/freezing.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::optim {
class Rule;
}

namespace tessera::parallel {

struct ParamGroup {
  std::string pattern;
  text::tokenizers::PatternPtr regex;  ///< searched anywhere in the name, with a limit of steps
  std::set<std::string> names = {};    ///< whole names, instead of a pattern
  std::optional<double> lr, weight_decay;
  bool frozen = false;  ///< for the whole training
  std::optional<Moment> frozen_until = {}, frozen_from = {};
  json::Place place = {};
};

/// Reads the list; errors are added to `problems` with their places.
std::vector<ParamGroup> read_param_groups(const json::Value& groups, config::Problems& problems);
/// The first group whose pattern matches in `name`, or nullptr.
const ParamGroup* group_of(const std::vector<ParamGroup>& groups, const std::string& name);
/// The names of the parameters that are trained in at least a part of the training.
std::vector<std::string> trained_names(const nn::Model& model,
                                       const std::vector<ParamGroup>& groups);
/// Reports a group that matches no parameter, which is a typing mistake, and a model without a
/// trained parameter.
void check_param_groups(const std::vector<ParamGroup>& groups,
                        const nn::Model& model,
                        config::Problems& problems);
/// Returns whether the parameter of that name is frozen for the whole training; empty if no group
/// freezes any.
std::function<bool(const std::string&)> frozen_by(std::vector<ParamGroup> groups);

/// Reports rates of groups that the rule cannot apply: a group's rate is a multiple of the rate
/// that the schedule changes.
void check_group_rates(const optim::Rule& rule,
                       const std::vector<ParamGroup>& groups,
                       config::Problems& problems);
/// The value that optimizer.weight_decay_schedule changes: the rule's weight decay or, if only
/// groups have one, the largest of theirs.
double weight_decay_of(const optim::Rule& rule, const std::vector<ParamGroup>& groups);

}  // namespace tessera::parallel
