// SPDX-License-Identifier: Apache-2.0
// Reward models: a decoder learns to score the chosen completion of a prompt above the rejected
// one.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tessera/tasks/preference_task_base.h"

namespace tessera::tasks {
namespace {

/// The scores of the two sequences of a pair that are compared.
enum class Compared : std::uint8_t { Last, Tokens };
constexpr auto kCompared = std::to_array<config::Named<Compared>>(
    {{Compared::Last, "last"}, {Compared::Tokens, "tokens"}});

struct RewardOptions {
  Compared compare = Compared::Last;
  double centering = 0.0;
  bool margin = false;
  std::string chat_template;
  void describe(config::Fields& fields) {
    fields.choice("compare",
                  compare,
                  kCompared,
                  {.text = "What is compared: the scores of both sequences at their last token, or "
                           "at each token from the first difference to the end of the longer "
                           "sequence, as DeepSpeed-Chat does."});
    fields.field(
        "centering",
        centering,
        {.text = "Weight of the squared sum of a pair's scores, which keeps the mean score at 0.",
         .min = 0});
    fields.field("margin",
                 margin,
                 {.text = "Whether records have a number \"margin\" by which the chosen "
                          "completion's score should be larger."});
    describe_chat_template(chat_template, fields);
  }
};

class Reward final : public PreferenceTaskBase {
 public:
  explicit Reward(const RewardOptions& options)
      : PreferenceTaskBase({.margins = options.margin,
                            .aligned = options.compare == Compared::Tokens,
                            .chat_template = options.chat_template}),
        centering_(options.centering),
        tokens_(options.compare == Compared::Tokens) {}

  [[nodiscard]] std::string objective() const override { return "reward"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    if (tokens_) return json::Value::object({{"tokens", json::Value::boolean(true)}});
    return json::Value::object({{"centering", json::Value::number(centering_)}});
  }

 private:
  double centering_;
  bool tokens_;
};

std::unique_ptr<Task> make_reward(const json::Value& params,
                                  config::Problems& problems,
                                  config::Origins& origins) {
  RewardOptions options;
  config::read(params, options, problems, origins);
  for (const char* key : {"centering", "margin"}) {
    if (options.compare == Compared::Last || !origins.given(key)) continue;
    problems.add(origins.place(key),
                 key,
                 "scores of single tokens are compared without it",
                 "remove it, or set compare to \"last\"");
  }
  return std::make_unique<Reward>(options);
}

TESSERA_TASK("reward", make_reward);

}  // namespace
}  // namespace tessera::tasks
