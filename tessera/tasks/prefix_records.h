// SPDX-License-Identifier: Apache-2.0
// Records whose prompt is a prefix: its tokens see each other in both directions, and the tokens
// after it are learned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/sft_samples.h"

namespace tessera::tasks {

/// The tensors of SftSamples without packing, and "prefix_lengths" [], int64: the tokens before the
/// first one that is learned, at least one. Const methods can be called from any thread.
class PrefixRecords final : public RecordDataset {
 public:
  /// `samples` are not packed.
  explicit PrefixRecords(std::unique_ptr<RecordDataset> samples);

  [[nodiscard]] std::string name() const override { return "completions of prefixes"; }
  [[nodiscard]] std::int64_t size() const override { return samples_->size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return samples_->sequence_length();
  }
  [[nodiscard]] std::int64_t tokens() const override { return samples_->tokens(); }
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override { samples_->reorder(order); }
  void arrange() override { samples_->arrange(); }

 private:
  std::unique_ptr<RecordDataset> samples_;
};

}  // namespace tessera::tasks
