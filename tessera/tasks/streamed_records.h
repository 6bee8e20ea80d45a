// SPDX-License-Identifier: Apache-2.0
// Records that are read from their files while they are used, for data that does not fit into
// memory and of which no tokenized copy is kept on a disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/held_files.h"
#include "tessera/data/stream_order.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The samples of files, one file after the other, of which those of 2 * window files are in memory
/// at a time; data::StreamedSamples gives them an order in which few files are read at a time.
/// Samples never combine records of two files. Const methods can be called from any thread; a
/// thread waits while another one reads a file.
class StreamedRecords final : public RecordDataset {
 public:
  /// Returns the arranged samples of a file, always the same ones.
  using OpenFile = std::function<std::unique_ptr<RecordDataset>(const std::string& file)>;
  /// Reads every file once, to count its samples. Throws Error{Data} if the samples of the files
  /// have different tensors.
  StreamedRecords(std::vector<std::string> files, OpenFile open, std::int64_t window);

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return begins_.back(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override { return tensors_; }
  /// Throws Error{Data} if the file has changed since the constructor read it.
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }
  [[nodiscard]] std::optional<data::TensorSpec> made_by_model() const override {
    return made_by_model_;
  }
  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] ClassCounts class_counts() const override { return class_counts_; }
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::vector<std::filesystem::path> files() const override { return read_later_; }
  /// Throws Error{Bug}: what is held out is cut off each file when it is opened.
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  /// The number of samples of each file.
  [[nodiscard]] std::vector<std::int64_t> file_sizes() const;

 private:
  struct File {
    std::string path, fingerprint;
  };
  void take_counts(const std::string& path, const RecordDataset& samples);
  [[nodiscard]] std::shared_ptr<const RecordDataset> opened(std::size_t file) const;

  OpenFile open_;
  std::int64_t window_;
  std::vector<File> files_;
  std::vector<std::filesystem::path> read_later_;  ///< files() of all samples
  std::vector<std::int64_t> begins_ = {0};         ///< of the files, and the end of the last one
  std::string name_ = "streamed records";
  std::vector<data::TensorSpec> tensors_;
  std::optional<data::TensorSpec> made_by_model_;
  std::optional<std::int64_t> length_;
  std::int64_t tokens_ = 0;
  ClassCounts class_counts_;

  mutable data::HeldFiles<RecordDataset> held_;
};

}  // namespace tessera::tasks
