// SPDX-License-Identifier: Apache-2.0
// Texts of words with a tag each, read from .jsonl files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"
#include "tessera/tasks/labels.h"

namespace tessera::tasks {

/// The tags of the records in `files`, as Labels::found_in() finds labels: fields.text holds a list
/// of words, and fields.label a list of as many tags.
Labels tags_found_in(const std::vector<std::string>& files, const RecordFields& fields);

/// Sequences of one length: "input_ids", "labels" and, where a text of the batch is shorter,
/// "attention_mask", [T] int64. A word becomes one token or several, of which the first has the
/// word's tag and the others -100, as have the tokens around a text and padding. A word but the
/// first is tokenized behind a space. Longer texts lose their end. Threads: const methods from any
/// thread.
class TaggedWords final : public data::Dataset {
 public:
  TaggedWords(std::int64_t length, std::int32_t pad_id, Labels tags);

  /// Reads and tokenizes the records of `files`. `poll` is called now and then. Error{Data} with
  /// file and line for a record that cannot be read, another number of tags than of words, an
  /// unknown tag, and a text that has no token. Error{Config} where the length has no room.
  void read_files(const std::vector<std::string>& files,
                  const RecordFields& fields,
                  const data::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  /// Moves the last `count` samples into a dataset of their own.
  [[nodiscard]] std::unique_ptr<TaggedWords> split_off(std::int64_t count);

  [[nodiscard]] std::string name() const override { return "tagged words"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }

  [[nodiscard]] const Labels& labels() const { return tags_; }
  /// Tokens of all samples, without padding.
  [[nodiscard]] std::int64_t tokens() const;
  /// The number of texts that were longer than a sample.
  [[nodiscard]] std::int64_t cut() const { return cut_; }
  [[nodiscard]] const data::TokenizeStats& stats() const { return stats_; }
  /// A hash of tokens, tags, their names and the length.
  [[nodiscard]] std::string fingerprint() const;

 private:
  struct Record {
    std::vector<std::int32_t> ids;   ///< at most length_
    std::vector<std::int32_t> tags;  ///< as many, -100 among them
  };
  std::int64_t length_;
  std::int32_t pad_id_;
  Labels tags_;
  std::vector<Record> samples_;
  std::int64_t cut_ = 0;
  data::TokenizeStats stats_;
};

}  // namespace tessera::tasks
