// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/pipeline_rules.h"

#include <fmt/format.h>

#include "tessera/optim/make_rule.h"
#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {

void check_pipeline(const ParallelOptions& parallel,
                    std::int64_t micros,
                    const optim::OptimizerOptions& optimizer,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const PipelineOptions& options = parallel.pipeline;
  const auto single = [&](std::int64_t size, const char* key) {
    return size <= 1 && !problems.concern(key);
  };
  if (options.scatter_gather &&
      (single(options.size, "parallel.pipeline.size") ||
       single(parallel.tensor.size, "parallel.tensor.size") || parallel.sequence ||
       parallel.tensor.layout() != TensorLayout::OneD)) {
    problems.add(origins.place("parallel.pipeline.scatter_gather"),
                 "parallel.pipeline.scatter_gather",
                 "there is nothing to scatter: only with several stages, and tensor parallelism 1d "
                 "without parallel.sequence, do ranks have the same flow",
                 "remove it");
  }
  if (options.size <= 1) return;
  const PipelineSchedule& schedule = pipeline_schedules().get(options.schedule);
  if (schedule.full_round && micros < options.size) {
    problems.add(
        origins.place("parallel.pipeline.schedule"),
        "parallel.pipeline.schedule",
        fmt::format("the schedule {} takes at least as many micro-batches as there are stages, and "
                    "{} are fewer than {}",
                    options.schedule,
                    micros,
                    options.size),
        fmt::format("set gradient_accumulation_steps to {} or more", options.size));
  }
  if (optim::exchange_needs(optimizer).fused) {
    problems.add(origins.place("optimizer.type"),
                 "optimizer.type",
                 fmt::format("{} compresses all parameters as one vector with one scale, and a "
                             "stage has only its own (parallel.pipeline)",
                             optimizer.type),
                 "use OneBitAdam or Lamb, or set parallel.pipeline to 1");
  }
}

}  // namespace tessera::parallel
