// SPDX-License-Identifier: Apache-2.0
// Token sequences of which spans are left out: a sentinel stands for each, and the spans are what
// the model writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"

namespace tessera::tasks {

/// Which spans are left out.
struct SpanNoise {
  double density = 0.15;     ///< share of the tokens that are left out, above 0 and below 1
  double mean_length = 3.0;  ///< of a span, at least 1
  /// What stands for the first span, the second, ... of a sample.
  std::vector<std::int32_t> sentinels;
  std::int32_t end = 0;  ///< stands behind inputs and targets, and fills what is not used
  std::uint64_t seed = 1234;
  bool dynamic = true;  ///< other spans each time that a sample is read for training
  /// All of it, for the fingerprint of the data.
  [[nodiscard]] std::string text() const;
};

/// How many tokens and spans of a text are left out, and the lengths of what is made of it, both
/// with their end.
struct SpanCounts {
  std::int64_t noise = 0, spans = 0, input = 0, target = 0;
};
/// Of a text of `tokens` tokens. `noise` is the share that `density` says, rounded to even, but at
/// least one token and not all; `spans` is noise / mean_length rounded so, at least one. A single
/// token is never left out. Source: T5's random_spans_helper.
SpanCounts count_spans(std::int64_t tokens, double density, double mean_length);
/// The longest text whose input has at most `input` tokens; 0: none. Where half of the tokens are
/// left out, its target is no longer than its input.
std::int64_t text_length_for(std::int64_t input, double density, double mean_length);

/// Marks the tokens of a text that are left out: spans of random lengths, each at least one token,
/// alternate with what stays, beginning with what stays. All divisions into spans are as likely; a
/// function of (seed, sample).
std::vector<bool> choose_spans(std::int64_t tokens, const SpanNoise& noise, std::int64_t sample);

/// Samples of another dataset without their spans: "input_ids" [S], in which a sentinel stands for
/// each span, "labels" [T], each sentinel followed by its span, -100 behind their end, and
/// "attention_mask" [S] where an input is shorter; all int64. Threads: const methods from any
/// thread.  Source: Raffel et al. 2020, "Exploring the limits of transfer learning with a unified
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
  SpanCounts counts_;  // of a text of the full length
};

}  // namespace tessera::tasks
