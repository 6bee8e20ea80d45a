// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expected_speed.h"

#include <array>
#include <cerrno>

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "tessera/models/family.h"
#include "tessera/ops/peak.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

constexpr double kFlopsOfToken = 6.0;  // for each active parameter: 2 forward, 4 backward
constexpr double kUtilization = 0.5;
constexpr double kWorthIt = 1e14;  // FLOPs: about a minute of a few cores

/// The peak of one rank in FLOP/s, measured in a child process; 0 if that fails.
double peak_of_rank(const planner::Plan& plan) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return 0.0;
  const pid_t child = fork();
  if (child == 0) {
    double peak = 0.0;
    try {
      at::set_num_threads(static_cast<int>(planner::threads_of(plan)));
      peak = ops::peak_flops(planner::working_of(plan));
    } catch (...) {
      peak = 0.0;  // no estimate is reported
    }
    const bool told = write(ends[1], &peak, sizeof(peak)) == sizeof(peak);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  double peak = 0.0;
  if (child < 0 || read(ends[0], &peak, sizeof(peak)) != sizeof(peak)) peak = 0.0;
  close(ends[0]);
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return peak;
}

}  // namespace

double expected_flops(const planner::PlanWithData& plan) {
  const auto samples = static_cast<double>(plan.course().max_steps) *
                       static_cast<double>(planner::global_batch_of(plan));
  return kFlopsOfToken * static_cast<double>(planner::model_of(plan).active_parameters()) *
         samples * static_cast<double>(plan.data().sequence_length);
}

double expected_speed(const planner::PlanWithData& plan) {
  if (expected_flops(plan) < kWorthIt || planner::model_of(plan).num_parameters <= 0) return 0.0;
  return kUtilization * peak_of_rank(plan) * plan.ranks() /
         (kFlopsOfToken * static_cast<double>(planner::model_of(plan).active_parameters()));
}

}  // namespace tessera::engine
