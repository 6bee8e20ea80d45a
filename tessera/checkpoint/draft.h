// SPDX-License-Identifier: Apache-2.0
// A file or folder that is written beside its place and takes it in one step.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// ".tmp-NAME-PID" beside `target`, for whatever makes it. What processes that have ended left of
/// the same target is removed first. Error{Io}. Threads: one.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& target);
  /// Removes what was not published, and what publish() took out of its place.
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Takes the place of `target`, of a folder or file that stands there too.
  void publish();

 private:
  std::filesystem::path target_, path_;
};

}  // namespace tessera::checkpoint
