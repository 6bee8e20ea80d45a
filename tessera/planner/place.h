// SPDX-License-Identifier: Apache-2.0
// Places a plan on hosts: what it needs besides its model, whether all of it fits into memory, and
// what follows from that.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {

/// The hosts of a plan. Without numbers: one host, whose memory is not checked.
struct Hosts {
  int ranks_of_each = 0;  ///< 0: all ranks are on one host
  /// Returns the bytes that all ranks of the plan may use; called after the rules. Absent: memory
  /// is not checked.
  std::function<std::uint64_t()> available = {};
};

/// A rule about plans of a kind, which its owner above the planner registers: it refuses what
/// cannot be trained, and adds what a rank needs besides the model.
struct PlanRule {
  /// Does nothing for plans of other kinds. Adds notes for the user to `notes`.
  void (*place)(const PlanWithData& plan,
                const Hosts& hosts,
                Needs& needs,
                std::vector<std::string>& notes) = nullptr;
};
Registry<PlanRule>& plan_rules();
#define TESSERA_PLAN_RULE(name, ...)                     \
  static const bool TESSERA_UNIQUE(tessera_plan_rule_) = \
      ::tessera::planner::plan_rules().add(name, ::tessera::planner::PlanRule __VA_ARGS__)

/// Calls all rules, then checks that the plan fits into the memory of its hosts. Throws the errors
/// of the rules and of check_memory(). Training waits for its checkpoints if the memory is too
/// small for copies of them (saving_as_memory_allows()). Notes the files that the rules read as
/// inputs of the plan. Pure except for reading files.
PlacedPlan place(const PlanWithData& plan, const Hosts& hosts = {});
/// The same for one host, of which the ranks may use `available` bytes.
PlacedPlan place(const PlanWithData& plan, std::uint64_t available);

}  // namespace tessera::planner
