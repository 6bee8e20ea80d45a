// SPDX-License-Identifier: Apache-2.0
// Texts with a label each, read from .jsonl files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"
#include "tessera/tasks/labels.h"

namespace tessera::tasks {

/// Tokenized texts of one length with their labels: "input_ids" [T] and "label" [], int64, and
/// "attention_mask" [T], 0 at padding, where a text of the batch is shorter. Longer texts lose
/// their end; shorter ones are padded on the right with `pad_id`. Threads: const methods from any
/// thread.
class LabelledTexts final : public data::Dataset {
 public:
  LabelledTexts(std::int64_t length, std::int32_t pad_id, Labels labels);

  /// Reads and tokenizes the records of `files`, which messages call `key`. `poll` is called now
  /// and then. Error{Data} with file and line for a record that cannot be read, an empty text and
  /// an unknown label.
  void read_files(const std::vector<std::string>& files,
                  const RecordFields& fields,
                  const data::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  /// Moves the last `count` samples into a dataset of their own.
  [[nodiscard]] std::unique_ptr<LabelledTexts> split_off(std::int64_t count);

  [[nodiscard]] std::string name() const override { return "labelled texts"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }

  [[nodiscard]] const Labels& labels() const { return labels_; }
  /// The number of samples of each label.
  [[nodiscard]] std::vector<std::int64_t> label_counts() const;
  /// Tokens of all samples, without padding.
  [[nodiscard]] std::int64_t tokens() const;
  /// The number of texts that were longer than a sample.
  [[nodiscard]] std::int64_t cut() const { return cut_; }
  [[nodiscard]] const data::TokenizeStats& stats() const { return stats_; }
  /// A hash of tokens, labels, names of the labels and length.
  [[nodiscard]] std::string fingerprint() const;

 private:
  struct Record {
    std::vector<std::int32_t> ids;  ///< at most length_
    std::int64_t label = 0;
  };
  std::int64_t length_;
  std::int32_t pad_id_;
  Labels labels_;
  std::vector<Record> samples_;
  std::int64_t cut_ = 0;
  data::TokenizeStats stats_;
};

}  // namespace tessera::tasks
