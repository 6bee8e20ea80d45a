// SPDX-License-Identifier: Apache-2.0
// Hugging Face's schedules with its parameters, and diffusers' piecewise_constant: t = update - 1,
// factors on the optimizer's rate.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/optim/params.h"
#include "tessera/optim/schedule_table.h"

namespace tessera::interop {
namespace {

using optim::at_least_one, optim::half_cosine;
using optim::DecayShape, optim::Given, optim::ScheduleCheck, optim::ScheduleParam;

constexpr auto kFalls =
    std::to_array<config::Named<DecayShape>>({{DecayShape::Linear, "linear"},
                                              {DecayShape::Cosine, "cosine"},
                                              {DecayShape::SquareRoot, "1-sqrt"}});

const ScheduleParam kWarmupSteps{
    "num_warmup_steps", &Given::warmup, 0, {.unit = "steps", .min = 0}};
/// A share of all steps, rounded up; used if num_warmup_steps is 0.
const ScheduleParam kWarmupRatio{"warmup_ratio", &Given::warmup_share, 0, {.min = 0, .max = 1}};
const ScheduleParam kTotal{"num_training_steps", &Given::total, 0, {.unit = "steps", .min = 1}};
/// The library passes the length of the training to every schedule; these have no end.
const ScheduleParam kUnusedTotal{"num_training_steps", &Given::unused, 0, {.unit = "steps"}};
const ScheduleParam kCycles{"num_cycles", &Given::cycles, 0.5, {.min = 0, .above_min = true}};
const ScheduleParam kLowest{"min_lr", &Given::lowest, 0, {.min = 0}};
const ScheduleParam kLowestShare{"min_lr_rate", &Given::lowest_share, 0, {.min = 0}};

/// Linear from 0.
double from_zero(const Given& v, std::int64_t t) {
  return v.base * (static_cast<double>(t) / at_least_one(v.warmup));
}

/// Returns the fraction of the way from the end of the warm-up to the total.
double way(const Given& v, std::int64_t t) {
  return static_cast<double>(t - v.warmup) / at_least_one(v.total - v.warmup);
}

double waves(double cycles, double way) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * way));
}

/// Returns 1 if `share` is 1, `lowest` if it is 0.
double at_least(double lowest, double share) {
  return share * (1.0 - lowest) + lowest;
}

double linear(const Given& v, std::int64_t t) {
  return v.base *
         std::max(0.0, static_cast<double>(v.total - t) / at_least_one(v.total - v.warmup));
}

/// Rises again after its total, as in the library.
double cosine(const Given& v, std::int64_t t) {
  return v.base * waves(v.cycles, way(v, t));
}

double cosine_with_restarts(const Given& v, std::int64_t t) {
  const double share = way(v, t);
  if (share >= 1.0) return 0.0;
  return v.base * half_cosine(std::fmod(static_cast<double>(v.waves) * share, 1.0));
}

double polynomial(const Given& v, std::int64_t t) {
  if (t > v.total) return v.low;
  return (v.base - v.low) * std::pow(std::max(0.0, 1.0 - way(v, t)), v.power) + v.low;
}

void check_polynomial(Given& v, const ScheduleCheck& check) {
  if (v.low < v.base) return;
  check.problems.add(
      optim::place_of(check.params, "lr_end"),
      "lr_end",
      fmt::format("the end {} is not below the optimizer's rate of {}", v.low, v.base),
      "lower lr_end or raise optimizer.lr");
}

double inverse_sqrt(const Given& v, std::int64_t t) {
  const std::int64_t scale = v.length.value_or(v.warmup > 0 ? v.warmup : 10000);
  return v.base *
         (1.0 / std::sqrt(static_cast<double>(t + scale - v.warmup) / static_cast<double>(scale)));
}

