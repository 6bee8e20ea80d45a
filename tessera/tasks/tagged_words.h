// SPDX-License-Identifier: Apache-2.0
// Texts in which each word has a tag.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The fields with a list of words and a list of equally many tags; each may be a text whose parts
/// have spaces between them. Without a tag field, the words
/// are to be tagged by a model: "labels" is then 0 at the first token of each.
struct WordFields {
  std::string words = "tokens", tags = "tags";
};

/// The fields of a record, where its words and tags have the names that published data gives them:
/// "words" in place of "tokens", and "ner_tags", "ner" or "pos_tags" in place of "tags". Fields of
/// other names are as given.
WordFields published_fields(const data::Record& record, WordFields fields);

/// The tags of the records in `files`, as Labels::found_in() finds labels. `named` are the tags
/// that the configuration names (see LabelCollector).
Labels tags_found_in(const std::vector<std::string>& files,
                     const data::RecordOptions& how,
                     const WordFields& fields,
                     const std::vector<std::string>& named);

/// Sequences of one length: "input_ids", "labels" and, if a text of the batch is shorter,
/// "attention_mask", [T] int64. A word becomes one or more tokens; the first has the word's tag and
/// the others have -100, as do special tokens and padding. Every word except the first is tokenized
/// after a space. Longer texts are truncated at their end. Const methods can be called from any
/// thread.
class TaggedWords final : public RecordDataset {
 public:
  TaggedWords(std::int64_t length, std::int32_t pad_id, Labels tags);

  /// Reads and tokenizes the records of `files`. Calls `poll` now and then. Throws Error{Data} with
  /// file and line for a record that cannot be read, different numbers of tags and words, an
  /// unknown tag, and a text without tokens. Throws Error{Config} if the length has no room for the
  /// text.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const WordFields& fields,
                  const text::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  /// The tags of each sample's words.
  [[nodiscard]] LabelsOfSamples strata() const override;
  void reorder(const std::vector<std::int64_t>& order) override;

  [[nodiscard]] std::string name() const override { return "tagged words"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override { return length_; }

  [[nodiscard]] const Labels& labels() const { return tags_; }
  [[nodiscard]] std::int64_t tokens() const override;
  /// Number of words with each tag.
  [[nodiscard]] ClassCounts class_counts() const override;
  /// A word without a token, and one that is cut off, has no row.
  [[nodiscard]] std::vector<std::int64_t> places(std::int64_t index) const override;
  /// A hash of tokens, tags, their names and the length.
  [[nodiscard]] std::string fingerprint() const override;

 private:
  struct Record {
    std::vector<std::int32_t> ids;   ///< at most length_
    std::vector<std::int32_t> tags;  ///< same number as ids, with -100
    /// The position of each word's first token; -1 for a word without one.
    std::vector<std::int32_t> words = {};
  };
  std::int64_t length_;
  std::int32_t pad_id_;
  Labels tags_;
  std::vector<Record> samples_;
};

}  // namespace tessera::tasks
