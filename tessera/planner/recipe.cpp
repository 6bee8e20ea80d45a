// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/recipe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/machine.h"
#include "tessera/optim/average.h"
#include "tessera/optim/compressed.h"
#include "tessera/optim/eight_bit.h"
#include "tessera/parallel/layer_decay.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

json::Value object_or(const json::Value& params, const json::Place& place) {
  if (!params.is_null()) return params;
  json::Value out = json::Value::object();
  out.place = place;
  return out;
}

std::unique_ptr<optim::Rule> build_rule(const optim::OptimizerOptions& options,
                                        const json::Place& place,
                                        config::Problems& problems) {
  const optim::RuleFactory factory = optim::rule_factory(options.type);
  config::Problems part;
  config::Origins origins;
  auto rule = factory(object_or(options.params, place), part, origins);
  problems.adopt(part, "optimizer.params");
  return rule;
}

std::unique_ptr<optim::Schedule> build_schedule(const optim::SchedulerOptions& options,
                                                const optim::ScheduleContext& context,
                                                const json::Place& place,
                                                config::Problems& problems) {
  const optim::ScheduleFactory factory = optim::schedule_factory(options.type);
  config::Problems part;
  config::Origins origins;
  auto schedule = factory(object_or(options.params, place), context, part, origins);
  config::Problems told;
  for (const config::Problems::Problem& problem : part.list()) {
    const bool has_none = problem.kind == config::Problems::Kind::Unknown && problem.fix.empty();
    told.add(problem.place,
             problem.path,
             problem.what,
             has_none ? fmt::format("scheduler.type \"{}\" takes no parameters: name another type",
                                    options.type.empty() ? "constant" : options.type)
                      : problem.fix,
             problem.kind);
  }
  problems.adopt(told, "scheduler.params");
  return schedule;
}

/// A schedule that begins after step `start`.
class LaterSchedule final : public optim::Schedule {
 public:
  LaterSchedule(std::unique_ptr<optim::Schedule> schedule, std::int64_t start)
      : schedule_(std::move(schedule)), start_(start) {}
  [[nodiscard]] double lr(std::int64_t update) const override { return schedule_->lr(own(update)); }
  [[nodiscard]] std::int64_t warmup_steps() const override {
    return start_ + schedule_->warmup_steps();
  }
  [[nodiscard]] std::optional<double> beta1(std::int64_t update) const override {
    return schedule_->beta1(own(update));
  }
  [[nodiscard]] std::optional<double> beta2(std::int64_t update) const override {
    return schedule_->beta2(own(update));
  }

 private:
  [[nodiscard]] std::int64_t own(std::int64_t update) const {
    return std::max<std::int64_t>(update - start_, 1);
  }
  std::unique_ptr<optim::Schedule> schedule_;
  std::int64_t start_;
};

bool is_params(const json::Value& params, const char* path, config::Problems& problems) {
  if (params.is_null() || params.is_object()) return true;
  problems.add(params.place,
               path,
               "expected an object, found " + std::string(params.type_name()),
               "write {\"key\": value, ...}");
  return false;
}

// `rule`: nullptr if its parameters are wrong.
optim::ScheduleContext context_of(const optim::Rule* rule,
                                  std::int64_t max_steps,
                                  const optim::BatchRamp& batches) {
  return {
      .base_lr = rule == nullptr ? 1e-3 : rule->base_lr(),
      .has_betas = rule == nullptr || rule->has_betas(),
      .max_steps = max_steps,
      .samples_before = [batches](std::int64_t update) { return batches.samples_before(update); }};
}

// The rule of options that may have errors, which are reported elsewhere; nullptr if it cannot be
// made.
std::unique_ptr<optim::Rule> rule_if_any(const optim::OptimizerOptions& options) {
  const bool fits = options.params.is_null() || options.params.is_object();
  if (!fits || !optim::rules().has(options.type)) return nullptr;
  config::Problems ignored;
  return build_rule(options, {}, ignored);
}

