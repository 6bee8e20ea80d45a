// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/resume_curve.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/optim/schedule.h"

namespace tessera::engine {
namespace {

/// A rate counts as risen if it exceeds the old one by this factor.
constexpr double kRise = 1.1;

const json::Value* at_path(const json::Value& source, const char* section, const char* key) {
  const json::Value* const found = source.find(section);
  return found != nullptr && found->is_object() ? found->find(key) : nullptr;
}

std::optional<std::int64_t> max_steps_of(const json::Value& config) {
  const json::Value* const steps = at_path(config, "trainer", "max_steps");
  return steps != nullptr && steps->is_number() ? steps->as_integer() : std::nullopt;
}

/// Returns the plan with the saved run's schedule.
std::optional<planner::Plan> plan_of_saved(const checkpoint::Meta& meta,
                                           const planner::Plan& plan) {
  const auto steps = max_steps_of(meta.config);
  const json::Value* const type = at_path(meta.config, "optimizer", "type");
  // Rates of different optimizers cannot be compared.
  if (!steps || type == nullptr || !type->is_string()) return std::nullopt;
  planner::Plan out = plan;
  out.max_steps = *steps;
  const json::Value* const params = at_path(meta.config, "optimizer", "params");
  if (params != nullptr) out.config.optimizer.params = *params;
  const json::Value* const schedule = at_path(meta.config, "scheduler", "type");
  const bool named = schedule != nullptr && schedule->is_string();
  out.config.scheduler.type = named ? schedule->as_string() : std::string();
  const json::Value* const of_schedule = at_path(meta.config, "scheduler", "params");
  out.config.scheduler.params = of_schedule != nullptr ? *of_schedule : json::Value();
  return out;
}

double rate_at(const planner::Plan& plan, std::int64_t update) {
  const auto rule = planner::make_rule(plan);
  return planner::make_schedule(plan, *rule)->lr(std::max<std::int64_t>(update, 1));
}

}  // namespace

CurveChange curve_change(const checkpoint::Meta& meta, const planner::Plan& plan) {
  CurveChange out;
  const auto saved = plan_of_saved(meta, plan);
  if (!saved || meta.step < 1) return out;
  double last = 0, next = 0, expected = 0;
  try {
    last = rate_at(*saved, meta.step);
    expected = rate_at(*saved, meta.step + 1);
    next = rate_at(plan, meta.step + 1);
  } catch (const Error&) {
    return out;  // parameters that this version does not know
  }
  if (next == expected) return out;
  if (saved->max_steps != plan.max_steps) {
    out.lines.push_back(
        fmt::format("trainer.max_steps: {} -> {}", saved->max_steps, plan.max_steps));
  }
  out.lines.push_back(
      fmt::format("learning rate: {:.3g} in step {}, {:.3g} in step {} (it would have been {:.3g})",
                  last,
                  meta.step,
                  next,
                  meta.step + 1,
                  expected));
  if (next > kRise * last && next > kRise * expected) {
    out.warning = fmt::format(
        "the learning rate rises from {:.3g} to {:.3g} where the training goes on\n  fix: to keep "
        "the old curve give scheduler.params its old length ({} steps), or lower "
        "optimizer.params.lr",
        last,
        next,
        saved->max_steps);
  }
  return out;
}

}  // namespace tessera::engine
