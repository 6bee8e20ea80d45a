// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/protobuf.h"
#include "tessera/config/fields.h"
#include "tessera/report/appended_file.h"
#include "tessera/report/monitors/histogram.h"
#include "tessera/report/monitors/scalars.h"

namespace tessera::report {

/// The section `tensorboard`.
struct TensorboardOptions {
  bool enabled = false;
  std::string output_path;  ///< empty: in the run folder
  std::optional<std::string> job_name;
  TagStyle tags = TagStyle::DeepSpeed;
  std::int64_t histograms = 0;  ///< steps between histograms; 0: none
  void describe(config::Fields& fields);
};

/// CRC-32C (Castagnoli), and its form in TensorFlow's records: rotated right by 15 bits plus a
/// constant, so that the checksum of data that contains checksums is not degenerate.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

/// A record of TensorFlow: length, checksum of the length, bytes, checksum of the bytes.
std::string tfrecord(std::string_view bytes);

/// One event file. Source of the messages: tensorflow/core/{util/event.proto,
/// framework/summary.proto} and tensorboard/plugins/hparams/plugin_data.proto.
class EventFile {
 public:
  /// Begins the file with its version. Error{Io}.
  EventFile(const std::filesystem::path& path, double time);
  /// Marks values written before an interruption for this and later steps as invalid.
  void restart(double time, std::int64_t step);
  void scalars(double time, std::int64_t step, std::span<const Scalar> values);
  void histogram(double time, std::int64_t step, const std::string& tag, const Histogram& values);
  void text(double time, std::int64_t step, const std::string& tag, std::string_view text);
  /// Adds hyperparameters for the dashboard HPARAMS.
  void hyperparameters(double time, const std::string& group, std::span<const Hyperparameter> all);
  /// `success`: state of the run in the dashboard HPARAMS.
  void end(double time, bool success);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  void event(double time, std::int64_t step, int field, const WireMessage& what);
  AppendedFile file_;
};

/// Returns "events.out.tfevents.TIME.HOST.PROCESS.NUMBER", the form of names that TensorBoard looks
/// for.
std::string event_file_name(double time, std::string_view host, int process, int number);

}  // namespace tessera::report