// For an optimizer with an unknown name: checks its parameters against the one with the nearest
// name, or against AdamW. The intended one may have other parameters, so an unknown key is not
// reported.
void check_params_of_unknown(const optim::OptimizerOptions& options,
                             const json::Place& place,
                             config::Problems& problems) {
  optim::OptimizerOptions nearest = options;
  nearest.type = text::nearest(options.type, optim::rules().names()).value_or("AdamW");
  config::Problems all;
  build_rule(nearest, place, all);
  for (const config::Problems::Problem& problem : all.list()) {
    if (problem.kind == config::Problems::Kind::Wrong)
      problems.add(problem.place, problem.path, problem.what, problem.fix, problem.kind);
  }
}

// A batch that could not be solved was reported; with any number the rest can be checked.
optim::BatchRamp ramp_of(const Recipe& recipe) {
  return recipe.ramp.value_or(optim::BatchRamp(std::max<std::int64_t>(1, recipe.global_batch)));
}

// The value that weight_decay_schedule changes: the rule's weight decay or, if only groups have
// one, the largest of theirs.
double weight_decay_of(const optim::Rule& rule, const std::vector<parallel::ParamGroup>& groups) {
  double out = rule.base_weight_decay();
  if (out != 0.0) return out;
  for (const parallel::ParamGroup& group : groups)
    out = std::max(out, group.weight_decay.value_or(0.0));
  return out;
}

// A group's rate is a multiple of the rate that the schedule changes.
void check_group_rates(const optim::Rule& rule,
                       const std::vector<parallel::ParamGroup>& groups,
                       config::Problems& problems) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const parallel::ParamGroup& group = groups[i];
    if (!group.lr || group.frozen) continue;
    const std::string path = fmt::format("optimizer.groups[{}].lr", i);
    if (rule.makes_lr()) {
      problems.add(
          group.place,
          path,
          "the optimizer makes its rate by itself, for all parameters",
          "remove it, or give optimizer.params a lr (Adafactor: \"relative_step\": false)");
    } else if (*group.lr > 0.0 && !std::isfinite(*group.lr / rule.base_lr())) {
      problems.add(
          group.place,
          path,
          fmt::format(
              "{} is no multiple of optimizer.params.lr, which is {}", *group.lr, rule.base_lr()),
          "set optimizer.params.lr above 0, and let the last group keep all others where "
          "they are: {\"pattern\": \".\", \"frozen\": true}");
    }
  }
}

// An average needs weights and its own state in fp32.
void check_average(const TrainConfig& config,
                   const parallel::KeptTypes& kept,
                   const optim::Rule& rule,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const optim::AverageOptions& ema = config.trainer.ema;
  const auto add = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (config.eval.weights == tasks::EvalWeights::Ema && !ema.enabled()) {
    add("eval.weights",
        "there is no average: trainer.ema.decay is not given",
        "add \"ema\": {\"decay\": 0.999} to trainer");
  }
  if (!ema.enabled() && (ema.every != 1 || ema.start != 0)) {
    const char* const key = ema.every != 1 ? "trainer.ema.every" : "trainer.ema.start";
    add(key, "has no effect without trainer.ema.decay", "set trainer.ema.decay to 0.999");
  }
  if (!ema.enabled()) return;
  if (rule.compressed() != nullptr) {
    add("trainer.ema",
        fmt::format("not built yet: an average of the weights of {}", config.optimizer.type),
        "use AdamW, or remove trainer.ema");
  }
  if (dynamic_cast<const optim::EightBitRule*>(&rule) != nullptr) {
    add("trainer.ema",
        fmt::format("not built yet: an average of the weights of {}", config.optimizer.type),
        "use AdamW, or remove trainer.ema");
  }
  if (kept.masters != DType::F32 || kept.states != DType::F32) {
    add("trainer.ema",
        "an average in 16 bits would round small changes away, and weights without fp32 masters "
        "cannot be exchanged with it",
        "remove bf16_master_weights_and_grads (fp16_master_weights_and_grads), or trainer.ema");
  }
}

}  // namespace

