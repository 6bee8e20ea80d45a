// SPDX-License-Identifier: Apache-2.0
// Combines several datasets of records.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/mixture.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The samples of arranged datasets, in the order of `mixture`. Const methods can be called from
/// any thread.
class MixedRecords final : public RecordDataset {
 public:
  /// Throws Error{Data} if the samples of the parts have different tensors.
  MixedRecords(std::vector<std::unique_ptr<RecordDataset>> parts, data::Mixture mixture);

  [[nodiscard]] std::string name() const override { return parts_.front()->name(); }
  [[nodiscard]] std::int64_t size() const override { return mixture_.size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return parts_.front()->tensors();
  }
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return parts_.front()->sequence_length();
  }
  [[nodiscard]] std::optional<data::TensorSpec> made_by_model() const override {
    return parts_.front()->made_by_model();
  }
  /// Counts each part once.
  [[nodiscard]] std::int64_t tokens() const override;
  /// Counts the samples of all sources, each sample once.
  [[nodiscard]] ClassCounts class_counts() const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::vector<std::filesystem::path> files() const override;
  /// Parts are split before they are mixed.
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

 private:
  std::vector<std::unique_ptr<RecordDataset>> parts_;
  data::Mixture mixture_;
};

}  // namespace tessera::tasks
