// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/recipe.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/machine.h"
#include "tessera/memory/device.h"
#include "tessera/optim/average.h"
#include "tessera/optim/eight_bit.h"
#include "tessera/optim/make_rule.h"
#include "tessera/optim/make_schedule.h"
#include "tessera/parallel/layer_decay.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

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

// A batch that could not be solved was reported; with any number the rest can be checked.
optim::BatchRamp ramp_of(const Recipe& recipe) {
  return recipe.ramp.value_or(optim::BatchRamp(std::max<std::int64_t>(1, recipe.global_batch)));
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
    optim::check_params_of_unknown(options, origins.place("optimizer"), problems);
  const auto rule = optim::make_rule(options, origins.place("optimizer"), problems);
  if (rule->host_only() && kept.masters != DType::F32 &&
      memory::device_kind(config.run.device) != DeviceKind::Cpu) {
    problems.add(origins.place("optimizer.type"),
                 "optimizer.type",
                 fmt::format("the host of the device \"{}\" computes {}, and needs fp32 masters",
                             config.run.device,
                             options.type),
                 "set bf16.bf16_master_weights_and_grads to false, or use an optimizer of Adam's "
                 "family, SGD, Lion, LAMB, LARS or Muon");
  }
  parallel::check_group_rates(*rule, model.groups, problems);
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
                          parallel::weight_decay_of(*rule, model.groups),
                          origins.place("optimizer.weight_decay_schedule"),
                          part);
  problems.adopt(part, "optimizer.weight_decay_schedule");
}

void check_schedule(const TrainConfig& config,
                    const Recipe& recipe,
                    config::Problems& problems,
                    const config::Origins& origins) {
  if (!is_params(config.scheduler.params, "scheduler.params", problems)) return;
  const auto rule = optim::rule_if_any(config.optimizer);
  const auto context =
      context_of(rule.get(), config.trainer.max_steps.value_or(0), ramp_of(recipe));
  optim::make_schedule(config.scheduler, context, origins.place("scheduler"), problems);
}

std::vector<std::string> schedule_warnings(const Recipe& recipe, const Course& course) {
  const auto rule = make_rule(recipe);
  const json::Value& params = course.curve ? course.curve->params : recipe.scheduler.params;
  return optim::schedule_warnings(
      recipe.scheduler, params, *make_schedule(recipe, course, *rule), *rule, course.max_steps);
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
  auto rule = optim::make_rule(recipe.optimizer, {}, problems);
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
    auto schedule = optim::make_schedule(recipe.scheduler, context, {}, problems);
    problems.raise();
    return schedule;
  }
  const Curve& curve = *course.curve;
  context.max_steps = curve.length;
  context.samples_before = [all = context.samples_before, start = curve.start](std::int64_t k) {
    return all(start + k) - all(start + 1);
  };
  auto schedule =
      optim::make_schedule({.type = curve.type, .params = curve.params}, context, {}, problems);
  problems.raise();
  if (curve.start == 0) return schedule;
  return optim::later(std::move(schedule), curve.start);
}

std::function<std::int64_t(std::int64_t)> batch_sizes(const Recipe& recipe) {
  if (!recipe.ramp) return {};
  return [ramp = *recipe.ramp](std::int64_t consumed) { return ramp.size(consumed); };
}

optim::DecayRamp make_decay_ramp(const Recipe& recipe,
                                 const Course& course,
                                 const std::vector<parallel::ParamGroup>& groups) {
  return {recipe.optimizer.weight_decay_schedule,
          parallel::weight_decay_of(*make_rule(recipe), groups),
          course.max_steps};
}

}  // namespace tessera::planner