void check_rule(const TrainConfig& config,
                const ModelPlan& model,
                const parallel::KeptTypes& kept,
                config::Problems& problems,
                const config::Origins& origins) {
  const optim::OptimizerOptions& options = config.optimizer;
  if (!is_params(options.params, "optimizer.params", problems)) return;
  if (!optim::rules().has(options.type))
    check_params_of_unknown(options, origins.place("optimizer"), problems);
  const auto rule = build_rule(options, origins.place("optimizer"), problems);
  check_group_rates(*rule, model.groups, problems);
  parallel::check_layer_decay(options.layer_decay, model.resolved.model, *rule, problems, origins);
  check_average(config, kept, *rule, problems, origins);
  parallel::check_freeze_schedule(model.freezing,
                                  options.gradual_unfreezing,
                                  model.resolved.model,
                                  model.adapter != nullptr,
                                  *rule,
                                  problems,
                                  origins);
  config::Problems part;
  optim::check_decay_ramp(options.weight_decay_schedule,
                          weight_decay_of(*rule, model.groups),
                          origins.place("optimizer.weight_decay_schedule"),
                          part);
  problems.adopt(part, "optimizer.weight_decay_schedule");
}

std::vector<std::string> optimizer_notes(const optim::OptimizerOptions& options) {
  std::vector<std::string> out;
  const std::string type = text::lower(options.type);
  const auto given = [&](const char* key) {
    return options.params.is_object() ? options.params.find(key) : nullptr;
  };
  const auto idle = [&](const char* key, const char* why) {
    out.push_back(
        fmt::format("optimizer.params.{} is accepted but has no meaning here: {}", key, why));
  };
  for (const char* key : {"adam_w_mode", "adamw_mode"}) {
    const json::Value* mode = given(key);
    if (type == "adamw" && mode != nullptr && mode->is_bool() && !mode->as_bool()) {
      out.push_back(
          fmt::format("optimizer.params.{} false has no effect: AdamW decays the weights "
                      "themselves, as in DeepSpeed; Adam decays through the gradient",
                      key));
    }
  }
  if (type == "muon" && given("ns_method") != nullptr)
    idle("ns_method", "both methods are the same rounds, and these run in fp32");
  if (given("set_grad_none") != nullptr)
    idle("set_grad_none", "gradients are overwritten in every step");
  return out;
}

std::vector<std::string> schedule_notes(const TrainConfig& config) {
  const optim::SchedulerOptions& options = config.scheduler;
  if (text::lower(options.type) == "onecycle") {
    const json::Value* const cycles =
        options.params.is_object() ? options.params.find("cycle_momentum") : nullptr;
    const auto rule = rule_if_any(config.optimizer);
    const bool off = cycles != nullptr && cycles->is_bool() && !cycles->as_bool();
    if (off || rule == nullptr || rule->has_betas()) return {};
    return {
        fmt::format("scheduler.params.cycle_momentum has no effect: {} has no betas, and OneCycle "
                    "leaves its momentum alone, as in DeepSpeed",
                    config.optimizer.type)};
  }
  const json::Value* const warmup =
      options.params.is_object() ? options.params.find("num_warmup_steps") : nullptr;
  const bool constant = options.type.empty() || text::lower(options.type) == "constant";
  if (!constant || warmup == nullptr || !warmup->is_number() || warmup->as_double() <= 0) return {};
  return {
      "scheduler.params.num_warmup_steps has no effect: constant does not warm up, as in Hugging "
      "Face; constant_with_warmup does"};
}

void fill_width(optim::OptimizerOptions& options, const models::Resolved& model) {
  const std::string type = text::lower(options.type);
  if (type != "muadam" && type != "muadamw" && type != "musgd") return;
  if (!options.params.is_object() || model.hidden_size <= 0) return;
  if (options.params.find("hidden_size") == nullptr)
    options.params["hidden_size"] = json::Value::integer(model.hidden_size);
}

void check_schedule(const TrainConfig& config,
                    const Recipe& recipe,
                    config::Problems& problems,
                    const config::Origins& origins) {
  if (!is_params(config.scheduler.params, "scheduler.params", problems)) return;
  const auto rule = rule_if_any(config.optimizer);
  const auto context =
      context_of(rule.get(), config.trainer.max_steps.value_or(0), ramp_of(recipe));
  build_schedule(config.scheduler, context, origins.place("scheduler"), problems);
}

