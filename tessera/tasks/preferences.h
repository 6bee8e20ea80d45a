// SPDX-License-Identifier: Apache-2.0
// Samples of two texts: a chosen and a rejected completion of one prompt, or a labelled completion
// beside one that answers another prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// What records are.
enum class PreferenceKind : std::uint8_t {
  Pairs,    ///< chosen, rejected, and perhaps prompt and margin
  Labelled  ///< prompt, completion, label
};

/// The two texts of a record of the kind Pairs. `prompt` may be absent: it is what `chosen` and
/// `rejected` begin with alike. All three are texts, or lists of messages; a single message may
/// stand for a list of one, and `conversations` for the prompt. Error{Data} for other records, and
/// for texts that are equal.
struct TokenPair {
  LearnedTokens chosen, rejected;  ///< learned: of the completion
};
TokenPair pair_of(const data::Record& record, const ConversationTokenizer& tokenizer);

struct PreferenceOptions {
  std::int64_t length = 0;  ///< T, in tokens, which both texts share
  std::int32_t pad_id = 0;
  PreferenceKind kind = PreferenceKind::Pairs;
  bool reference = false;  ///< whether samples have "reference"
  bool margins = false;    ///< whether samples have "margin"
};

/// "input_ids" [T], int64: both texts, one behind the other. "document_starts" [T]: for each token
/// the position of the first one of its text, as texts do not see each other. "labels" [T]: the
/// token behind, of the same text, else -100; "completion" [T]: 1 where that belongs to the
/// completion. "second_text": where the second text begins. "attention_mask" [T], 0 at padding,
/// where a sample of the batch has some. Pairs: perhaps "margin", fp32. Labelled: "wanted", 1 or 0;
/// the second text is the prompt with the next sample's completion. Texts that are too long for T
/// together lose their ends. Threads: const methods from any thread.
class PreferenceSamples final : public RecordDataset {
 public:
  explicit PreferenceSamples(PreferenceOptions options) : options_(options) {}

  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const ConversationTokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
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
  /// Records of which a completion did not fit.
  [[nodiscard]] std::int64_t left_out() const { return left_out_; }

 private:
  struct Sample {
    LearnedTokens first, second;
    double margin = 0.0;
    bool wanted = true;
  };
  void fit(Sample& sample);

  PreferenceOptions options_;
  std::vector<Sample> samples_;
  std::int64_t left_out_ = 0;
};

}  // namespace tessera::tasks
