// SPDX-License-Identifier: Apache-2.0
// Labelled texts, or pairs of texts: the label is one class, several classes, or numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/tasks/class_sampling.h"
#include "tessera/tasks/history.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The kind of a text's label.
enum class LabelKind : std::uint8_t {
  Class,    ///< one of the labels: "label" [], int64
  Classes,  ///< any number of them, as a list: "label" [L], fp32, 1 for those that apply
  Heads,    ///< one class of each head: "label" [heads], int64, -100 where a record has none
  Numbers,  ///< a number, or a list of L numbers: "label" [] or [L], fp32
};

/// The names of the fields to read. An empty name is detected among the names that published data
/// uses.
struct TextFields {
  std::string text, pair, label;
  /// A record without a known label field has a column of 0 or 1 for each label.
  bool columns = false;
  HistoryOptions history;  ///< put before the text
  /// Describes the options text_field, text_pair_field, label_field and those of the history;
  /// `label_text` documents the label.
  void describe(config::Fields& fields, const char* label_text);
};

/// The way in which samples are made from records.
struct LabelledTextsOptions {
  std::int64_t length = 0;  ///< T, in tokens
  std::int32_t pad_id = 0;
  LabelKind kind = LabelKind::Class;
  Labels labels;
  std::vector<LabelHead> heads;                  ///< for LabelKind::Heads
  bool labelled = true;                          ///< false: unlabelled texts, for prediction
  ClassSampling sampling = ClassSampling::None;  ///< for LabelKind::Class
};

/// Replaces empty names by fields of a record: `text` is tried first for the text. Throws
/// Error{Data} if the record has no known field; without `labelled`, it does not look for a label.
/// With `fields.columns`, the label field may stay empty.
TextFields find_fields(const data::Record& record,
                       TextFields fields,
                       const std::string& text,
                       bool labelled = true);
/// The labels of the records in `files`. `kind`: Class or Classes. Of records with a column for
/// each label: those that are 0 or 1 in every record, in their order. `named` are the labels that
/// the configuration names (see LabelCollector).
Labels labels_found_in(const std::vector<std::string>& files,
                       const data::RecordOptions& how,
                       const TextFields& fields,
                       const std::string& text,
                       LabelKind kind,
                       const std::vector<std::string>& named);

/// Tokenized texts of one length with labels: "input_ids" [T], int64; "label" (see LabelKind); and
/// "attention_mask" [T], int64, 0 at padding, if a text of the batch is shorter. The tokenizer's
/// special tokens surround a text; the tokenizer joins two texts, and a batch of pairs has
/// "token_type_ids" [T] if the tokenizer gives the second text another type. A text that is too
/// long is truncated at its end, the longer one of a pair first; a shorter one is padded on the
/// right with `pad_id`. Const methods can be called from any thread.
class LabelledTexts final : public RecordDataset {
 public:
  explicit LabelledTexts(LabelledTextsOptions options);

  /// Reads and tokenizes the records of `files`; `text` as in find_fields(). Calls `poll` now and
  /// then. Throws Error{Data} with file and line for a record that cannot be read, an empty text
  /// and an unknown label, and Error{Config} if the length has no room for the text.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const TextFields& fields,
                  const std::string& text,
                  const text::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  /// The part that is split off contains each text once.
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  /// Classes, with several heads numbered one head after the other; none for numbers.
  [[nodiscard]] LabelsOfSamples strata() const override;
  void reorder(const std::vector<std::int64_t>& order) override;
  /// Balances the classes by the options. Before this call each text is a sample.
  void arrange() override;

  [[nodiscard]] std::string name() const override { return "labelled texts"; }
  [[nodiscard]] std::int64_t size() const override {
    return order_ ? std::ssize(*order_) : std::ssize(samples_);
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.length;
  }

  [[nodiscard]] const Labels& labels() const { return options_.labels; }
  /// With several heads, the name of a class is "HEAD/CLASS", such as "topic/sport".
  [[nodiscard]] ClassCounts class_counts() const override;
  [[nodiscard]] std::int64_t tokens() const override;
  /// A hash of tokens, labels, label names and length.
  [[nodiscard]] std::string fingerprint() const override;

 private:
  struct Sample {
    std::vector<std::int32_t> ids;      ///< at most T
    std::vector<std::int32_t> types;    ///< of a pair; empty: all 0
    std::int64_t label = 0;             ///< for LabelKind::Class
    std::vector<std::int64_t> classes;  ///< for LabelKind::Heads
    std::vector<float> numbers;         ///< for the other kinds
  };
  /// Returns whether two texts, the second perhaps empty, fit into a sample.
  [[nodiscard]] bool fits(const text::Tokenizer& tokenizer,
                          const std::string& text,
                          const std::string& pair) const;
  [[nodiscard]] std::int64_t room(const text::Tokenizer& tokenizer, bool pair) const;
  [[nodiscard]] Sample sample_of(const data::Record& record,
                                 const TextFields& fields,
                                 const std::string& text,
                                 const text::Tokenizer& tokenizer);
  void tokenize(const text::Tokenizer& tokenizer,
                const std::string& text,
                const std::string& pair,
                Sample& out);
  void read_label(const data::Record& record, const std::string& field, Sample& out) const;
  [[nodiscard]] const Sample& sample(std::int64_t index) const;

  LabelledTextsOptions options_;
  bool pairs_ = false;  // some sample has types
  std::vector<Sample> samples_;
  std::optional<std::vector<std::int64_t>> order_;  // of balanced samples
};

}  // namespace tessera::tasks
