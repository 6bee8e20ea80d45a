// SPDX-License-Identifier: Apache-2.0
// The interface of a monitor, which shows a training in another program, and the monitors that
// there are. Each is one file that registers itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"
#include "tessera/planner/monitor_options.h"

namespace tessera::report {

/// One line of metrics.jsonl, and where the training stands.
struct Reading {
  json::Value values;  ///< the line: {"step", "loss", ...} or {"step", "eval_loss", ...}
  std::int64_t step = 0;
  std::int64_t samples = 0;  ///< of the training so far
  double time = 0.0;         ///< seconds since 1970
};

/// Writes readings where another program looks for them. The rank that speaks has them; no other.
/// Every method may throw Error{Io}, after which the monitor is not called again.
class Monitor {
 public:
  Monitor() = default;
  virtual ~Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  virtual void write(const Reading& reading) = 0;
  /// A text that the model made. `reading` has no values.
  virtual void text(const Reading& /*reading*/, std::string_view /*text*/) {}
  /// The training ends: with success, or early.
  virtual void finish(double /*time*/, bool /*success*/) {}
  /// Where it is found, for the user: a folder or an address. Empty: told elsewhere.
  [[nodiscard]] virtual std::string place() const { return ""; }
};

/// What a monitor is made from.
struct MonitorContext {
  std::filesystem::path run_dir;
  planner::MonitorOptions options;
  json::Value resolved;                ///< config.json of the run folder
  std::int64_t step = 0, samples = 0;  ///< where the training begins
  double time = 0.0;                   ///< seconds since 1970
  std::string host;
};

struct MonitorMaker {
  bool (*enabled)(const planner::MonitorOptions& options);
  std::unique_ptr<Monitor> (*make)(const MonitorContext& context);
};
Registry<MonitorMaker>& monitors();

/// The folder of a monitor's files: `output_path`/`job_name` as DeepSpeed has it, else `name` in
/// the run folder.
std::filesystem::path monitor_folder(const MonitorContext& context,
                                     const std::string& output_path,
                                     const std::optional<std::string>& job_name,
                                     const std::string& name);

/// Replaces what could leave the folder or is hard to type in file names: all but letters, digits,
/// dot, dash and underscore become "_".
std::string file_name_of(std::string_view text);

}  // namespace tessera::report
