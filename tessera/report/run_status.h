// SPDX-License-Identifier: Apache-2.0
// The state of a run, as its folder shows it to other processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::report {

/// The contents of a run's status.json, corrected by the lock of its folder: a training that was to
/// be running and whose process is gone was killed, because it could not write its own end.
struct RunStatus {
  /// "running", "finished", "stopped", "failed" or "killed"; empty if the folder has no readable
  /// status.json.
  std::string state;
  std::optional<std::int64_t> exit_code;  ///< absent while the run is running, and if it was killed
  /// Why the run failed, or a message at its end; may be empty.
  std::string message;
  /// The command that continues a run that was stopped or killed; otherwise empty.
  std::string go_on;
};

/// Reads the status of the run in `folder`. Creates and changes nothing.
RunStatus run_status(const std::filesystem::path& folder);

/// The message and the command that continues the run, as one line; empty if there is neither.
std::string words_of(const RunStatus& status);

}  // namespace tessera::report
