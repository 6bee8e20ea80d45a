// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/monitor_options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/loopback.h"

namespace tessera::planner {
namespace {

constexpr const char* kTagsText =
    "Names of the metrics: deepspeed (Train/Samples/train_loss, over samples) or huggingface "
    "(train/loss, over steps).";
constexpr double kMostSamples = 1e15, kMostSteps = 1e12;

void describe_folder(config::Fields& f,
                     std::string& output_path,
                     std::optional<std::string>& job_name,
                     const std::string& what,
                     const std::string& folder) {
  f.field("output_path",
          output_path,
          {.text = "Folder of the " + what + ".", .default_text = folder + " in the run folder"});
  f.field("job_name",
          job_name,
          {.text = "Folder inside output_path.",
           .default_text = "DeepSpeedJobName if output_path is given, else none"});
}

/// A trace has several megabytes per step and rank.
constexpr double kMostTraced = 100;

void check_profilers(const MonitorOptions& options,
                     config::Problems& problems,
                     const config::Origins& origins) {
  const std::vector<double>& steps = options.profile.steps;
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

}  // namespace

void TensorboardOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Write event files for TensorBoard."});
  describe_folder(f, output_path, job_name, "event files", "tensorboard");
  f.choice("tags", tags, kTagStyles, {.text = kTagsText});
  f.field("histograms",
          histograms,
          {.text = "Write histograms of the weights and gradients of every trained parameter after "
                   "this number of steps; 0 writes none.",
           .unit = "steps",
           .min = 0,
           .max = kMostSteps});
}

void CsvMonitorOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Write a csv file for each metric, as DeepSpeed does."});
  describe_folder(f, output_path, job_name, "csv files", "csv_monitor");
}

void WandbOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Write an offline run for Weights & Biases in the folder wandb of the run "
                   "folder; wandb sync uploads it."});
  f.field("project", project, {.text = "Project of the run."});
  f.field("group", group, {.text = "Group of the run.", .default_text = "none"});
  f.field("team", team, {.text = "Team or user that owns the project.", .default_text = "none"});
  f.field("name", name, {.text = "Displayed name.", .default_text = "name of the run folder"});
  f.choice("tags", tags, kTagStyles, {.text = kTagsText});
}

void CometOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Write an offline experiment for Comet in the folder comet of the run folder; "
                   "comet upload uploads it."});
  f.field("samples_log_interval",
          samples_log_interval,
          {.text = "Write a metric once in this number of samples.",
           .unit = "samples",
           .min = 1,
           .max = kMostSamples});
  f.field("project", project, {.text = "Project of the experiment.", .default_text = "none"});
  f.field("workspace", workspace, {.text = "Workspace of the project.", .default_text = "none"});
  f.field("experiment_name",
          experiment_name,
          {.text = "Displayed name.", .default_text = "name of the run folder"});
  f.field("experiment_key",
          experiment_key,
          {.text = "Key of the experiment: 32 to 50 letters and digits.",
           .default_text = "a new one for each start"});
  f.choice("mode",
           mode,
           kCometModes,
           {.text = "What the upload does with experiment_key: continue that experiment (get), "
                    "create one (create), or whichever is possible (get_or_create)."});
  f.choice("tags", tags, kTagStyles, {.text = kTagsText});
}

void PrometheusOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Serve the newest metrics for Prometheus while training."});
  f.field("address",
          address,
          {.text = "Where they are served: a port of this host (127.0.0.1:9464; port 0 takes a "
                   "free one) or a socket (unix:/path). Other hosts cannot connect."});
}

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

void MonitorOptions::describe(config::Fields& f) {
  f.section("tensorboard", tensorboard, "Event files for TensorBoard.");
  f.section("csv_monitor", csv_monitor, "Metrics as csv files.");
  f.section("wandb", wandb, "Offline runs for Weights & Biases.");
  f.section("comet", comet, "Offline experiments for Comet.");
  f.section("prometheus", prometheus, "Metrics for Prometheus.");
  f.section("profile", profile, "A trace of some steps.");
  f.section("flops_profiler", flops_profiler, "Arithmetic and time of every block.");
  f.section("comms_logger", comms_logger, "Collectives by operation and size.");
}

void check_monitors(const MonitorOptions& options,
                    config::Problems& problems,
                    const config::Origins& origins) {
  if (options.prometheus.enabled) {
    if (const auto why = loopback::problem_of(options.prometheus.address)) {
      problems.add(origins.place("prometheus.address"),
                   "prometheus.address",
                   fmt::format("\"{}\": {}", options.prometheus.address, *why),
                   "write \"127.0.0.1:9464\", or \"unix:/path/of/a.sock\"");
    }
  }
  check_profilers(options, problems, origins);
  const std::string& key = options.comet.experiment_key;
  const bool fits =
      key.size() >= 32 && key.size() <= 50 &&
      std::all_of(key.begin(), key.end(), [](unsigned char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      });
  if (options.comet.enabled && !key.empty() && !fits) {
    problems.add(origins.place("comet.experiment_key"),
                 "comet.experiment_key",
                 "expected 32 to 50 letters and digits",
                 "remove it: each start then has a key of its own");
  }
}

}  // namespace tessera::planner
