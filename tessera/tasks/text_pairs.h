// SPDX-License-Identifier: Apache-2.0
// Pairs of a source text and the target text that answers it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tasks/record_dataset.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The ids of a text that ends with the tokenizer's end of text.
std::vector<std::int32_t> ids_with_end(std::string_view text, const text::Tokenizer& tokenizer);

/// The fields of a record that form a pair.
struct PairFields {
  std::string source = "source", target = "target";
  std::string prefix;  ///< inserted before every source
};

/// Tokenized pairs: "input_ids" [S] and "labels" [T], int64, each followed by the tokenizer's end
/// of text, and "attention_mask" [S], 0 at padding, if a source of the batch is shorter. Longer
/// texts are truncated but keep their end token; shorter sources are padded on the right with that
/// token, shorter targets with -100. Const methods can be called from any thread.
class TextPairs final : public RecordDataset {
 public:
  /// `source_length` and `target_length`: S and T, above 0.
  TextPairs(std::int64_t source_length, std::int64_t target_length, std::int32_t end);

  /// Reads and tokenizes the records of `files`. Calls `poll` now and then. Throws Error{Data} with
  /// file and line for a record that cannot be read, and for an empty text.
  void read_files(const std::vector<std::string>& files,
                  const data::RecordOptions& how,
                  const PairFields& fields,
                  const text::Tokenizer& tokenizer,
                  const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override;

  [[nodiscard]] std::string name() const override { return "pairs of texts"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return source_length_;
  }
  /// Counts sources and targets.
  [[nodiscard]] std::int64_t tokens() const override;
  /// A hash of tokens and lengths.
  [[nodiscard]] std::string fingerprint() const override;

 private:
  using Ids = std::vector<std::int32_t>;
  struct Pair {
    Ids source, target;  ///< including the end token
  };
  [[nodiscard]] Ids ids_of(const std::string& text,
                           std::int64_t length,
                           const text::Tokenizer& tokenizer);

  std::int64_t source_length_, target_length_;
  std::int32_t end_;
  std::vector<Pair> samples_;
};

}  // namespace tessera::tasks
