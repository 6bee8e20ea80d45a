// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/place.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/offload.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/stage_advice.h"

namespace tessera::planner {

Registry<PlanRule>& plan_rules() {
  static Registry<PlanRule> rules("rule about plans");
  return rules;
}

namespace {

/// The plan as the rules see it, with what they add.
PlanWithData ruled(const PlanWithData& plan, const Hosts& hosts) {
  Needs needs;
  if (hosts.ranks_of_each > 0) needs.traveling = travel_bytes(plan, hosts.ranks_of_each);
  std::vector<std::string> notes;
  std::vector<Input> inputs = plan.inputs();
  const InputLog log(inputs);
  for (const std::string& name : plan_rules().names())
    plan_rules().get(name).place(plan, hosts, needs, notes);
  return with(with(with_notes(plan, std::move(notes)), needs), inputs);
}

}  // namespace

PlacedPlan place(const PlanWithData& plan, const Hosts& hosts) {
  PlanWithData out = ruled(plan, hosts);
  std::vector<std::string> notes;
  check_offload_folder(out, notes);
  if (!hosts.available) {
    MemoryEstimate unasked;
    unasked.unknown = "memory was not checked";
    return {with_notes(std::move(out), std::move(notes)), std::move(unasked)};
  }
  const std::uint64_t available = hosts.available();
  MemoryEstimate need = check_memory(out, available);
  Saving saving = saving_as_memory_allows(out, need, available);
  RunPlan run = out.run();
  run.saves_in_background = saving.in_background;
  out = with(std::move(out), std::move(run));
  check_offload_space(out, hosts.ranks_of_each > 0 ? hosts.ranks_of_each : out.ranks());
  if (!saving.note.empty()) notes.push_back(std::move(saving.note));
  if (auto advice = stage_advice(out, available)) notes.push_back(*std::move(advice));
  return {with_notes(std::move(out), std::move(notes)), std::move(need)};
}

PlacedPlan place(const PlanWithData& plan, std::uint64_t available) {
  return place(plan, Hosts{.ranks_of_each = 0, .available = [available] { return available; }});
}

}  // namespace tessera::planner
