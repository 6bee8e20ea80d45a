// SPDX-License-Identifier: Apache-2.0
// Rewards of completions by rules. Adding one is one file in tasks/rl_rewards/ that ends with
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

/// A completion as rewards see it.
struct Answer {
  const json::Value& record;  ///< that the prompt was made of, with all its fields
  std::string_view place;     ///< of the record, for messages
  std::string_view prompt, text;
  std::int64_t tokens = 0;  ///< of the completion, with its end
  bool ended = false;       ///< whether it has an end; else it was cut
};

/// Threads: const methods from any thread.
class RuleReward {
 public:
  virtual ~RuleReward() = default;
  /// Error{Data} with the place of a record that lacks what the rule compares with.
  [[nodiscard]] virtual double of(const Answer& answer) const = 0;
};
using RuleRewardFactory = std::unique_ptr<RuleReward> (*)(const json::Value& params,
                                                          config::Problems& problems,
                                                          config::Origins& origins);
Registry<RuleRewardFactory>& rule_rewards();
#define TESSERA_RL_REWARD(name, factory)          \
  static const bool tessera_rl_reward_##factory = \
      ::tessera::tasks::rule_rewards().add(name, factory)

/// The type "command": a program that is given completions as lines of JSON.
struct CommandRewardOptions {
  std::vector<std::string> command;  ///< the program and its words; no shell reads them
  double timeout = 60.0;             ///< seconds without an answer
  std::int64_t restarts = 3;
  void describe(config::Fields& fields);
};
/// The type "model": a model that scores texts.
struct ModelRewardOptions {
  std::string from;
  void describe(config::Fields& fields);
};

/// One of `rl.rewards`: exactly one of rule, command and model is there.
struct RlReward {
  std::string name;  ///< in reports; by default the type
  double weight = 1.0;
  std::shared_ptr<const RuleReward> rule;
  std::optional<CommandRewardOptions> command;
  std::optional<ModelRewardOptions> model;
};

/// The list of `rl.rewards`. Problems carry their places, under "rewards".
std::vector<RlReward> read_rewards(const json::Value& list, config::Problems& problems);

/// The text of a field of the answer's record; numbers as they are written. Error{Data}.
std::string field_text(const Answer& answer, const std::string& field);

}  // namespace tessera::tasks
