// SPDX-License-Identifier: Apache-2.0
// Offline runs of Weights & Biases: the file that `wandb sync` uploads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/protobuf.h"
#include "tessera/report/appended_file.h"
#include "tessera/report/monitors/scalars.h"

namespace tessera::report {

/// The log of LevelDB with the checksums of zlib, in which W&B stores records: blocks of 32 KiB,
/// and records that may extend over several blocks. Source: wandb/sdk/internal/datastore.py.
class WandbLog {
 public:
  /// Begins the file. Error{Io}.
  explicit WandbLog(const std::filesystem::path& path);
  void append(std::string_view record);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendedFile file_;
  std::size_t at_ = 0;  ///< bytes so far
};

/// The name of a run, and the project to which it belongs.
struct WandbRun {
  std::string id, project, group, team, name, host;
  double start = 0.0;  ///< seconds since 1970
};

/// One run: header, run with its configuration, history, summary, exit. Source of the messages:
/// wandb/proto/wandb_internal.proto.
class WandbFile {
 public:
  WandbFile(const std::filesystem::path& path, const WandbRun& run, const json::Value& config);
  void history(double time, std::int64_t step, std::span<const Scalar> values);
  /// Writes the newest values, and the result of the run.
  void end(double time, int exit_code);
  [[nodiscard]] const std::filesystem::path& path() const { return log_.path(); }

 private:
  void record(int field, const WireMessage& what);
  WandbLog log_;
  double start_;
  std::int64_t number_ = 0, step_ = 0;
  std::vector<Scalar> newest_;
};

}  // namespace tessera::report