/// Sets `share`, the lowest rate as a fraction of the optimizer's.
void find_lowest(Given& v, const ScheduleCheck& check) {
  const bool rate = optim::is_given(check.params, "min_lr"),
             share = optim::is_given(check.params, "min_lr_rate");
  if (rate == share) {
    check.problems.add(
        optim::place_of(check.params, "min_lr"),
        "min_lr",
        rate ? "must not be given together with min_lr_rate" : "is missing, and so is min_lr_rate",
        "give only one of them");
  }
  v.share = v.lowest_share.value_or(0.0);
  if (v.lowest) v.share = v.base > 0.0 ? *v.lowest / v.base : 0.0;
}

double cosine_with_min_lr(const Given& v, std::int64_t t) {
  return v.base * at_least(v.share, waves(v.cycles, way(v, t)));
}

/// One step ahead of cosine_with_min_lr: the first rate is not 0, and the lowest one is reached at
/// the last step instead of after it.
double rise_ahead(const Given& v, std::int64_t t) {
  if (!v.first_share) return v.base * (static_cast<double>(t + 1) / at_least_one(v.warmup));
  return v.base * at_least(*v.first_share, static_cast<double>(t) / at_least_one(v.warmup - 1));
}
double fall_ahead(const Given& v, std::int64_t t) {
  return v.base * at_least(v.share, waves(v.cycles, way(v, t + 1)));
}

/// Falls from 1 at 0 to 0 at 1.
double fall(DecayShape shape, double way, double cycles) {
  if (shape == DecayShape::Linear) return 1.0 - way;
  return shape == DecayShape::Cosine ? waves(cycles, way) : 1.0 - std::sqrt(way);
}

/// Rises from 0 at 0 to 1 at 1.
double rise(DecayShape shape, double way) {
  return 1.0 - (shape == DecayShape::SquareRoot ? std::sqrt(1.0 - way) : fall(shape, way, 0.5));
}

/// Sets `stable`, the steps at the full rate: the given number, or what remains of the total.
void find_stable(Given& v, const ScheduleCheck& check) {
  const std::int64_t total = v.length.value_or(check.context.max_steps);
  if (!v.stable) {
    optim::check_tail(v.warmup, v.size, total, "num_decay_steps", check.params, check.problems);
    // Below 0 if the total lies within the warm-up: then the rate after it is the lowest one.
    v.stable = total - v.warmup - v.size;
    return;
  }
  const std::int64_t sum = v.warmup + *v.stable + v.size;
  if (!v.length || *v.length == sum) return;
  check.problems.add(optim::place_of(check.params, "num_training_steps"),
                     "num_training_steps",
                     fmt::format("is {}, but num_warmup_steps + num_stable_steps + "
                                 "num_decay_steps = {} + {} + {} = {}",
                                 *v.length,
                                 v.warmup,
                                 *v.stable,
                                 v.size,
                                 sum),
                     "remove num_training_steps or num_stable_steps");
}

double stable_rise(const Given& v, std::int64_t t) {
  const double share = static_cast<double>(t) / static_cast<double>(v.warmup);
  return v.base * at_least(v.share, rise(v.rises, share));
}

double stable_fall(const Given& v, std::int64_t t) {
  const std::int64_t full = v.warmup + *v.stable;
  if (t < full) return v.base;
  if (t >= full + v.size) return v.base * v.share;
  const double done = static_cast<double>(t - full) / static_cast<double>(v.size);
  return v.base * at_least(v.share, fall(v.falls, done, v.cycles));
}

