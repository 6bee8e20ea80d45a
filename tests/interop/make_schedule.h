// SPDX-License-Identifier: Apache-2.0
// A schedule from the text of its parameters.
#pragma once

#include <memory>
#include <string>

#include "tessera/optim/schedule.h"

namespace tessera::optim {

struct MadeSchedule {
  std::unique_ptr<Schedule> schedule;
  config::Problems problems;

  [[nodiscard]] double lr(std::int64_t update) const { return schedule->lr(update); }
};

inline MadeSchedule make_schedule(const std::string& type,
                                  const std::string& params,
                                  const ScheduleContext& context = {.base_lr = 1e-3}) {
  MadeSchedule made;
  config::Origins origins;
  made.schedule =
      schedule_factory(type)(json::parse(params, "config.json"), context, made.problems, origins);
  return made;
}

}  // namespace tessera::optim
