// SPDX-License-Identifier: Apache-2.0
// Texts of words with a tag each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The fields that hold a list of words, and a list of as many tags. Without one of tags, words are
/// read that a model is to tag: "labels" is then 0 at the first token of each.
struct WordFields {
  std::string words = "tokens", tags = "tags";
};

/// The tags of the records in `files`, as Labels::found_in() finds labels.
Labels tags_found_in(const std::vector<std::string>& files,
                     const data::RecordOptions& how,
                     const WordFields& fields);

/// Sequences of one length: "input_ids", "labels" and, where a text of the batch is shorter,
/// "attention_mask", [T] int64. A word becomes one token or several, of which the first has the
/// word's tag and the others -100, as have the tokens around a text and padding. A word but the
/// first is tokenized behind a space. Longer texts lose their end. Threads: const methods from any
/// thread.
class TaggedWords final : public RecordDataset {
 public:
  TaggedWords(std::int64_t length, std::int32_t pad_id, Labels tags);

  /// Reads and tokenizes the records of `files`. `poll` is called now and then. Error{Data} with
  /// file and line for a record that cannot be read, another number of tags than of words, an
  /// unknown tag, and a text that has no token. Error{Config} where the length has no room.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const WordFields& fields,
                  const data::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

  [[nodiscard]] std::string name() const override { return "tagged words"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }

  [[nodiscard]] const Labels& labels() const { return tags_; }
  [[nodiscard]] std::int64_t tokens() const override;
  /// Of tokens, tags, their names and the length.
  [[nodiscard]] std::string fingerprint() const override;

 private:
  struct Record {
    std::vector<std::int32_t> ids;   ///< at most length_
    std::vector<std::int32_t> tags;  ///< as many, -100 among them
  };
  std::int64_t length_;
  std::int32_t pad_id_;
  Labels tags_;
  std::vector<Record> samples_;
};

}  // namespace tessera::tasks
