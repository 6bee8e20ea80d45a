// SPDX-License-Identifier: Apache-2.0
// The answers of models to the same prompts, with the scores of a reward model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::rlhf {

/// One model's answers.
struct Answers {
  std::vector<std::string> texts;
  std::vector<double> scores;  ///< empty without a reward model
};
struct AnswerOptions {
  std::optional<std::string> reward;  ///< run, checkpoint or folder of the model that scores
  std::int64_t max_new_tokens = 100;
  double temperature = 0.0;  ///< 0: always the most likely token
  std::uint64_t seed = 1234;
};
/// Lets the model at `path` (run, checkpoint or folder) answer each prompt in this process. Throws
/// the errors of find_model(), check_memory() and find_scorer().
Answers answers_of(const std::string& path,
                   const std::vector<std::string>& prompts,
                   const AnswerOptions& options);

/// Returns a page of HTML with the prompts and the answers of two models, which are named
/// `models`, side by side.
std::string comparison_page(const std::array<std::string, 2>& models,
                            const std::vector<std::string>& prompts,
                            const std::array<Answers, 2>& answers);

}  // namespace tessera::rlhf
