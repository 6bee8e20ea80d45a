// SPDX-License-Identifier: Apache-2.0
// Trainings on several hosts that go on without a lost host: the same global batch on other ranks.
#pragma once

#include <optional>
#include <string>

#include "tessera/cli/host_flags.h"
#include "tessera/config/json.h"
#include "tessera/hosts/elastic_hosts.h"
#include "tessera/planner/plan.h"

namespace tessera::cli {

/// Sets run.min_hosts and run.max_hosts as DeepSpeed's --elastic_training, --min_elastic_nodes and
/// --max_elastic_nodes say.
void apply_elastic_flags(const HostFlags& flags, json::Value& source);

/// Returns whether the configuration sets run.min_hosts.
bool is_elastic(const json::Value& source);

/// Returns the plan for the largest number of ranks up to `ranks` that the configuration allows.
/// Throws the Error of `ranks` itself if none is possible.
planner::Plan plan_of_most_ranks(const json::Value& source, int ranks, const std::string& name);

/// Returns how a job with the plan `first` goes on after a loss; nothing: it does not. `hosts` is
/// the number of hosts of the hostfile. Throws Error{Config} if run.min_hosts and run.max_hosts
/// contradict it or each other.
std::optional<hosts::ElasticOptions> elastic_options(const planner::Plan& first,
                                                     const json::Value& source,
                                                     const std::string& name,
                                                     int hosts);

}  // namespace tessera::cli
