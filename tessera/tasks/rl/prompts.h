// SPDX-License-Identifier: Apache-2.0
// Prompts that a policy answers during training.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/preference_pairs.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

struct Prompt {
  std::vector<std::int32_t> ids;
  std::string text;
  json::Value record;
  std::string place;  ///< "prompts.jsonl:12"
};

/// Returns the prompt of a record: "prompt", a text or messages, or "messages", from which a chat
/// template makes the beginning of an answer. Throws Error{Data} for other records, and for
/// messages that end with an answer.
Prompt prompt_of(const data::Record& record,
                 const ConversationTokenizer& conversations,
                 const text::Tokenizer& tokenizer);

struct PromptsOptions {
  std::int64_t length = 0;   ///< T, of a prompt with its completion
  std::int64_t longest = 0;  ///< longest prompt
  std::int32_t pad_id = 0;
  std::vector<std::int32_t> ends = {};  ///< ids that end a completion; empty: the tokenizer's
  std::int64_t uses = 1;                ///< samples per prompt: completions, times their updates
  bool reference = false;               ///< whether samples have "reference"
};

/// The samples of a policy: the tensors of a prompt with its completion in a batch, and the number
/// of samples per prompt. Completions are known only after the policy has written them: read()
/// gives a prompt without one. "input_ids" [T], int64; "labels" [T]: the next token if it belongs
/// to the completion, else -100; "advantages" and "old" [T], fp64, at the same positions: the
/// token's advantage, and its log-probability under the policy that wrote it; "reference" [T]: the
/// same under the reference. Const methods can be called from any thread.
class Prompts final : public RecordDataset {
 public:
  explicit Prompts(PromptsOptions options) : options_(options) {}
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const ConversationTokenizer& conversations,
                  const text::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  /// The ids that end a completion, whose tokens are those of `tokenizer`.
  [[nodiscard]] std::vector<std::int32_t> ends(const text::Tokenizer& tokenizer) const {
    return options_.ends.empty() ? tokenizer.ends() : options_.ends;
  }
  /// Adds pretraining texts, which are learned with the completions.
  void add_texts(data::OpenedDataset texts);
  /// Returns these texts; nullptr if there are none.
  [[nodiscard]] const data::Dataset* texts() const { return texts_.get(); }
  /// Adds the held-out pairs of the reward `name`.
  void add_pairs(const std::string& name, std::unique_ptr<const PreferenceSamples> pairs);
  /// Returns these pairs; nullptr if there are none.
  [[nodiscard]] const PreferenceSamples* pairs(const std::string& name) const;
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

  [[nodiscard]] std::string name() const override { return "prompts"; }
  [[nodiscard]] std::int64_t size() const override { return count() * options_.uses; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.length;
  }
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] std::string fingerprint() const override;

  [[nodiscard]] std::int64_t count() const { return std::ssize(prompts_); }
  [[nodiscard]] const Prompt& prompt(std::int64_t index) const {
    return prompts_.at(static_cast<std::size_t>(index));
  }
  /// Returns the number of prompts that leave no room for a completion.
  [[nodiscard]] std::int64_t left_out() const { return left_out_; }

 private:
  PromptsOptions options_;
  std::vector<Prompt> prompts_;
  std::int64_t left_out_ = 0;
  std::unique_ptr<data::Dataset> texts_;
  std::string texts_fingerprint_;
  std::map<std::string, std::unique_ptr<const PreferenceSamples>> pairs_;
};

}  // namespace tessera::tasks
