// SPDX-License-Identifier: Apache-2.0
// BMTrain's Linear and Cosine, whose names are also Hugging Face's linear and cosine.
#pragma once

#include "tessera/optim/schedule.h"

namespace tessera::optim {

/// Names of schedules are case-insensitive, so the parameters decide which library is meant:
/// start_lr, warmup_iter or end_iter are BMTrain's.
bool are_bmtrain_params(const json::Value& params);
std::unique_ptr<Schedule> make_bmtrain_linear(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins);
std::unique_ptr<Schedule> make_bmtrain_cosine(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins);

}  // namespace tessera::optim
