// SPDX-License-Identifier: Apache-2.0
// Tests whether a policy was trained to end its answers, before it writes completions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/config/json.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/rlhf/completions.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/text/tokenizer.h"

// Legend: B answers, T tokens of a prompt with its answer.
namespace tessera::rlhf {

/// The name of the warning about a policy that does not end its answers.
inline constexpr const char* kUntrainedEnd = "untrained_end";

struct EndCheck {
  std::int64_t answers = 0;  ///< of the records, each with the end token behind it
  double probability = 0.0;  ///< mean probability of the end token behind an answer
  std::string end;           ///< the end token, as text with its number
  /// Returns a sentence if the probability is too small for a model that has learned to end
  /// answers.
  [[nodiscard]] std::optional<std::string> complaint() const;
};
json::Value to_json(const EndCheck& check);
/// Returns the text that says what the user can do about the warning.
std::string untrained_end_fix();

/// Puts each end token behind the answers of the first records that have one ("answer",
/// "completion", "response" or "chosen") and returns the mean of their probabilities' sum; nothing
/// if no record has one that fits into `length` tokens. `log_probabilities` returns those of the
/// labels of rows, [B, T]; it is called at most once, with about 16 rows.
std::optional<EndCheck> check_end(
    const tasks::Prompts& prompts,
    const text::Tokenizer& tokenizer,
    std::int64_t length,
    const std::function<at::Tensor(const Rows& rows)>& log_probabilities);

/// Returns a sentence if nearly all completions of the first rollout were truncated. `metrics`:
/// report_of(); `ends`: the tokens that end a completion.
std::optional<std::string> complaint_of_first_rollout(const engine::Metrics& metrics,
                                                      const std::vector<std::int32_t>& ends,
                                                      const text::Tokenizer& tokenizer);

}  // namespace tessera::rlhf
