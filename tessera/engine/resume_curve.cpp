// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/resume_curve.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/optim/schedule.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::engine {
namespace {

using optim::OnResume;
using planner::Curve;

/// A rate counts as risen if it exceeds the old one by this factor.
constexpr double kRise = 1.1;

const json::Value* at_path(const json::Value& source, const char* section, const char* key) {
  const json::Value* const found = source.find(section);
  return found != nullptr && found->is_object() ? found->find(key) : nullptr;
}

std::optional<std::int64_t> integer_at(const json::Value& source,
                                       const char* section,
                                       const char* key) {
  const json::Value* const value = at_path(source, section, key);
  return value != nullptr && value->is_number() ? value->as_integer() : std::nullopt;
}

std::string text_at(const json::Value& source, const char* section, const char* key) {
  const json::Value* const value = at_path(source, section, key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

/// The run that saved: the steps that it was to make, and the curve that it followed.
struct SavedRun {
  std::int64_t max_steps = 0;
  Curve curve;
};

std::optional<SavedRun> saved_run(const checkpoint::Meta& meta) {
  SavedRun out;
  // Older checkpoints contain only the configuration, whose curve began at the first step.
  const auto steps = integer_at(meta.extra, "schedule", "max_steps");
  const bool noted = steps.has_value();
  const auto max_steps = noted ? steps : integer_at(meta.config, "trainer", "max_steps");
  if (!max_steps) return std::nullopt;
  out.max_steps = *max_steps;
  const json::Value& source = noted ? meta.extra : meta.config;
  const char* const section = noted ? "schedule" : "scheduler";
  out.curve.type = text_at(source, section, "type");
  const json::Value* const params = at_path(source, section, "params");
  if (params != nullptr) out.curve.params = *params;
  out.curve.start = integer_at(meta.extra, "schedule", "start").value_or(0);
  out.curve.length = integer_at(meta.extra, "schedule", "length").value_or(*max_steps);
  return out;
}

/// The settings that determine the learning rates of a run.
struct Rates {
  planner::Recipe recipe;
  planner::Course course;

  [[nodiscard]] double at(std::int64_t update) const {
    const auto rule = planner::make_rule(recipe);
    return planner::make_schedule(recipe, course, *rule)->lr(std::max<std::int64_t>(update, 1));
  }
};

/// Returns the rates of the saved run: those of `plan` with its optimizer and curve.
std::optional<Rates> rates_of_saved(const checkpoint::Meta& meta,
                                    const SavedRun& saved,
                                    const planner::Plan& plan) {
  // Rates of different optimizers cannot be compared.
  if (text_at(meta.config, "optimizer", "type").empty()) return std::nullopt;
  Rates out{plan.recipe(), {.max_steps = saved.max_steps, .curve = saved.curve}};
  const json::Value* const params = at_path(meta.config, "optimizer", "params");
  if (params != nullptr) out.recipe.optimizer.params = *params;
  return out;
}

bool same(const json::Value* a, const json::Value* b) {
  return a == nullptr || b == nullptr ? a == b : *a == *b;
}

/// True if the saved run had the same options of the curve: it was only interrupted.
bool is_same_run(const checkpoint::Meta& meta,
                 const SavedRun& saved,
                 const planner::PlanWithData& plan) {
  const json::Value &before = meta.config, &after = plan.resolved();
  return saved.max_steps == plan.course().max_steps &&
         same(before.find("scheduler"), after.find("scheduler")) &&
         same(at_path(before, "optimizer", "params"), at_path(after, "optimizer", "params"));
}

Curve own_curve(const planner::PlanWithData& plan) {
  const optim::SchedulerOptions& options = plan.recipe().scheduler;
  return {.type = options.type, .params = options.params, .length = plan.course().max_steps};
}

std::optional<Curve> curve_on_resume(const checkpoint::Meta& meta,
                                     const SavedRun& saved,
                                     const planner::PlanWithData& plan,
                                     std::int64_t updates) {
  const auto choice = plan.recipe().scheduler.on_resume;
  if (!choice) return std::nullopt;
  if (*choice == OnResume::Keep || is_same_run(meta, saved, plan)) return saved.curve;
  Curve anew = own_curve(plan);
  anew.start = updates;
  anew.length = std::max<std::int64_t>(plan.course().max_steps - meta.step, 1);
  return anew;
}

std::string line_of(const Curve& curve, OnResume choice) {
  if (choice == OnResume::Restart) {
    return fmt::format("learning rate: the schedule was restarted after update {} and has {} steps",
                       curve.start,
                       curve.length);
  }
  return fmt::format("learning rate: the schedule of the saved run goes on; it has {} steps",
                     curve.length);
}

std::string warning_of(double last, double next, std::int64_t length, bool kept) {
  return fmt::format(
      "the learning rate rises from {:.3g} to {:.3g} where the training goes on\n  fix: {}lower "
      "optimizer.params.lr",
      last,
      next,
      kept ? std::string()
           : fmt::format("write scheduler.on_resume \"keep\" to follow the old curve ({} steps), "
                         "\"restart\" to restart the schedule at this step, or ",
                         length));
}

}  // namespace

json::Value curve_of_run(const planner::PlanWithData& plan) {
  const Curve curve = plan.course().curve.value_or(own_curve(plan));
  return json::Value::object(
      {{"type", json::Value::string(curve.type)},
       {"params", curve.params.is_null() ? json::Value::object() : curve.params},
       {"start", json::Value::integer(curve.start)},
       {"length", json::Value::integer(curve.length)},
       {"max_steps", json::Value::integer(plan.course().max_steps)}});
}

CurveChange curve_change(const checkpoint::Meta& meta, const planner::PlanWithData& plan) {
  CurveChange out;
  const auto saved = saved_run(meta);
  if (!saved || meta.step < 1) return out;
  const auto before = rates_of_saved(meta, *saved, plan);
  if (!before) return out;
  // A skipped step does not advance the schedule.
  const json::Value* const skipped = meta.extra.find("skipped");
  const std::int64_t updates =
      meta.step - (skipped != nullptr ? skipped->as_integer().value_or(0) : 0);
  const auto choice = plan.recipe().scheduler.on_resume;
  Rates after{plan.recipe(), plan.course()};
  after.course.curve = curve_on_resume(meta, *saved, plan, updates);
  double last = 0, next = 0, expected = 0;
  try {
    last = before->at(updates);
    expected = before->at(updates + 1);
    next = after.at(updates + 1);
  } catch (const Error&) {
    return out;  // parameters that this version does not know
  }
  out.curve = after.course.curve;
  const bool same_run = is_same_run(meta, *saved, plan);
  if (choice && !same_run) out.lines.push_back(line_of(*out.curve, *choice));
  if (next == expected) return out;
  if (saved->max_steps != plan.course().max_steps) {
    out.lines.push_back(
        fmt::format("trainer.max_steps: {} -> {}", saved->max_steps, plan.course().max_steps));
  }
  out.lines.push_back(
      fmt::format("learning rate: {:.3g} in step {}, {:.3g} in step {} (it would have been {:.3g})",
                  last,
                  meta.step,
                  next,
                  meta.step + 1,
                  expected));
  if (choice != OnResume::Restart && next > kRise * last && next > kRise * expected)
    out.warning = warning_of(last, next, saved->curve.length, choice.has_value());
  return out;
}

}  // namespace tessera::engine