ExchangeNeeds exchange_needs(const optim::OptimizerOptions& options) {
  const auto rule = rule_if_any(options);
  const auto* compressed = rule != nullptr ? rule->compressed() : nullptr;
  if (compressed == nullptr) return {};
  return {true, compressed->local_weights(), compressed->fused()};
}

std::optional<std::string> warmup_note(const optim::SchedulerOptions& options, std::int64_t steps) {
  config::Problems ignored;
  const auto schedule =
      build_schedule(options, context_of(nullptr, steps, optim::BatchRamp(1)), {}, ignored);
  if (schedule->warmup_steps() < steps) return std::nullopt;
  return fmt::format(
      "the run of {} steps ends within the warm-up of {}", steps, schedule->warmup_steps());
}

namespace {

/// The number of a parameter of the schedule; nothing if it is not given.
std::optional<double> number_in(const json::Value& params, const char* key) {
  const json::Value* const value = params.is_object() ? params.find(key) : nullptr;
  return value != nullptr && value->is_number() ? std::optional(value->as_double()) : std::nullopt;
}

/// Warns of rates to which a schedule should fall, and that are above the rate from which it does.
void warn_of_lowest_rates(const json::Value& params,
                          double base_lr,
                          std::vector<std::string>& out) {
  for (const char* key :
       {"min_lr", "eta_min", "end_lr", "lr_end", "initial_lr", "lr_warmup_init"}) {
    const auto rate = number_in(params, key);
    if (rate && *rate > base_lr) {
      out.push_back(fmt::format("scheduler.params.{} {} is above the optimizer's learning rate {}",
                                key,
                                text::number(*rate),
                                text::number(base_lr)));
    }
  }
  for (const char* key :
       {"min_lr_rate", "min_lr_ratio", "cos_min_ratio", "warmup_lr_rate", "warmup_min_ratio"}) {
    const auto share = number_in(params, key);
    if (share && *share > 1) {
      out.push_back(
          fmt::format("scheduler.params.{} {} is a learning rate of {}, above the optimizer's {}",
                      key,
                      text::number(*share),
                      text::number(*share * base_lr),
                      text::number(base_lr)));
    }
  }
}

/// Warns of a total of the schedule that its warm-up passes.
void warn_of_total(const json::Value& params,
                   const optim::Schedule& schedule,
                   std::vector<std::string>& out) {
  const std::int64_t warmup = schedule.warmup_steps();
  for (const char* key : {"total_num_steps", "num_training_steps"}) {
    const auto total = number_in(params, key);
    if (!total || *total > static_cast<double>(warmup)) continue;
    out.push_back(
        fmt::format("scheduler.params.{} {} is within the warm-up of {} steps, after which the "
                    "learning rate is {}",
                    key,
                    text::number(*total),
                    warmup,
                    text::number(schedule.lr(warmup + 3))));
  }
}

}  // namespace

std::vector<std::string> schedule_warnings(const Recipe& recipe, const Course& course) {
  std::vector<std::string> out;
  const auto rule = make_rule(recipe);
  const auto schedule = make_schedule(recipe, course, *rule);
  const json::Value& params = course.curve ? course.curve->params : recipe.scheduler.params;
  if (!rule->makes_lr()) warn_of_lowest_rates(params, rule->base_lr(), out);
  if (auto note = warmup_note(recipe.scheduler, course.max_steps))
    out.push_back(std::move(*note));
  else if (schedule->warmup_steps() > 0)
    warn_of_total(params, *schedule, out);
  return out;
}

std::vector<std::string> warnings_of(const Recipe& recipe, const Course& course, int local_ranks) {
  std::vector<std::string> out;
  if (const auto cores = launch::shared_cores(local_ranks, hosts::is_bound())) {
    out.push_back(fmt::format("{} ranks share {} {}: fewer ranks would be faster",
                              local_ranks,
                              *cores,
                              *cores == 1 ? "core" : "cores"));
  }
  for (std::string& warning : schedule_warnings(recipe, course))
    out.push_back(std::move(warning));
  return out;
}

