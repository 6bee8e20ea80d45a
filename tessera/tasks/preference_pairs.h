// SPDX-License-Identifier: Apache-2.0
// Samples of two sequences: a chosen and a rejected completion of one prompt, or a labelled
// completion and one that answers another prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The kind of the records.
enum class PreferenceKind : std::uint8_t {
  Pairs,    ///< chosen, rejected, optionally prompt and margin
  Labelled  ///< prompt, completion, label
};

/// The two sequences of a record of the kind Pairs. `prompt` may be absent; then it is the common
/// beginning of `chosen` and `rejected`. All three are strings, or lists of messages; a single
/// message may replace a list of one, and `conversations` the prompt. Records of WebGPT comparisons
/// and of Stanford Human Preferences are read too, with DeepSpeed-Chat's words around the question,
/// " Human: ... Assistant:". Throws Error{Data} for other
/// records and for equal sequences.
struct TokenPair {
  LearnedTokens chosen, rejected;  ///< learned: tokens of the completion
};
TokenPair pair_of(const data::Record& record, const ConversationTokenizer& tokenizer);

struct PreferenceOptions {
  std::int64_t length = 0;  ///< T, in tokens, shared by both sequences
  std::int32_t pad_id = 0;
  PreferenceKind kind = PreferenceKind::Pairs;
  bool reference = false;  ///< samples have "reference"
  bool margins = false;    ///< samples have "margin"
  /// Both sequences take the same number of tokens of the row, so that their tokens can be compared
  /// one by one: padding follows the shorter one, which sees its sequence.
  bool aligned = false;
  /// Labelled: the number of consecutive samples that exchange their completions; below 2: all.
  std::int64_t group = 0;
};

/// "input_ids" [T], int64: both sequences, one after the other. "document_starts" [T]: for each
/// token the position of its sequence's first token, because the sequences do not attend to each
/// other. "labels" [T]: the next token of the same sequence, else -100; "completion" [T]: 1 where
/// that token belongs to the completion. "second_text": the position at which the second sequence
/// begins. "attention_mask" [T], 0 at padding, if a sample of the batch has padding. Pairs:
/// optionally "margin", fp32; if aligned "ends" [2], the numbers of tokens of both, and "compared"
/// [2], the first token that differs and the end of the longer one. Labelled: "wanted", 1 or 0; the
/// second sequence is the prompt with the completion of the sample before it, or, for the first of
/// a group, of the last one. If the sequences together exceed T, their ends are truncated. Const
/// methods can be called from any thread.
class PreferenceSamples final : public RecordDataset {
 public:
  explicit PreferenceSamples(PreferenceOptions options) : options_(options) {}

  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const ConversationTokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override;
  void arrange() override;

  [[nodiscard]] std::string name() const override { return "preferences"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(samples_); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.length;
  }
  [[nodiscard]] std::optional<data::TensorSpec> made_by_model() const override;
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] std::string fingerprint() const override;
  /// Returns the two sequences of a sample: chosen and rejected for pairs.
  [[nodiscard]] std::pair<const LearnedTokens&, const LearnedTokens&> texts(
      std::int64_t index) const {
    const Sample& sample = samples_.at(static_cast<std::size_t>(index));
    return {sample.first, sample.second};
  }
  /// Number of skipped records, of which a completion did not fit.
  [[nodiscard]] std::int64_t left_out() const { return left_out_; }

 private:
  struct Sample {
    LearnedTokens first, second;
    double margin = 0.0;
    bool wanted = true;
  };
  void fit(Sample& sample);
  /// The sample whose completion follows this one's prompt in its second sequence.
  [[nodiscard]] std::size_t partner_of(std::size_t sample) const;

  PreferenceOptions options_;
  std::vector<Sample> samples_;
  std::int64_t left_out_ = 0;
};

}  // namespace tessera::tasks
