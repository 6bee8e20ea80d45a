// SPDX-License-Identifier: Apache-2.0
// Span corruption: spans of a token sequence are replaced by sentinels, and the model predicts the
// spans.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"

namespace tessera::tasks {

/// The spans that are removed.
struct SpanNoise {
  double density = 0.15;     ///< share of removed tokens, above 0 and below 1
  double mean_length = 3.0;  ///< mean length of a span, at least 1
  /// The ids that replace the first span, the second, ... of a sample.
  std::vector<std::int32_t> sentinels;
  std::int32_t end = 0;  ///< ends inputs and targets, and pads them
  std::uint64_t seed = 1234;
  bool dynamic = true;  ///< chooses new spans each time that a sample is read for training
  /// All settings as text, for the fingerprint of the data.
  [[nodiscard]] std::string text() const;
};

/// The numbers of removed tokens and spans of a sequence, and the lengths of the resulting input
/// and target, including their ends.
struct SpanCounts {
  std::int64_t noise = 0, spans = 0, input = 0, target = 0;
};
/// The counts for a sequence of `tokens` tokens. `noise` is tokens * density, rounded to even, but
/// at least one and not all; `spans` is noise / mean_length, rounded likewise, at least one. A
/// single token is never removed. Source: T5's random_spans_helper.
SpanCounts count_spans(std::int64_t tokens, double density, double mean_length);
/// The longest sequence whose input has at most `input` tokens; 0: none. If at most half of the
/// tokens are removed, its target is no longer than its input.
std::int64_t text_length_for(std::int64_t input, double density, double mean_length);

/// Marks the removed tokens of a sequence: spans of random lengths of at least one token alternate
/// with kept spans, starting with a kept one. All divisions into spans are equally likely; the
/// result is a function of (seed, sample).
std::vector<bool> choose_spans(std::int64_t tokens, const SpanNoise& noise, std::int64_t sample);

/// The samples of another dataset without their spans: "input_ids" [S], with a sentinel for each
/// span; "labels" [T], each sentinel followed by its span, -100 after their end; and
/// "attention_mask" [S] if an input is shorter; all int64. Const methods can be called from any
/// thread. Source: Raffel et al. 2020, "Exploring the limits of transfer learning with a unified
/// text-to-text transformer", 3.1.4.
class CorruptedSpans final : public data::Dataset {
 public:
  /// `input_length`: S, at least that of count_spans(tokens->length()).
  CorruptedSpans(std::unique_ptr<data::TokenDataset> tokens,
                 std::int64_t input_length,
                 SpanNoise noise);

  [[nodiscard]] std::string name() const override { return "corrupted spans"; }
  [[nodiscard]] std::int64_t size() const override { return tokens_->size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return input_length_;
  }

 private:
  std::unique_ptr<data::TokenDataset> tokens_;
  std::int64_t input_length_;
  SpanNoise noise_;
  SpanCounts counts_;  // for a sequence of the full length
};

}  // namespace tessera::tasks
