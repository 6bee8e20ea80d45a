// SPDX-License-Identifier: Apache-2.0
// Records that are read from their files while they are used, for data that does not fit into
// memory and of which no tokenized copy is kept on a disk.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The order in which the samples of files are read. Files are read in a random order, and the
/// samples of `window` consecutive files in this order are shuffled together.
struct StreamOrder {
  bool shuffle = true;  ///< false: the order of the files and of their records
  std::uint64_t seed = 0;
  std::int64_t window = 1;  ///< in files
};

/// The samples of files, of which those of 2 * window files are in memory at a time. Samples never
/// combine records of two files. The file and sample at a position of an epoch are functions of
/// seed, epoch and position: any number of ranks reads the same samples, and a run resumes at any
/// position. The epoch is SampleWriter::number() / size(), so that the reader must not shuffle.
/// Const methods can be called from any thread; a thread waits while another one reads a file.
class StreamedRecords final : public RecordDataset {
 public:
  /// Returns the arranged samples of a file, always the same ones.
  using OpenFile = std::function<std::unique_ptr<RecordDataset>(const std::string& file)>;
  /// Reads every file once, to count its samples. Throws Error{Data} if the samples of the files
  /// have different tensors, and Error{Unsupported} if a model has to compute a part of them.
  StreamedRecords(std::vector<std::string> files, OpenFile open, StreamOrder order);

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override { return tensors_; }
  /// Throws Error{Data} if the file has changed since the constructor read it.
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] bool has_own_epochs() const override { return true; }
  void read_in_epoch(std::int64_t epoch,
                     std::int64_t position,
                     data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }
  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] ClassCounts class_counts() const override { return class_counts_; }
  [[nodiscard]] std::string fingerprint() const override;
  /// Throws Error{Bug}: what is held out is cut off each file when it is opened.
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

 private:
  struct File {
    std::string path, fingerprint;
    std::int64_t size = 0;  ///< in samples
  };
  /// The files in the order of an epoch, and the position of the first sample of each; the last
  /// position is the end.
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::int64_t> files, begins;
  };
  struct Place {
    std::int64_t file = 0, sample = 0;
  };
  void take_counts(const std::string& path, const RecordDataset& samples);
  [[nodiscard]] Epoch epoch(std::int64_t number) const;
  [[nodiscard]] Place place_of(std::int64_t epoch, std::int64_t position) const;
  [[nodiscard]] std::shared_ptr<const RecordDataset> opened(std::int64_t file) const;

  OpenFile open_;
  StreamOrder order_;
  std::vector<File> files_;
  std::string name_ = "streamed records";
  std::vector<data::TensorSpec> tensors_;
  std::optional<std::int64_t> length_;
  std::int64_t size_ = 0, tokens_ = 0;
  ClassCounts class_counts_;

  mutable std::mutex mutex_;
  mutable Epoch epoch_;
  /// The files in memory, the last used one first.
  mutable std::list<std::pair<std::int64_t, std::shared_ptr<const RecordDataset>>> held_;
};

}  // namespace tessera::tasks
