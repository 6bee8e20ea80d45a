// SPDX-License-Identifier: Apache-2.0
// Rules that change the logits of the next token before it is chosen, with the semantics and order
// of transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::engine {

/// The rules of a call. The defaults change nothing.
struct LogitsRules {
  double repetition_penalty = 1.0;   ///< Keskar et al. 2019; applies to tokens in prompt and output
  double frequency_penalty = 0.0;    ///< subtracted once per occurrence of a generated token
  double presence_penalty = 0.0;     ///< subtracted once for every generated token
  std::int64_t no_repeat_ngram = 0;  ///< no sequence of this many tokens occurs twice; 0: no limit
  std::vector<std::vector<std::int32_t>> bad_words;  ///< token sequences that are never completed
  std::int64_t min_new_tokens = 0;                   ///< no end before this many tokens
  /// Fraction of the most likely token's probability.
  double min_p = 0.0;
  double typical_p = 1.0;       ///< probability mass of the typical tokens, Meister et al. 2022
  double epsilon_cutoff = 0.0;  ///< minimum probability, Hewitt et al. 2022
  double eta_cutoff = 0.0;      ///< the same, lower where the entropy is high

  /// True if a rule other than temperature, top-k and top-p is set.
  [[nodiscard]] bool any() const;
};

/// The tokens read and generated so far.
struct TokenHistory {
  std::span<const std::int32_t> ids;  ///< prompt and new tokens
  std::size_t prompt = 0;             ///< number of these that belong to the prompt
};

// Each function works on one row; minus infinity removes a token. `keep`: minimum number of tokens
// that remain.
void apply_repetition_penalty(std::span<double> logits, const TokenHistory& seen, double penalty);
void apply_count_penalties(std::span<double> logits,
                           const TokenHistory& seen,
                           double frequency,
                           double presence);
void remove_repeated_ngrams(std::span<double> logits, const TokenHistory& seen, std::int64_t size);
void remove_bad_words(std::span<double> logits,
                      const TokenHistory& seen,
                      const std::vector<std::vector<std::int32_t>>& words);
void remove_ends_before(std::span<double> logits,
                        const TokenHistory& seen,
                        std::int64_t min_new_tokens,
                        std::span<const std::int32_t> ends);
void apply_temperature(std::span<double> logits, double temperature);
void keep_top_k(std::span<double> logits, std::int64_t k, std::size_t keep = 1);
void keep_top_p(std::span<double> logits, double p, std::size_t keep = 1);
void keep_min_p(std::span<double> logits, double p, std::size_t keep = 1);
void keep_typical(std::span<double> logits, double mass, std::size_t keep = 1);
void keep_epsilon(std::span<double> logits, double epsilon, std::size_t keep = 1);
void keep_eta(std::span<double> logits, double epsilon, std::size_t keep = 1);

/// The rules that also apply to greedy decoding and to beams: penalties, n-grams, bad words,
/// minimum length.
void apply_rules(std::span<double> logits,
                 const LogitsRules& rules,
                 const TokenHistory& seen,
                 std::span<const std::int32_t> ends);

std::vector<double> softmax(std::span<const double> logits);
void log_softmax(std::span<double> logits);

}  // namespace tessera::engine
