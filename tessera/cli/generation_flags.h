// SPDX-License-Identifier: Apache-2.0
// Options of every command that generates text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cli/arguments.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/generation_config.h"

namespace tessera::cli {

struct GenerationFlags {
  std::int64_t max_new_tokens = 100;
  // Options that are not given have the values of the folder's generation_config.json.
  std::optional<std::int64_t> seed, top_k, no_repeat_ngram, min_new_tokens;
  std::optional<double> temperature, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff,
      repetition_penalty;
  double frequency_penalty = 0.0, presence_penalty = 0.0;
  std::vector<std::string> bad_words, stop, stop_ids;
  bool ignore_eos = false, show_special = false;
  bool several = false;  ///< several texts of a prompt, which only drawing makes different

  void declare(Arguments& arguments);
  /// Throws Error{Config} for values out of range and for options that contradict each other.
  void check() const;
  /// Throws Error{Config} for options that beam search does not support.
  void check_for_beams() const;
  /// `folder`: the configuration of the model's folder. `draws`: false for beam search, which draws
  /// no tokens.
  [[nodiscard]] engine::GenerateOptions options(const text::Tokenizer& tokenizer,
                                                const engine::GenerationConfig& folder,
                                                bool draws = true) const;

 private:
  /// True if an option for cutting off the distribution (min-p, typical-p, ...) was given.
  [[nodiscard]] bool rules_draw() const;
  /// True if an option was given that has an effect only on tokens that are drawn.
  [[nodiscard]] bool asks_to_draw() const;
};

/// "full", "heuristic" or "never"; throws Error{Config} for any other value.
engine::EarlyStopping early_stopping_from_name(std::string_view name);

}  // namespace tessera::cli
