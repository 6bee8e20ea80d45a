// SPDX-License-Identifier: Apache-2.0
// Reward 1 for a completion whose number after a mark, such as GSM8K's ####, is that of its record.
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct NumberOptions {
  std::string field = "answer", after = "####";
  double tolerance = 0.0;
  void describe(config::Fields& fields) {
    fields.field("field",
                 field,
                 {.text = "Field of the record that has the number, or a text with it behind the "
                          "mark."});
    fields.field("after", after, {.text = "Text before the number; the last one counts."});
    fields.field("tolerance",
                 tolerance,
                 {.text = "The largest difference from the record's number.", .min = 0});
  }
};

/// Returns the number at the beginning of `text`, after spaces and a currency sign: "$1,234.5" is
/// 1234.5.
std::optional<double> leading_number(std::string_view text) {
  std::size_t at = text.find_first_not_of(" \t\n$");
  if (at == std::string_view::npos) return std::nullopt;
  std::string digits;
  constexpr std::size_t kLongest = 64;
  for (; at < text.size() && digits.size() < kLongest; ++at) {
    const char c = text[at];
    if (c == ',' && !digits.empty()) continue;
    const bool part = (c >= '0' && c <= '9') || c == '.' || (c == '-' && digits.empty());
    if (!part) break;
    digits += c;
  }
  if (!digits.empty() && digits.back() == '.') digits.pop_back();
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

class Number final : public RuleReward {
 public:
  explicit Number(NumberOptions options) : options_(std::move(options)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    const std::string text = field_text(answer, options_.field);
    const std::optional<double> wanted =
        text.find(options_.after) == std::string::npos ? leading_number(text) : marked(text);
    TESSERA_REQUIRE(wanted.has_value(),
                    Data,
                    fmt::format("{}: \"{}\" holds no number", answer.place, options_.field),
                    "give a number, or a text that has one behind " + options_.after);
    const std::optional<double> given = marked(answer.text);
    return given && std::abs(*given - *wanted) <= options_.tolerance ? 1.0 : 0.0;
  }

 private:
  [[nodiscard]] std::optional<double> marked(std::string_view text) const {
    const std::size_t at = text.rfind(options_.after);
    if (at == std::string_view::npos) return std::nullopt;
    return leading_number(text.substr(at + options_.after.size()));
  }
  NumberOptions options_;
};

std::unique_ptr<RuleReward> make_number(const json::Value& params,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  NumberOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Number>(std::move(options));
}

TESSERA_RL_REWARD("number", make_number);

}  // namespace
}  // namespace tessera::tasks