json::Value complete_optimizer_params(const optim::OptimizerOptions& options) {
  json::Value out = options.params.is_object() ? options.params : json::Value::object();
  if (text::lower(options.type) != "adamw") return out;
  const auto fill = [&](const char* key, json::Value value) {
    if (out.find(key) == nullptr) out[key] = std::move(value);
  };
  fill("lr", json::Value::number(1e-3));
  fill("betas", json::Value::array({json::Value::number(0.9), json::Value::number(0.999)}));
  fill("eps", json::Value::number(1e-8));
  fill("weight_decay", json::Value::number(0.01));
  return out;
}

parallel::ParamSettings settings_of(const Recipe& recipe, const ModelPlan& model, double base_lr) {
  // Factors of the base rate by name: for the layer's depth, and for an adapter's second matrix.
  const double layer_decay = recipe.optimizer.layer_decay;
  std::map<std::string, double> factors;
  if (layer_decay != 1.0) factors = parallel::layer_factors(model.resolved.model, layer_decay);
  if (model.adapter != nullptr && model.adapter->options.lr_ratio) {
    for (const models::AdapterModule& module : model.adapter->modules)
      factors.try_emplace(module.b(), 1.0).first->second *= *model.adapter->options.lr_ratio;
  }
  return [decay_all = recipe.optimizer.decay_all,
          groups = model.groups,
          factors = std::move(factors),
          base_lr](const ParamInfo& info) {
    parallel::ParamSetting setting;
    setting.decay = decay_all || decays(info);
    const auto factor = factors.find(info.name);
    if (factor != factors.end()) setting.lr_scale = factor->second;
    const parallel::ParamGroup* group = parallel::group_of(groups, info.name);
    if (group == nullptr) return setting;
    if (group->lr) setting.lr_scale = *group->lr == 0.0 ? 0.0 : *group->lr / base_lr;
    if (group->weight_decay) {
      setting.weight_decay = group->weight_decay;
      setting.decay = true;
    }
    return setting;
  };
}

std::unique_ptr<optim::Rule> make_rule(const Recipe& recipe) {
  config::Problems problems;
  auto rule = build_rule(recipe.optimizer, {}, problems);
  problems.raise();
  const optim::AverageOptions& ema = recipe.ema;
  if (!ema.enabled() || rule->compressed() != nullptr) return rule;
  return optim::with_average(std::move(rule), ema);
}

std::unique_ptr<optim::Schedule> make_schedule(const Recipe& recipe,
                                               const Course& course,
                                               const optim::Rule& rule) {
  config::Problems problems;
  auto context = context_of(&rule, course.max_steps, ramp_of(recipe));
  if (!course.curve) {
    auto schedule = build_schedule(recipe.scheduler, context, {}, problems);
    problems.raise();
    return schedule;
  }
  const Curve& curve = *course.curve;
  context.max_steps = curve.length;
  context.samples_before = [all = context.samples_before, start = curve.start](std::int64_t k) {
    return all(start + k) - all(start + 1);
  };
  auto schedule =
      build_schedule({.type = curve.type, .params = curve.params}, context, {}, problems);
  problems.raise();
  if (curve.start == 0) return schedule;
  return std::make_unique<LaterSchedule>(std::move(schedule), curve.start);
}

std::function<std::int64_t(std::int64_t)> batch_sizes(const Recipe& recipe) {
  if (!recipe.ramp) return {};
  return [ramp = *recipe.ramp](std::int64_t consumed) { return ramp.size(consumed); };
}

optim::DecayRamp make_decay_ramp(const Recipe& recipe,
                                 const Course& course,
                                 const std::vector<parallel::ParamGroup>& groups) {
  return {recipe.optimizer.weight_decay_schedule,
          weight_decay_of(*make_rule(recipe), groups),
          course.max_steps};
}

}  // namespace tessera::planner
