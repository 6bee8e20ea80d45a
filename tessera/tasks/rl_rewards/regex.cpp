// SPDX-License-Identifier: Apache-2.0
// Reward 1 for a completion in which a regular expression is found.
#include <memory>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/tasks/rl/reward.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::tasks {
namespace {

struct RegexOptions {
  std::string pattern;
  void describe(config::Fields& fields) {
    fields.field("pattern",
                 pattern,
                 {.text = "What is searched for, in the dialect of PCRE2.", .required = true});
  }
};

class Regex final : public RuleReward {
 public:
  explicit Regex(text::tokenizers::PatternPtr pattern) : pattern_(std::move(pattern)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    text::tokenizers::Ranges found;
    try {
      pattern_->find(answer.text, found);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::Data) throw;
      return 0.0;  // if the search takes too long, the text does not match
    }
    return found.empty() ? 0.0 : 1.0;
  }

 private:
  text::tokenizers::PatternPtr pattern_;
};

std::unique_ptr<RuleReward> make_regex(const json::Value& params,
                                       config::Problems& problems,
                                       config::Origins& origins) {
  RegexOptions options;
  config::read(params, options, problems, origins);
  if (options.pattern.empty()) return nullptr;
  try {
    return std::make_unique<Regex>(text::tokenizers::regex_pattern(options.pattern));
  } catch (const Error& error) {
    problems.add(origins.place("pattern"), "pattern", error.what(), error.fix());
    return nullptr;
  }
}

TESSERA_RL_REWARD("regex", make_regex);

}  // namespace
}  // namespace tessera::tasks
