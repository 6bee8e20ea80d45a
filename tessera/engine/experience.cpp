// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/experience.h"

#include "tessera/base/error.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

std::uint64_t ExperienceKind::memory_beside(const planner::Plan& /*plan*/,
                                            std::uint64_t available,
                                            int count) const {
  TESSERA_ASSERT(count == 0);
  return available;
}

int ExperienceKind::run_divided(const planner::PlanWithData& /*plan*/,
                                comm::World& /*job*/,
                                const data::Dataset& /*train_data*/,
                                const Train& /*train*/) const {
  throw Error(Error::Kind::Bug,
              "a task has extra ranks, and its kind of experience has no work for them",
              "override ExperienceKind::run_divided()");
}

Registry<const ExperienceKind*>& experiences() {
  static Registry<const ExperienceKind*> registry("kind of experience");
  return registry;
}

const ExperienceKind* experience_of(const tasks::Task* task) {
  if (task == nullptr) return nullptr;
  const std::string name = task->experience();
  return name.empty() ? nullptr : experiences().get(name);
}

}  // namespace tessera::engine
