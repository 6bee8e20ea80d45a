// SPDX-License-Identifier: Apache-2.0
// Reward 1 for a completion that contains the given parts, each once and in order, such as <think>,
// </think>, <answer> and </answer>.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct FormatOptions {
  std::vector<std::string> parts;
  void describe(config::Fields& fields) {
    fields.field("parts",
                 parts,
                 {.text = "What a completion has to have, each part once and in this order.",
                  .required = true});
  }
};

class Format final : public RuleReward {
 public:
  explicit Format(FormatOptions options) : options_(std::move(options)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    std::size_t from = 0;
    for (const std::string& part : options_.parts) {
      const std::size_t at = answer.text.find(part);
      if (at == std::string_view::npos || at < from) return 0.0;
      if (answer.text.find(part, at + 1) != std::string_view::npos) return 0.0;
      from = at + part.size();
    }
    return 1.0;
  }

 private:
  FormatOptions options_;
};

std::unique_ptr<RuleReward> make_format(const json::Value& params,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  FormatOptions options;
  config::read(params, options, problems, origins);
  for (const std::string& part : options.parts) {
    if (part.empty()) problems.add(origins.place("parts"), "parts", "a part is empty", "remove it");
  }
  return std::make_unique<Format>(std::move(options));
}

TESSERA_RL_REWARD("format", make_format);

}  // namespace
}  // namespace tessera::tasks
