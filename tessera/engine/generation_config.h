// SPDX-License-Identifier: Apache-2.0
// Reads generation_config.json, in which the folder of a published model has defaults for generated
// texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/engine/open_model.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera::engine {

/// The keys of Hugging Face's generation_config.json that tessera has; absent ones are empty.
struct GenerationConfig {
  /// All ids that end a text: those of the tokenizer, eos_token_id of this file and of config.json,
  /// and the token that the model's chat template writes after an answer.
  std::vector<std::int32_t> ends;
  /// Options for drawing tokens; absent unless do_sample is true. Otherwise temperature is 0 for a
  /// Hugging Face folder, because do_sample is false by default, and absent for a run of tessera.
  std::optional<double> temperature, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff;
  std::optional<std::int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> no_repeat_ngram, min_new_tokens;
};

/// The folders that may have the files of a model's tokenizer and chat template, best first.
std::vector<std::filesystem::path> folders_of(const OpenModel& model);
/// The chat template of a model: the one of its run's task, or of its folder; nothing if it has
/// none. Throws Error{Config} if the file that the task names is missing.
std::optional<text::chat::ChatTemplate> chat_template_of(const OpenModel& model);

/// Reads the files in the folder from which the model is read; a model without them has an empty
/// one. Throws Error{Format} for values that are not numbers in their ranges.
GenerationConfig generation_config_of(const OpenModel& model);

}  // namespace tessera::engine
