// SPDX-License-Identifier: Apache-2.0
// Rewards of completions by rules. To add one, add a file to tasks/rl_rewards/ that ends with
// TESSERA_RL_REWARD.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::tasks {

/// A completion, as passed to rewards.
struct Answer {
  const json::Value& record;  ///< the record of the prompt, with all its fields
  std::string_view place;     ///< place of the record, for messages
  std::string_view prompt, text;
  std::int64_t tokens = 0;  ///< of the completion, including its end
  bool ended = false;       ///< whether it has an end; otherwise it was truncated
};

/// Const methods can be called from any thread.
class RuleReward {
 public:
  virtual ~RuleReward() = default;
  /// Throws Error{Data} with the place of a record that lacks the data with which the rule
  /// compares.
  [[nodiscard]] virtual double of(const Answer& answer) const = 0;
};
using RuleRewardFactory = std::unique_ptr<RuleReward> (*)(const json::Value& params,
                                                          config::Problems& problems,
                                                          config::Origins& origins);
Registry<RuleRewardFactory>& rule_rewards();
#define TESSERA_RL_REWARD(name, factory)          \
  static const bool tessera_rl_reward_##factory = \
      ::tessera::tasks::rule_rewards().add(name, factory)

/// The type "command": a program that receives completions as JSON lines.
struct CommandRewardOptions {
  std::vector<std::string> command;  ///< the program and its arguments; no shell interprets them
  double timeout = 60.0;             ///< seconds to wait for an answer
  std::int64_t restarts = 3;
  void describe(config::Fields& fields);
};
/// The type "http": a model behind an endpoint that answers as OpenAI's chat completions do.
struct HttpRewardOptions {
  std::string url;
  std::string model = "default";
  std::optional<std::string> system;
  /// {prompt}, {completion} and fields of the record in braces are replaced.
  std::string question =
      "Rate the answer to the question with a number from 0 to 10. Reply with the number alone.\n\n"
      "Question:\n{prompt}\n\nAnswer:\n{completion}";
  std::int64_t max_tokens = 16;
  double timeout = 60.0;  ///< seconds
  std::int64_t retries = 3;
  std::int64_t at_once = 8;    ///< requests
  std::string token_variable;  ///< environment variable with the token of the endpoint
  std::string ca_file;         ///< PEM; empty: the authorities of the system
  void describe(config::Fields& fields);
};
/// The type "model": a model that scores texts.
struct ModelRewardOptions {
  std::string from;
  std::vector<std::string> pairs;  ///< held out, for a test of the model before training
  void describe(config::Fields& fields);
};

/// One entry of `rl.rewards`: exactly one of rule, command, http and model is set.
struct RlReward {
  std::string name;  ///< in reports; the type by default
  double weight = 1.0;
  std::shared_ptr<const RuleReward> rule;
  std::optional<CommandRewardOptions> command;
  std::optional<HttpRewardOptions> http;
  std::optional<ModelRewardOptions> model;
};

/// Reads the list `rl.rewards`. Problems have their places, under "rewards".
std::vector<RlReward> read_rewards(const json::Value& list, config::Problems& problems);

/// Returns the text of a field of the answer's record; numbers as they are written. Throws
/// Error{Data}.
std::string field_text(const Answer& answer, const std::string& field);

}  // namespace tessera::tasks
