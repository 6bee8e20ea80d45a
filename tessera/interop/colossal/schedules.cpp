// SPDX-License-Identifier: Apache-2.0
// Colossal-AI's schedules with its parameters, and those that it takes from torch: i = update - 1.
// A warm-up of W steps multiplies by (i + 1) / W; the schedule after it begins at i - W.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule_table.h"

namespace tessera::interop {
namespace {

using optim::at_least_one, optim::half_cosine;
using optim::Given, optim::ScheduleCheck, optim::ScheduleParam;

const ScheduleParam kTotal{"total_steps", &Given::total, 0, {.unit = "steps", .min = 1}};
/// The library's signatures have total_steps for every schedule; these have no end.
const ScheduleParam kUnusedTotal{"total_steps", &Given::unused, 0, {.unit = "steps"}};
const ScheduleParam kWarmupSteps{"warmup_steps", &Given::warmup, 0, {.unit = "steps", .min = 0}};
const ScheduleParam kLowest{"eta_min", &Given::low, 0, {.min = 0}};
const ScheduleParam kFlatShare{"pct_start", &Given::share, 0.72, {.min = 0, .max = 1}};
const ScheduleParam kEnd{"end_lr", &Given::low, 1e-4, {.min = 0}};
const ScheduleParam kPower{"power", &Given::power, 1.0, {.min = 0}};
const ScheduleParam kMilestones{"milestones",
                                &Given::milestones,
                                0,
                                {.text = "Steps at which the learning rate is multiplied by gamma; "
                                         "those within a warm-up are ignored.",
                                 .unit = "steps",
                                 .min = 0,
                                 .required = true}};

ScheduleParam gamma(double otherwise) {
  return {"gamma", &Given::gamma, otherwise, {.min = 0}};
}

double rise(const Given& v, std::int64_t i) {
  return static_cast<double>(i + 1) / static_cast<double>(v.warmup) * v.base;
}

/// Half a cosine from the full rate in `steps`; rises again after that, as in torch.
double annealing(const Given& v, std::int64_t i, std::int64_t steps) {
  return v.low + (v.base - v.low) * half_cosine(static_cast<double>(i) / at_least_one(steps));
}

double cosine_annealing(const Given& v, std::int64_t i) {
  return annealing(v, i - v.warmup, v.total - v.warmup);
}

/// The full rate for the first steps, then cosine annealing over the rest.
double flat_annealing(const Given& v, std::int64_t i) {
  const std::int64_t steps = v.total - v.warmup, after = i - v.warmup;
  const auto flat = static_cast<std::int64_t>(static_cast<double>(steps) * v.share);
  return after < flat ? v.base : annealing(v, after - flat, steps - flat);
}

double polynomial(const Given& v, std::int64_t i) {
  const std::int64_t steps = v.total - v.warmup;
  const double way = static_cast<double>(std::min(i - v.warmup, steps)) / at_least_one(steps);
  return (v.base - v.low) * std::pow(1.0 - way, v.power) + v.low;
}

/// The only warm-up that ends below the full rate, which the first step of the decay has.
double rise_below(const Given& v, std::int64_t i) {
  return static_cast<double>(i + 1) / static_cast<double>(v.warmup + 1) * v.base;
}
/// After the total the library's rate is negative; here it is 0.
double fall_from_below(const Given& v, std::int64_t i) {
  const std::int64_t left = std::max<std::int64_t>(0, v.total - i);
  return static_cast<double>(left) / at_least_one(v.total - v.warmup) * v.base;
}

/// Checks that the milestones are ascending integers.
void check_milestones(Given& v, const ScheduleCheck& check) {
  for (std::size_t i = 0; i < v.milestones.size(); ++i) {
    const double at = v.milestones[i], before = i == 0 ? -1.0 : v.milestones[i - 1];
    const bool whole = at == std::floor(at);
    if (whole && at > before) continue;
    check.problems.add(optim::place_of(check.params, "milestones"),
                       fmt::format("milestones[{}]", i),
                       whole ? fmt::format("{} does not come after {}", at, before)
                             : fmt::format("expected an integer, found {}", at));
    return;
  }
}

/// The full rate, multiplied by gamma for every milestone after the warm-up.
double stepped(const Given& v, std::int64_t i) {
  const auto passed =
      std::count_if(v.milestones.begin(), v.milestones.end(), [&](double milestone) {
        return milestone >= static_cast<double>(v.warmup) && milestone <= static_cast<double>(i);
      });
  return v.base * std::pow(v.gamma, static_cast<double>(passed));
}

double by_intervals(const Given& v, std::int64_t i) {
  const std::int64_t whole = i / v.size;
  return v.base * std::pow(v.gamma, static_cast<double>(whole));
}

double exponential(const Given& v, std::int64_t i) {
  return v.base * std::pow(v.gamma, static_cast<double>(i));
}

double constant_share(const Given& v, std::int64_t i) {
  return i < v.size ? v.base * v.share : v.base;
}

const bool kColossalSchedules = optim::add_schedules({
    {.type = "CosineAnnealingLR", .params = {kTotal, kLowest}, .fall = cosine_annealing},
    {.type = "CosineAnnealingWarmupLR",
     .params = {kTotal, kLowest, kWarmupSteps},
     .rise = rise,
     .fall = cosine_annealing,
     .total_after_warmup = "total_steps"},
    {.type = "FlatAnnealingLR", .params = {kTotal, kFlatShare}, .fall = flat_annealing},
    {.type = "FlatAnnealingWarmupLR",
     .params = {kTotal, kFlatShare, kWarmupSteps, kLowest},
     .rise = rise,
     .fall = flat_annealing,
     .total_after_warmup = "total_steps"},
    {.type = "LinearWarmupLR",
     .params = {kTotal, kWarmupSteps},
     .rise = rise_below,
     .fall = fall_from_below,
     .total_after_warmup = "total_steps"},
    {.type = "MultiStepLR",
     .params = {kUnusedTotal, kMilestones, gamma(0.1)},
     .fall = stepped,
     .check = check_milestones},
    {.type = "MultiStepWarmupLR",
     .params = {kUnusedTotal, kMilestones, gamma(0.1), kWarmupSteps},
     .rise = rise,
     .fall = stepped,
     .check = check_milestones},
    {.type = "PolynomialLR", .params = {kTotal, kEnd, kPower}, .fall = polynomial},
    {.type = "PolynomialWarmupLR",
     .params = {kTotal, kEnd, kPower, kWarmupSteps},
     .rise = rise,
     .fall = polynomial,
     .total_after_warmup = "total_steps"},
    {.type = "StepLR",
     .params = {kUnusedTotal,
                {"step_size", &Given::size, 1, {.unit = "steps", .min = 1}},
                gamma(0.1)},
     .fall = by_intervals},
    {.type = "ExponentialLR", .params = {kUnusedTotal, gamma(1.0)}, .fall = exponential},
    {.type = "ConstantLR",
     .params = {kUnusedTotal,
                {"factor", &Given::share, 1.0 / 3.0, {.min = 0}},
                {"total_iters", &Given::size, 5, {.unit = "steps", .min = 1}}},
     .fall = constant_share},
});

}  // namespace
}  // namespace tessera::interop
