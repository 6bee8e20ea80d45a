// SPDX-License-Identifier: Apache-2.0
// Reward: the share of the answer with which a completion begins. It grows before the whole answer
// is right.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct PrefixMatchOptions {
  std::string field = "answer";
  void describe(config::Fields& fields) {
    fields.field("field", field, {.text = "Field of the record that has the answer."});
  }
};

class PrefixMatch final : public RuleReward {
 public:
  explicit PrefixMatch(PrefixMatchOptions options) : options_(std::move(options)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    const std::string wanted = field_text(answer, options_.field);
    if (wanted.empty()) return answer.text.empty() ? 1.0 : 0.0;
    const auto same = std::ranges::mismatch(wanted, answer.text).in1 - wanted.begin();
    return static_cast<double>(same) / static_cast<double>(wanted.size());
  }

 private:
  PrefixMatchOptions options_;
};

std::unique_ptr<RuleReward> make_prefix_match(const json::Value& params,
                                              config::Problems& problems,
                                              config::Origins& origins) {
  PrefixMatchOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<PrefixMatch>(std::move(options));
}

TESSERA_RL_REWARD("prefix_match", make_prefix_match);

}  // namespace
}  // namespace tessera::tasks
