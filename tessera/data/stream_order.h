// SPDX-License-Identifier: Apache-2.0
// The order in which training reads the samples of files of which only a few are in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/mixture.h"

namespace tessera::data {

struct StreamOptions {
  bool shuffle = true;  ///< false: the order of the files and of their samples
  std::uint64_t seed = 0;
  std::int64_t window = 1;  ///< in files
};

/// Files are read in a random order, and the samples of `window` consecutive files in this order
/// are shuffled together. The sample at a position of an epoch is a function of seed, epoch and
/// position: any number of ranks reads the same samples, and a run resumes at any position. Const
/// methods can be called from any thread. Memory: 32 bytes a file.
class StreamOrder {
 public:
  /// `sizes`: the number of samples of each file.
  StreamOrder(const std::vector<std::int64_t>& sizes, StreamOptions options);

  [[nodiscard]] std::int64_t size() const { return begins_.back(); }  ///< in samples
  /// The sample at a position of an epoch, as an index into the samples of all files one after the
  /// other. O(log(number of files)), and O(number of files) for another epoch than before.
  [[nodiscard]] std::int64_t at(std::int64_t epoch, std::int64_t position) const;

 private:
  /// The files in the order of an epoch, and the position of the first sample of each; the last
  /// position is the end.
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::int64_t> files, begins;
  };
  [[nodiscard]] std::shared_ptr<const Epoch> epoch(std::int64_t number) const;

  StreamOptions options_;
  std::vector<std::int64_t> begins_ = {0};  ///< of the files, and the end of the last one
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> epoch_;
};

/// The samples of one or several sources in the order in which training reads them. Each source
/// has an order of its own and continues it where it stopped in the previous epoch. The epoch is
/// SampleWriter::number() / size(), so that the reader must not shuffle. Const methods can be
/// called from any thread.
class StreamedSamples final : public Dataset {
 public:
  /// `samples`: those of all sources, one source after the other; `orders`: one per source of
  /// `mixture`.
  StreamedSamples(std::unique_ptr<Dataset> samples,
                  Mixture mixture,
                  std::vector<std::unique_ptr<StreamOrder>> orders);

  [[nodiscard]] std::string name() const override { return samples_->name(); }
  [[nodiscard]] std::int64_t size() const override { return mixture_.size(); }
  [[nodiscard]] std::vector<TensorSpec> tensors() const override { return samples_->tensors(); }
  void read(std::int64_t index, SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return samples_->sequence_length();
  }
  [[nodiscard]] std::optional<TensorSpec> made_by_model() const override {
    return samples_->made_by_model();
  }
  [[nodiscard]] const Dataset& in_fixed_order() const override { return *samples_; }
  [[nodiscard]] std::vector<std::filesystem::path> files() const override {
    return samples_->files();
  }
  [[nodiscard]] std::int64_t fixed_index(std::int64_t index, std::int64_t number) const override;

 private:
  std::unique_ptr<Dataset> samples_;
  Mixture mixture_;
  std::vector<std::unique_ptr<StreamOrder>> orders_;
  std::vector<std::int64_t> begins_;  ///< of the sources in `samples_`
};

}  // namespace tessera::data
