// SPDX-License-Identifier: Apache-2.0
// Samples of supervised fine-tuning: sequences in which some tokens are learned, one per sample or
// packed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/data/dataset.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/packing.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The end of a sequence that is kept if it is too long.
enum class Truncation : std::uint8_t { KeepStart, KeepEnd };
constexpr auto kTruncations = std::to_array<config::Named<Truncation>>(
    {{Truncation::KeepStart, "keep_start"}, {Truncation::KeepEnd, "keep_end"}});

struct SftSamplesOptions {
  std::int64_t length = 0;  ///< T, in tokens
  std::int32_t pad_id = 0;
  Packing packing = Packing::BestFit;
  Truncation truncation = Truncation::KeepStart;
  LossOn loss_on = LossOn::Auto;
  std::optional<Form> form;  ///< absent: detected by the fields of each record
  std::string text_field = "text";
  bool drop_system = false;    ///< leaves out the system text of a conversation
  bool drop_unlearned = true;  ///< skip sequences without learned tokens
};

/// "input_ids" [T] and "labels" [T], int64: labels[t] is the token after input_ids[t] if that is
/// learned and belongs to the same sequence, else -100. "attention_mask" [T], 0 at padding, if a
/// sample of the batch has padding. Packed sequences do not attend to each other: "document_starts"
/// [T] has for each token the position of its sequence's first token (not with Packing::Wrapped).
/// Const methods can be called from any thread.
class SftSamples final : public RecordDataset {
 public:
  explicit SftSamples(SftSamplesOptions options) : options_(std::move(options)) {}

  /// Adds the records of the files. Records without learned tokens are skipped and counted.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const ConversationTokenizer& tokenizer,
                  const std::function<void()>& poll);
  void add(LearnedTokens text);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override;
  /// Packs the sequences. Before this call each sequence is a sample.
  void arrange() override;

  [[nodiscard]] std::string name() const override { return "texts to learn from"; }
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.length;
  }
  [[nodiscard]] std::int64_t tokens() const override;
  /// A hash of tokens, learned flags, length and packing.
  [[nodiscard]] std::string fingerprint() const override;
  /// Number of records without learned tokens.
  [[nodiscard]] std::int64_t unlearned() const { return unlearned_; }

 private:
  [[nodiscard]] bool documents_apart() const;

  SftSamplesOptions options_;
  std::vector<LearnedTokens> texts_;
  std::optional<std::vector<PackedSample>> samples_;
  std::int64_t unlearned_ = 0;
};

}  // namespace tessera::tasks
