// SPDX-License-Identifier: Apache-2.0
// Rewards of a completion's length: within bounds, the soft punishment of long ones (Yu et al.
// 2025, DAPO), and the punishment of those without an end (the missing_eos_penalty of TRL's PPO).
#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct LengthOptions {
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
  void describe(config::Fields& fields) {
    fields.field(
        "min", min, {.text = "The smallest length that is rewarded.", .unit = "tokens", .min = 0});
    fields.field("max",
                 max,
                 {.text = "The largest length that is rewarded.",
                  .unit = "tokens",
                  .min = 0,
                  .default_text = "none"});
  }
};

class Length final : public RuleReward {
 public:
  explicit Length(LengthOptions options) : options_(options) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    return answer.tokens >= options_.min && answer.tokens <= options_.max.value_or(answer.tokens)
               ? 1.0
               : 0.0;
  }

 private:
  LengthOptions options_;
};

struct OverlongOptions {
  std::int64_t max = 0, buffer = 0;
  void describe(config::Fields& fields) {
    fields.field("max",
                 max,
                 {.text = "The length from which on the reward is -1.",
                  .unit = "tokens",
                  .min = 1,
                  .required = true});
    fields.field("buffer",
                 buffer,
                 {.text = "Number of tokens before that length over which the reward falls from 0.",
                  .unit = "tokens",
                  .min = 1,
                  .required = true});
  }
};

class Overlong final : public RuleReward {
 public:
  explicit Overlong(OverlongOptions options) : options_(options) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    const std::int64_t over = answer.tokens - (options_.max - options_.buffer);
    return -std::clamp(static_cast<double>(over) / static_cast<double>(options_.buffer), 0.0, 1.0);
  }

 private:
  OverlongOptions options_;
};

struct MissingEndOptions {
  void describe(config::Fields& /*fields*/) {}
};

/// Its weight is what a completion without an end loses.
class MissingEnd final : public RuleReward {
 public:
  [[nodiscard]] double of(const Answer& answer) const override { return answer.ended ? 0.0 : -1.0; }
};

std::unique_ptr<RuleReward> make_missing_end(const json::Value& params,
                                             config::Problems& problems,
                                             config::Origins& origins) {
  MissingEndOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<MissingEnd>();
}

std::unique_ptr<RuleReward> make_length(const json::Value& params,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  LengthOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Length>(options);
}

std::unique_ptr<RuleReward> make_overlong(const json::Value& params,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  OverlongOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Overlong>(options);
}

TESSERA_RL_REWARD("length", make_length);
TESSERA_RL_REWARD("overlong", make_overlong);
TESSERA_RL_REWARD("missing_end", make_missing_end);

}  // namespace
}  // namespace tessera::tasks
