// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/early_updates.h"

#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/memory/device.h"
#include "tessera/optim/eight_bit.h"
#include "tessera/optim/make_rule.h"

namespace tessera::planner {
namespace {

constexpr const char* kKey = "zero_optimization.offload_optimizer.super_offload";

/// True for an unknown name too, which another rule reports.
bool on_cpu(const TrainConfig& config) {
  try {
    return memory::device_kind(config.run.device) == DeviceKind::Cpu;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

void check_early_updates(const TrainConfig& config,
                         config::Problems& problems,
                         const config::Origins& origins) {
  const parallel::OffloadKeys& offload = config.zero_optimization.offload_optimizer;
  if (!offload.super_offload) return;
  const auto add = [&](std::string what, std::string fix) {
    problems.add(origins.place(kKey), kKey, std::move(what), std::move(fix));
  };
  if (offload.device != config::OffloadDevice::Cpu)
    add("needs masters and states in the memory of the host",
        "set zero_optimization.offload_optimizer.device to \"cpu\", or this to false");
  const auto weights = config.zero_optimization.offload_param.device;
  if (!on_cpu(config) && weights && *weights != config::OffloadDevice::None)
    add("not built yet together with offload_param, whose weights the update on the host writes",
        "remove one of them");
  if (config.gradient_clip_value > 0)
    add("needs gradients whose elements are not clipped one by one",
        "set gradient_clip_value to 0, or this to false");
  const std::unique_ptr<optim::Rule> rule = optim::rule_if_any(config.optimizer);
  if (rule == nullptr) return;
  const optim::ParamFacts matrix = {
      .name = "weight", .rows = 4096, .columns = 4096, .matrix = true};
  const bool narrow = config.bf16.enabled && config.bf16.bf16_optimizer_states;
  const bool alone = rule->compressed() == nullptr && !narrow &&
                     rule->scope(matrix) == optim::Scope::Elementwise &&
                     optim::kept_in(*rule, matrix, 0) == optim::KeptIn::Type;
  if (!alone)
    add("needs an optimizer that updates every element independently, with states in fp32, and "
        "not " +
            config.optimizer.type,
        "set optimizer.type to \"AdamW\", or this to false");
}

std::optional<std::string> early_updates_note(const TrainConfig& config) {
  if (!config.zero_optimization.offload_optimizer.super_offload || !on_cpu(config))
    return std::nullopt;
  return std::string(kKey) +
         " has no effect here: ranks compute on the CPU, whose update has nothing to overlap with";
}

}  // namespace tessera::planner
