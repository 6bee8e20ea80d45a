// SPDX-License-Identifier: Apache-2.0
// Reward 1 for a completion that equals the answer of its record.
#include <memory>
#include <string>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct ExactMatchOptions {
  std::string field = "answer";
  bool ignore_case = false;
  void describe(config::Fields& fields) {
    fields.field("field", field, {.text = "Field of the record that has the answer."});
    fields.field("ignore_case", ignore_case, {.text = "Whether A is a."});
  }
};

class ExactMatch final : public RuleReward {
 public:
  explicit ExactMatch(ExactMatchOptions options) : options_(std::move(options)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    const std::string wanted = field_text(answer, options_.field);
    const auto form = [&](std::string_view text) {
      const std::string_view trimmed = text::trim(text);
      return options_.ignore_case ? text::lower(trimmed) : std::string(trimmed);
    };
    return form(answer.text) == form(wanted) ? 1.0 : 0.0;
  }

 private:
  ExactMatchOptions options_;
};

std::unique_ptr<RuleReward> make_exact_match(const json::Value& params,
                                             config::Problems& problems,
                                             config::Origins& origins) {
  ExactMatchOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<ExactMatch>(std::move(options));
}

TESSERA_RL_REWARD("exact_match", make_exact_match);

}  // namespace
}  // namespace tessera::tasks
