// SPDX-License-Identifier: Apache-2.0
// A file or folder that is written next to its target and replaces it in one step.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// The path ".tmp-NAME-PID" next to `target`, for a file or folder that the caller creates. Drafts
/// of the same target left behind by ended processes are removed first. Throws Error{Io}. Threads:
/// one.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& target);
  /// Removes a draft that was not published, and the old target that publish() replaced.
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Replaces `target`, which may be an existing folder or file.
  void publish();

 private:
  std::filesystem::path target_, path_;
};

}  // namespace tessera::checkpoint
