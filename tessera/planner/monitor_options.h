// SPDX-License-Identifier: Apache-2.0
// The sections of monitors, which show a training in other programs (tensorboard, csv_monitor,
// wandb, comet, prometheus), and of profilers. Keys and defaults are DeepSpeed's if it has them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::planner {

/// The names of metrics, and their x axis: "Train/Samples/train_loss" over samples, or "train/loss"
/// over steps.
enum class TagStyle : std::uint8_t { DeepSpeed, HuggingFace };
inline constexpr auto kTagStyles = std::to_array<config::Named<TagStyle>>(
    {{TagStyle::DeepSpeed, "deepspeed"}, {TagStyle::HuggingFace, "huggingface"}});

/// The use that the upload of an offline run makes of its experiment key.
enum class CometMode : std::uint8_t { Create, Get, GetOrCreate };
inline constexpr auto kCometModes =
    std::to_array<config::Named<CometMode>>({{CometMode::Create, "create"},
                                             {CometMode::Get, "get"},
                                             {CometMode::GetOrCreate, "get_or_create"}});

struct TensorboardOptions {
  bool enabled = false;
  std::string output_path;  ///< empty: in the run folder
  std::optional<std::string> job_name;
  TagStyle tags = TagStyle::DeepSpeed;
  std::int64_t histograms = 0;  ///< steps between histograms; 0: none
  void describe(config::Fields& fields);
};
struct CsvMonitorOptions {
  bool enabled = false;
  std::string output_path;  ///< empty: in the run folder
  std::optional<std::string> job_name;
  void describe(config::Fields& fields);
};
struct WandbOptions {
  bool enabled = false;
  std::string project = "deepspeed";
  std::string group, team, name;
  TagStyle tags = TagStyle::DeepSpeed;
  void describe(config::Fields& fields);
};
struct CometOptions {
  bool enabled = false;
  std::int64_t samples_log_interval = 100;
  std::string project, workspace, experiment_name, experiment_key;
  CometMode mode = CometMode::Create;
  TagStyle tags = TagStyle::DeepSpeed;
  void describe(config::Fields& fields);
};
struct PrometheusOptions {
  bool enabled = false;
  std::string address = "127.0.0.1:9464";
  void describe(config::Fields& fields);
};

struct ProfileOptions {
  std::vector<double> steps;  ///< first and last
  /// Returns the steps to trace; nothing if there are none.
  [[nodiscard]] std::optional<std::pair<std::int64_t, std::int64_t>> range() const;
  void describe(config::Fields& fields);
};
struct FlopsProfilerOptions {
  bool enabled = false;
  std::int64_t profile_step = 1;
  std::int64_t module_depth = -1, top_modules = 1;
  bool detailed = true;
  std::string output_file;
  void describe(config::Fields& fields);
};
struct CommsLoggerOptions {
  bool enabled = false, verbose = false, prof_all = true;
  std::vector<std::string> prof_ops;
  void describe(config::Fields& fields);
};

struct MonitorOptions {
  TensorboardOptions tensorboard;
  CsvMonitorOptions csv_monitor;
  WandbOptions wandb;
  CometOptions comet;
  PrometheusOptions prometheus;
  ProfileOptions profile;
  FlopsProfilerOptions flops_profiler;
  CommsLoggerOptions comms_logger;
  /// Describes the sections, which are at the top level of a configuration.
  void describe(config::Fields& fields);
};

/// Reports problems of the sections: addresses that are not of this host, keys that Comet would
/// refuse.
void check_monitors(const MonitorOptions& options,
                    config::Problems& problems,
                    const config::Origins& origins);

}  // namespace tessera::planner
