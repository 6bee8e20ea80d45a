// SPDX-License-Identifier: Apache-2.0
// piecewise_constant with diffusers' step_rules: factors on the optimizer's rate between steps.
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

constexpr const char* kRules = "step_rules";

struct Options {
  std::string rules;

  void describe(config::Fields& f) {
    f.field(
        kRules,
        rules,
        {.text =
             "Factors and steps: \"1:10,0.1:20,0.01\" is the optimizer's learning rate before step "
             "10, a tenth of it before step 20, and a hundredth after that; steps count from 0.",
         .required = true});
  }
};

struct StepRule {
  std::int64_t before = 0;  ///< not used by the last rule
  double factor = 1.0;
};

template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

/// Parses "factor:step", or "factor" alone for the last rule.
std::optional<StepRule> parse_rule(const std::string& text, bool last) {
  const std::vector<std::string> parts = text::split(text, ':');
  if (parts.size() != (last ? 1U : 2U)) return std::nullopt;
  const auto factor = parsed<double>(text::trim(parts[0]));
  const auto before =
      last ? std::optional<std::int64_t>(0) : parsed<std::int64_t>(text::trim(parts[1]));
  if (!factor || *factor < 0.0 || !before) return std::nullopt;
  return StepRule{*before, *factor};
}

std::vector<StepRule> parse_rules(const std::string& text,
                                  const json::Value& params,
                                  config::Problems& problems) {
  std::vector<StepRule> rules;
  const auto refuse = [&](const std::string& what) {
    problems.add(place_of(params, kRules), kRules, what, "write it like \"1:10,0.1:20,0.01\"");
    return std::vector<StepRule>{{}};
  };
  const std::vector<std::string> parts = text::split(text, ',');
  for (const std::string& part : parts) {
    const bool last = rules.size() + 1 == parts.size();
    const auto rule = parse_rule(part, last);
    if (!rule) {
      return refuse(fmt::format(
          "expected {}, found \"{}\"", last ? "a last factor alone" : "factor:step", part));
    }
    if (!last && !rules.empty() && rule->before <= rules.back().before)
      return refuse(
          fmt::format("step {} does not come after {}", rule->before, rules.back().before));
    rules.push_back(*rule);
  }
  return rules;
}

std::unique_ptr<Schedule> make_piecewise_constant(const json::Value& params,
                                                  const ScheduleContext& context,
                                                  config::Problems& problems,
                                                  config::Origins& origins) {
  const auto options = read_params<Options>(params, problems, origins);
  // A missing value or one that is not a string has been reported already.
  const auto rules = options.rules.empty() && !is_given(params, kRules)
                         ? std::vector<StepRule>{{}}
                         : parse_rules(options.rules, params, problems);
  return std::make_unique<Curve>(0, [rules, base_lr = context.base_lr](std::int64_t t) {
    for (std::size_t i = 0; i + 1 < rules.size(); ++i) {
      if (t < rules[i].before) return base_lr * rules[i].factor;
    }
    return base_lr * rules.back().factor;
  });
}

TESSERA_LR_SCHEDULE("piecewise_constant", make_piecewise_constant);

}  // namespace
}  // namespace tessera::optim
