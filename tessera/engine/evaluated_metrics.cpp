// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/evaluated_metrics.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/eval_history.h"
#include "tessera/engine/written_texts.h"
#include "tessera/models/family.h"
#include "tessera/models/objective.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/metrics.h"
#include "tessera/tasks/text_scores.h"

namespace tessera::engine {
namespace {

/// Predictions of the task's form, of samples that are made up.
tasks::Predictions made_up(const planner::Plan& plan) {
  tasks::Predictions out;
  const json::Value& options = planner::model_of(plan).objective.options;
  const json::Value* const labels = options.find("num_labels");
  out.width = labels != nullptr ? labels->as_integer().value_or(1) : 1;
  out.label_width = 1;
  for (const data::TensorSpec& spec : plan.data().sample) {
    if (spec.name == "label" && !spec.shape.empty()) out.label_width = spec.shape.front();
  }
  constexpr std::int64_t kRows = 4;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < out.width; ++i)
      out.values.push_back(static_cast<float>(row * row + i));
    for (std::int64_t i = 0; i < out.label_width; ++i)
      out.labels.push_back(static_cast<float>((row + i) % 2));
  }
  return out;
}

/// Throws Error{Data} if the first `samples` samples have nothing to evaluate.
void check_set(const planner::Plan& plan, const data::Dataset& set, std::int64_t samples) {
  const std::vector<data::TensorSpec> tensors = set.tensors();
  const bool has_labels = std::ranges::any_of(tensors, [](const data::TensorSpec& spec) {
    return spec.name == "labels" && spec.dtype == DType::I64;
  });
  if (!has_labels) return;
  const auto any_of = [&](std::int64_t count, const auto& is_usable) {
    for (std::int64_t i = 0; i < std::min(count, set.size()); ++i) {
      if (is_usable(i)) return true;
    }
    return false;
  };
  const auto has_label = [&](std::int64_t i) {
    data::Sample sample(set, i);
    const auto labels = sample.values<std::int64_t>("labels");
    return std::ranges::any_of(labels, [](std::int64_t label) { return label >= 0; });
  };
  TESSERA_REQUIRE(any_of(samples, has_label),
                  Data,
                  fmt::format("the first {} samples of {} have no token to predict, so that they "
                              "cannot be evaluated",
                              samples,
                              set.name()),
                  "raise eval.batches, or evaluate on other data");
  const std::int64_t texts = planner::eval_options_of(plan).generate;
  const auto has_prompt = [&](std::int64_t i) {
    const bool answers = planner::model_of(plan).trunk.output.target.has_value();
    return !prompt_of(set, i, answers, plan.data().tokenizer->end_of_text()).prompt.empty();
  };
  TESSERA_REQUIRE(
      texts == 0 || any_of(texts, has_prompt),
      Data,
      fmt::format(
          "eval.generate: the first {} samples of {} have no prompt to answer", texts, set.name()),
      "raise eval.generate, or evaluate on other data");
}

}  // namespace

bool predicts_tokens(const planner::Plan& plan) {
  return planner::model_of(plan).description.find("family") != nullptr &&
         models::traits_of(planner::model_of(plan).objective.name).has_perplexity;
}

std::vector<std::string> evaluated_metrics(const planner::Plan& plan) {
  const bool own_model = planner::model_of(plan).description.find("family") == nullptr;
  if (plan.data().task == nullptr || plan.data().task->writes_answers() || own_model) return {};
  const std::vector<std::string> terms = planner::evaluated_terms(plan);
  if (terms.empty()) return {};
  std::vector<std::string> out = {"loss"};
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(out, name) == out.end()) out.push_back(name);
  };
  std::ranges::for_each(terms, add);
  if (predicts_tokens(plan)) add("perplexity");
  if (planner::eval_options_of(plan).generate > 0) {
    for (const std::string_view name : tasks::kTextScores)
      add(std::string(name));
  }
  // Ranks that share the tokens of a sample make no predictions.
  if (plan.data().task->has_metrics() && planner::context_ranks_of(plan) == 1) {
    for (const tasks::NamedValue& metric : plan.data().task->metrics(made_up(plan)))
      add(metric.name);
  }
  return out;
}

void check_best_metric(const planner::Plan& plan) {
  if (planner::eval_options_of(plan).best.is_null() || !planner::eval_options_of(plan).when().any())
    return;
  const std::vector<std::string> names = evaluated_metrics(plan);
  if (names.empty()) return;
  const std::string& metric = planner::eval_options_of(plan).rule().metric;
  if (std::ranges::find(names, metric) == names.end()) refuse_metric(metric, names);
}

std::int64_t evaluated_samples(const planner::Plan& plan, const data::Dataset& validation) {
  const tasks::EvalOptions& options = planner::eval_options_of(plan);
  // Task metrics on few samples are not meaningful, and too noisy to end a training.
  constexpr std::int64_t kBatches = 10;
  const bool metrics = plan.data().task && plan.data().task->has_metrics();
  if (!options.batches && (metrics || options.stops_early())) return validation.size();
  return std::min(validation.size(), options.batches.value_or(kBatches) * options.micro_batch);
}

void check_evaluations(const planner::Plan& plan, const data::Datasets& data) {
  check_best_metric(plan);
  // Streams are read in order, and the task rl makes its labels while it trains.
  if (plan.data().task == nullptr || plan.data().task->writes_answers() ||
      plan.data().options.streaming > 0)
    return;
  if (planner::eval_options_of(plan).when().any() && data.validation != nullptr)
    check_set(plan, *data.validation, evaluated_samples(plan, *data.validation));
  if (data.test != nullptr) check_set(plan, *data.test, data.test->size());
}

}  // namespace tessera::engine
