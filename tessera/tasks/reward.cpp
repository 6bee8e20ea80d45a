// SPDX-License-Identifier: Apache-2.0
// Reward models: a decoder learns to score the chosen completion of a prompt above the rejected
// one.
#include <memory>
#include <string>
#include <utility>

#include "tessera/tasks/preference_task.h"

namespace tessera::tasks {
namespace {

struct RewardOptions {
  double centering = 0.0;
  bool margin = false;
  std::string chat_template;
  void describe(config::Fields& fields) {
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

class Reward final : public PreferenceTask {
 public:
  explicit Reward(const RewardOptions& options)
      : PreferenceTask({.margins = options.margin, .chat_template = options.chat_template}),
        centering_(options.centering) {}

  [[nodiscard]] std::string objective() const override { return "reward"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    return json::Value::object({{"centering", json::Value::number(centering_)}});
  }

 private:
  double centering_;
};

std::unique_ptr<Task> make_reward(const json::Value& params,
                                  config::Problems& problems,
                                  config::Origins& origins) {
  RewardOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Reward>(options);
}

TESSERA_TASK("reward", make_reward);

}  // namespace
}  // namespace tessera::tasks
