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

/// A run folder that this process owns. Another process is refused at once with the owner's host
/// and process id.
class RunFolder {
 public:
  enum class Access : std::uint8_t {
    Own,    ///< creates the folder if needed and takes its lock
    Check,  ///< for a dry run: refuses what Own would refuse, and creates nothing
    Look,   ///< for a launcher's ranks other than the leader
  };
  /// Throws Error{Io} if the folder cannot be written or another process owns it.
  explicit RunFolder(const std::filesystem::path& path, Access access = Access::Own);
  /// Deletes a folder that was created but never prepared because something else was refused.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path checkpoints() const;
  /// Writes config.json and creates the subfolders. Throws Error{Io}.
  void prepare(const json::Value& resolved) const;
  /// Replaces status.json, or overwrites it in place if the disk has no room for a second file.
  void write_status(const std::string& state,
                    std::int64_t step,
                    int exit_code,
                    const std::string& message) const;
  /// Corrects state and exit code after the job has ended; keeps step and message.
  void finish_status(int exit_code) const;
  /// Writes the status of a training that turns out to have reached its end, even if it was stopped
  /// then.
  void note_finished(std::int64_t step) const;
  /// The last step in metrics.jsonl; 0 if there is none.
  [[nodiscard]] std::int64_t last_metric_step() const;
  /// True if the folder contains files of a training.
  [[nodiscard]] bool has_training() const;
  /// True if the checkpoint belongs to this run.
  [[nodiscard]] bool holds(const std::filesystem::path& checkpoint) const;
  /// Throws Error{Io} if move_aside() would also move the folder in which the program was started,
  /// and with it files that are not of a run.
  void require_own_contents() const;
  /// Moves everything except the lock and the entry that contains `spared` to PATH.old-N, or to
  /// old-N inside the folder if the parent is on another disk or not writable. Returns the target,
  /// or nothing if there was nothing to move. Throws Error{Io}; then everything is back in its
  /// place.
  std::optional<std::filesystem::path> move_aside(const std::filesystem::path& spared = {}) const;
  /// Does the same with the checkpoints of steps after `step`, and copies of metrics.jsonl and of a
  /// ledger of rollouts.
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
