// SPDX-License-Identifier: Apache-2.0
// Options of every command that generates text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cli/arguments.h"
#include "tessera/engine/generate.h"

namespace tessera::cli {

struct GenerationWords {
  std::int64_t max_new_tokens = 100, top_k = 0, seed = 1234, no_repeat_ngram = 0,
               min_new_tokens = 0;
  double temperature = 1.0, top_p = 1.0, min_p = 0.0, typical_p = 1.0, epsilon_cutoff = 0.0,
         eta_cutoff = 0.0, repetition_penalty = 1.0, frequency_penalty = 0.0,
         presence_penalty = 0.0;
  std::vector<std::string> bad_words, stop, stop_ids;
  bool ignore_eos = false;

  void declare(Arguments& arguments);
  /// Throws Error{Config} for values out of range and for options that contradict each other.
  void check() const;
  /// Throws Error{Config} for options that beam search does not support.
  void check_for_beams() const;
  [[nodiscard]] engine::GenerateOptions options(const data::Tokenizer& tokenizer) const;
};

/// "full", "heuristic" or "never"; throws Error{Config} for any other value.
engine::EarlyStopping early_stopping_from_name(std::string_view name);

}  // namespace tessera::cli
