// SPDX-License-Identifier: Apache-2.0
// Texts with the texts that answer them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// How a pair is read of a record.
struct PairFields {
  std::string source = "source", target = "target";
  std::string prefix;  ///< stands before every source
};

/// Tokenized pairs: "input_ids" [S] and "labels" [T], int64, each with the tokenizer's end of text
/// behind it, and "attention_mask" [S], 0 at padding, where a source of the batch is shorter.
/// Longer texts lose their end, but not the token that ends them; shorter sources are padded on the
/// right with that token, shorter targets with -100. Threads: const methods from any thread.
class TextPairs final : public RecordDataset {
 public:
  /// `source_length` and `target_length`: S and T, above 0.
  TextPairs(std::int64_t source_length, std::int64_t target_length, std::int32_t end);

  /// Reads and tokenizes the records of `files`. `poll` is called now and then. Error{Data} with
  /// file and line for a record that cannot be read, and for an empty text.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const PairFields& fields,
                  const data::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

  [[nodiscard]] std::string name() const override { return "pairs of texts"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return source_length_;
  }
  /// Of sources and targets.
  [[nodiscard]] std::int64_t tokens() const override;
  /// Of tokens and lengths.
  [[nodiscard]] std::string fingerprint() const override;

 private:
  using Ids = std::vector<std::int32_t>;
  struct Pair {
    Ids source, target;  ///< with the end
  };
  [[nodiscard]] Ids ids_of(const std::string& text,
                           std::int64_t length,
                           const data::Tokenizer& tokenizer);

  std::int64_t source_length_, target_length_;
  std::int32_t end_;
  std::vector<Pair> samples_;
};

}  // namespace tessera::tasks
