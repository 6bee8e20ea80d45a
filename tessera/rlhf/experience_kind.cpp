// SPDX-License-Identifier: Apache-2.0
// Registers reinforcement learning as a kind of experience, so that engines and runs find it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/experience.h"
#include "tessera/losses/ppo.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/estimators.h"
#include "tessera/rlhf/generators.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/rollouts.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::rlhf {
namespace {

/// Returns how the completions of a rollout are made and learned.
std::string rollout_formula(const tasks::RlOptions& options) {
  std::string out = fmt::format(
      "rollout: {} of each prompt, {} of each rollout",
      options.samples == 1 ? "1 completion" : fmt::format("{} completions", options.samples),
      options.updates() == 1 ? "1 update" : fmt::format("{} updates", options.updates()));
  if (options.dynamic_rounds > 0) {
    out += fmt::format("; groups of equal rewards are replaced up to {} times",
                       options.dynamic_rounds);
  }
  if (options.truncated == tasks::Truncated::Mask)
    out += fmt::format("; completions of {} tokens without an end are left out of the loss",
                       options.max_new_tokens);
  return out;
}

class RolloutExperience final : public engine::ExperienceKind {
 public:
  [[nodiscard]] std::unique_ptr<engine::Experience> make(
      const planner::PlanWithData& plan,
      comm::World& world,
      engine::TrainState& policy,
      const data::Dataset& train,
      engine::ExtraRanks* extra_ranks) const override {
    auto* const generators = dynamic_cast<Generators*>(extra_ranks);
    TESSERA_ASSERT(extra_ranks == nullptr || generators != nullptr);
    return make_rollouts(plan, world, policy, train, generators);
  }
  [[nodiscard]] std::uint64_t memory_beside(const planner::Plan& plan,
                                            std::uint64_t available,
                                            int count) const override {
    return memory_beside_generators(plan, available, count);
  }
  int run_divided(const planner::PlanWithData& plan,
                  comm::World& job,
                  const data::Dataset& train_data,
                  const Train& train) const override {
    return rlhf::run_divided(plan, job, train_data, train);
  }
  [[nodiscard]] std::vector<std::string> formula(const tasks::Task& task) const override {
    const tasks::Rl* const rl = tasks::as_rl(&task);
    TESSERA_ASSERT(rl != nullptr);
    std::vector<std::string> out = advantage_formula(*rl);
    const tasks::RlOptions& options = rl->options();
    if (rl->has_critic())
      out.push_back("critic: " + losses::ppo_critic_formula(options.critic.clip_range) +
                    ", R = A + V");
    out.push_back(rollout_formula(options));
    return out;
  }
};

TESSERA_EXPERIENCE("rollouts", RolloutExperience);

}  // namespace
}  // namespace tessera::rlhf
