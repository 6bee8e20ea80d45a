// SPDX-License-Identifier: Apache-2.0
// The interface of a monitor, which shows a training in another program, and the registry of
// monitors. Each is one file that registers itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/sections.h"
#include "tessera/report/monitors/histogram.h"

namespace tessera::report {

/// One line of metrics.jsonl, and the position of the training.
struct Reading {
  json::Value values;  ///< the line: {"step", "loss", ...} or {"step", "eval_loss", ...}
  std::int64_t step = 0;
  std::int64_t samples = 0;  ///< of the training so far
  double time = 0.0;         ///< seconds since 1970
};

/// Writes readings where another program looks for them. Only the leader has monitors. Every method
/// may throw Error{Io}, after which the monitor is not called again.
class Monitor {
 public:
  Monitor() = default;
  virtual ~Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  virtual void write(const Reading& reading) = 0;
  /// Shows a text that the model generated. `reading` has no values.
  virtual void text(const Reading& /*reading*/, std::string_view /*text*/) {}
  /// Shows distributions of weights and gradients. `reading` has no values.
  virtual void histograms(const Reading& /*reading*/, std::span<const NamedHistogram> /*all*/) {}
  /// Called at the end of the training: `success` is false if it failed.
  virtual void finish(double /*time*/, bool /*success*/) {}
  /// Returns where the user finds the output: a folder or an address. Empty if it is reported
  /// elsewhere.
  [[nodiscard]] virtual std::string place() const { return ""; }
};

/// The facts from which a monitor is made.
struct MonitorContext {
  std::filesystem::path run_dir;
  config::Sections sections;           ///< the options of the monitors
  json::Value resolved;                ///< config.json of the run folder
  std::int64_t step = 0, samples = 0;  ///< position at the start of the training
  double time = 0.0;                   ///< seconds since 1970
  std::string host;
};

struct MonitorMaker {
  bool (*enabled)(const config::Sections& sections);
  std::unique_ptr<Monitor> (*make)(const MonitorContext& context);
  /// Returns the monitor's output_folder(). Null: it has no key "output_path".
  std::filesystem::path (*output_folder)(const config::Sections& sections) = nullptr;
};
Registry<MonitorMaker>& monitors();
/// Throws Error{Io} with the key if an enabled monitor cannot write into its output_path. Creates
/// nothing.
void require_writable_outputs(const config::Sections& sections);

/// Describes the keys "output_path" and "job_name" of a section: `what` ("csv files") is written in
/// `folder` of the run folder by default.
void describe_folder(config::Fields& fields,
                     std::string& output_path,
                     std::optional<std::string>& job_name,
                     const std::string& what,
                     const std::string& folder);
/// Returns `output_path`/`job_name` as in DeepSpeed; empty if `output_path` is.
std::filesystem::path output_folder(const std::string& output_path,
                                    const std::optional<std::string>& job_name);
/// Returns the folder of a monitor's files: output_folder(), else `name`
/// in the run folder.
std::filesystem::path monitor_folder(const MonitorContext& context,
                                     const std::string& output_path,
                                     const std::optional<std::string>& job_name,
                                     const std::string& name);

/// Replaces all characters except letters, digits, dot, dash and underscore by "_", so that a file
/// name cannot leave its folder and is easy to type.
std::string file_name_of(std::string_view text);

}  // namespace tessera::report
