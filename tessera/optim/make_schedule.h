// SPDX-License-Identifier: Apache-2.0
// Makes the schedule of the section `scheduler`, and answers questions about it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/options.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {

/// scheduler.type and params. Problems of the parameters are added with their paths. Throws the
/// errors of schedule_factory(). `place`: of the section.
std::unique_ptr<Schedule> make_schedule(const SchedulerOptions& options,
                                        const ScheduleContext& context,
                                        const json::Place& place,
                                        config::Problems& problems);
/// The schedule as one that begins after update `start`.
std::unique_ptr<Schedule> later(std::unique_ptr<Schedule> schedule, std::int64_t start);

/// Notes for the user about parameters that have no effect.
std::vector<std::string> schedule_notes(const SchedulerOptions& options,
                                        const OptimizerOptions& optimizer);
/// A sentence for the user if a run of `steps` is shorter than its warm-up; this is allowed for
/// quick tries.
std::optional<std::string> warmup_note(const SchedulerOptions& options, std::int64_t steps);
/// Returns warnings about the learning rates of a run of `steps`: a warm-up that the run or the
/// schedule's total does not outlast, and lowest rates above the optimizer's. `params`: of the
/// curve that the run follows, whose schedule is `schedule`.
std::vector<std::string> schedule_warnings(const SchedulerOptions& options,
                                           const json::Value& params,
                                           const Schedule& schedule,
                                           const Rule& rule,
                                           std::int64_t steps);

}  // namespace tessera::optim
