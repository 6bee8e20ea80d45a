// SPDX-License-Identifier: Apache-2.0
// The folder of a run: its lock, its configuration, its status, its logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::engine {

/// A run folder that this process owns. A second process is refused at once with the owner's host
/// and process.
class RunFolder {
 public:
  enum class Access : std::uint8_t {
    Own,    ///< creates the folder if need be and takes its lock
    Check,  ///< for a dry run: refuses what Own would refuse, and makes nothing
    Look,   ///< for the ranks of a launcher that do not speak
  };
  /// Error{Io} if the folder cannot be written or somebody else owns it.
  explicit RunFolder(const std::filesystem::path& path, Access access = Access::Own);
  /// A folder that was made and never prepared, because something else was refused, goes again.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path checkpoints() const;
  /// config.json and the folders below. Error{Io}.
  void prepare(const json::Value& resolved) const;
  /// Replaces status.json, or overwrites it where the disk has no room for a second one.
  void write_status(const std::string& state,
                    std::int64_t step,
                    int exit_code,
                    const std::string& message) const;
  /// Corrects state and exit code once the job has ended; keeps step and message.
  void finish_status(int exit_code) const;
  /// Of a training that is found to have reached its end, whatever stopped it then.
  void note_finished(std::int64_t step) const;
  /// Last step that metrics.jsonl knows; 0 if there is none.
  [[nodiscard]] std::int64_t last_metric_step() const;
  /// Whether a training has left something here.
  [[nodiscard]] bool has_training() const;
  /// Whether the checkpoint is one of this run.
  [[nodiscard]] bool holds(const std::filesystem::path& checkpoint) const;
  /// Moves everything but the lock, and but what `spared` lies in, to PATH.old-N, or to old-N in
  /// the folder where that is another disk or nobody may write. Returns where to, or nothing if
  /// there was nothing. Error{Io}, and then everything is where it was.
  std::optional<std::filesystem::path> move_aside(const std::filesystem::path& spared = {}) const;
  /// The same with the checkpoints of steps beyond `step`, and a copy of metrics.jsonl.
  std::optional<std::filesystem::path> move_later_aside(std::int64_t step) const;
  [[nodiscard]] std::filesystem::path log_file(int rank) const;

 private:
  void own();
  void check() const;
  void require_writable_inside() const;
  [[nodiscard]] std::filesystem::path logs() const;
  [[nodiscard]] std::filesystem::path status_file() const;
  [[nodiscard]] std::filesystem::path make_aside() const;

  std::filesystem::path path_;
  std::unique_ptr<files::Lock> lock_;
  bool created_ = false;
  mutable bool prepared_ = false;
};

}  // namespace tessera::engine
