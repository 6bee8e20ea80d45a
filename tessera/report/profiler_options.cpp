// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/profiler_options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tessera/config/sections.h"

namespace tessera::report {
namespace {

constexpr double kMostSteps = 1e12;
/// A trace has several megabytes per step and rank.
constexpr double kMostTraced = 100;

const bool kHaveSections =
    config::add_section<ProfileOptions>("profile", 60, "A trace of some steps.") &&
    config::add_section<FlopsProfilerOptions>(
        "flops_profiler", 70, "Arithmetic and time of every block.") &&
    config::add_section<CommsLoggerOptions>(
        "comms_logger", 80, "Collectives by operation and size.");

}  // namespace

void ProfileOptions::describe(config::Fields& f) {
  f.field(
      "steps",
      steps,
      {.text = "First and last step that are traced: blocks, operations, collectives and waits of "
               "every rank, for Perfetto or chrome://tracing, in the folder profile of the run "
               "folder.",
       .unit = "steps",
       .min = 1,
       .default_text = "none"});
}

void ProfileOptions::check(config::Problems& problems, const config::Origins& origins) const {
  const bool whole = std::all_of(steps.begin(), steps.end(), [](double step) {
    return step >= 1 && step == std::floor(step);
  });
  const bool range = steps.size() == 2 && whole && steps[0] <= steps[1] && steps[1] < kMostSteps &&
                     steps[1] - steps[0] < kMostTraced;
  if (!steps.empty() && !range) {
    problems.add(origins.place("profile.steps"),
                 "profile.steps",
                 fmt::format("expected the first and the last of at most {} steps", kMostTraced),
                 "write [10, 12]");
  }
}

std::optional<std::pair<std::int64_t, std::int64_t>> ProfileOptions::range() const {
  if (steps.empty()) return std::nullopt;
  return std::pair(static_cast<std::int64_t>(steps.front()),
                   static_cast<std::int64_t>(steps.back()));
}

void FlopsProfilerOptions::describe(config::Fields& f) {
  f.field(
      "enabled",
      enabled,
      {.text = "Report the parameters, multiply-accumulates, time and FLOPS of every block in one "
               "step."});
  f.field("profile_step",
          profile_step,
          {.text = "The step that is measured.", .unit = "steps", .min = 1, .max = kMostSteps});
  f.field("module_depth",
          module_depth,
          {.text = "Depth of the modules in the report: 0 is the model, 1 its blocks, 2 their "
                   "operations; -1 is the deepest.",
           .min = -1,
           .max = 100});
  f.field("top_modules",
          top_modules,
          {.text = "Number of modules that are named for each depth.", .min = 1, .max = 10000});
  f.field("detailed", detailed, {.text = "Report every block and operation, not only the sums."});
  f.field("output_file",
          output_file,
          {.text = "File of the report.", .default_text = "flops_profile.txt in the run folder"});
}

void CommsLoggerOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Count the collectives by operation and size, with their time and bandwidth, in "
                   "comms.txt in the run folder."});
  f.field("verbose", verbose, {.text = "Write every collective to the log of its rank."});
  f.field("prof_all", prof_all, {.text = "Count all operations, not only those of prof_ops."});
  f.field("prof_ops",
          prof_ops,
          {.text = "Operations that are counted if prof_all is false: all_reduce, all_gather, "
                   "reduce_scatter, all_to_all, broadcast, barrier, send and recv, or longer names "
                   "that begin with one of them.",
           .default_text = "none"});
}

}  // namespace tessera::report