const bool kHuggingFaceSchedules = optim::add_schedules({
    {.type = "constant_with_warmup",
     .params = {kWarmupSteps, kWarmupRatio, kUnusedTotal},
     .rise = from_zero,
     .fall = [](const Given& v, std::int64_t) { return v.base; }},
    {.type = "linear",
     .params = {kWarmupSteps, kWarmupRatio, kTotal},
     .rise = from_zero,
     .fall = linear},
    {.type = "cosine",
     .params = {kWarmupSteps, kWarmupRatio, kTotal, kCycles},
     .rise = from_zero,
     .fall = cosine},
    {.type = "cosine_with_restarts",
     .params = {kWarmupSteps, kWarmupRatio, kTotal, {"num_cycles", &Given::waves, 1, {.min = 1}}},
     .rise = from_zero,
     .fall = cosine_with_restarts},
    {.type = "polynomial",
     .params = {kWarmupSteps,
                kWarmupRatio,
                kTotal,
                {"lr_end", &Given::low, 1e-7, {.min = 0}},
                {"power", &Given::power, 1.0, {.min = 0}}},
     .rise = from_zero,
     .fall = polynomial,
     .check = check_polynomial},
    {.type = "inverse_sqrt",
     .params = {kWarmupSteps,
                kWarmupRatio,
                kUnusedTotal,
                {"timescale", &Given::length, 0, {.unit = "steps", .min = 1}}},
     .rise = from_zero,
     .fall = inverse_sqrt},
    {.type = "cosine_with_min_lr",
     .params = {kWarmupSteps, kWarmupRatio, kTotal, kCycles, kLowest, kLowestShare},
     .rise = from_zero,
     .fall = cosine_with_min_lr,
     .check = find_lowest},
    {.type = "cosine_warmup_with_min_lr",
     .params = {kWarmupSteps,
                kWarmupRatio,
                kTotal,
                kCycles,
                kLowest,
                kLowestShare,
                {"warmup_lr_rate", &Given::first_share, 0, {.min = 0}}},
     .rise = rise_ahead,
     .fall = fall_ahead,
     .check = find_lowest},
    {.type = "warmup_stable_decay",
     .params = {kWarmupSteps,
                kWarmupRatio,
                {"num_decay_steps",
                 &Given::size,
                 0,
                 {.text = "Number of decay steps at the end.",
                  .unit = "steps",
                  .min = 0,
                  .required = true}},
                {"num_stable_steps", &Given::stable, 0, {.unit = "steps", .min = 0}},
                {"num_training_steps", &Given::length, 0, {.unit = "steps", .min = 1}},
                {.key = "warmup_type", .member = &Given::rises, .shapes = kFalls},
                {.key = "decay_type",
                 .member = &Given::falls,
                 .shapes = kFalls,
                 .shape = DecayShape::Cosine},
                {"min_lr_ratio", &Given::share, 0, {.min = 0}},
                kCycles},
     .rise = stable_rise,
     .fall = stable_fall,
     .check = find_stable},
});

// ---- diffusers ----

constexpr const char* kRules = "step_rules";

struct PiecewiseOptions {
  std::string rules;

  void describe(config::Fields& f) {
    f.field(kRules,
            rules,
            {.text = "Factors and steps: \"1:10,0.1:20,0.01\" is the optimizer's learning rate "
                     "before step 10, a tenth of it before step 20, and a hundredth after that; "
                     "steps count from 0.",
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
    problems.add(
        optim::place_of(params, kRules), kRules, what, "write it like \"1:10,0.1:20,0.01\"");
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

std::unique_ptr<optim::Schedule> make_piecewise_constant(const json::Value& params,
                                                         const optim::ScheduleContext& context,
                                                         config::Problems& problems,
                                                         config::Origins& origins) {
  const auto options = optim::read_params<PiecewiseOptions>(params, problems, origins);
  // A missing value or one that is not a string has been reported already.
  const auto rules = options.rules.empty() && !optim::is_given(params, kRules)
                         ? std::vector<StepRule>{{}}
                         : parse_rules(options.rules, params, problems);
  return std::make_unique<optim::Curve>(0, [rules, base_lr = context.base_lr](std::int64_t t) {
    for (std::size_t i = 0; i + 1 < rules.size(); ++i) {
      if (t < rules[i].before) return base_lr * rules[i].factor;
    }
    return base_lr * rules.back().factor;
  });
}

TESSERA_LR_SCHEDULE("piecewise_constant", make_piecewise_constant);

}  // namespace
}  // namespace tessera::interop
