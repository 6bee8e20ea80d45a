// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/evaluated_metrics.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/engine/standing.h"
#include "tessera/planner/activations.h"
#include "tessera/tasks/metrics.h"
#include "tessera/tasks/text_scores.h"

namespace tessera::engine {
namespace {

/// Predictions of the task's form, of samples that are made up.
tasks::Predictions made_up(const planner::Plan& plan) {
  tasks::Predictions out;
  const json::Value& options = plan.model.objective.options;
  const json::Value* const labels = options.find("num_labels");
  out.width = labels != nullptr ? labels->as_integer().value_or(1) : 1;
  out.label_width = 1;
  for (const data::TensorSpec& spec : plan.sample) {
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

}  // namespace

bool predicts_tokens(const planner::Plan& plan) {
  constexpr std::array<std::string_view, 3> kNextTokens = {"causal_lm", "prefix_lm", "seq2seq"};
  const std::string& objective = plan.model.objective.name;
  return plan.model.description.find("family") != nullptr &&
         (objective.starts_with("masked_lm") ||
          std::ranges::find(kNextTokens, objective) != kNextTokens.end());
}

std::vector<std::string> evaluated_metrics(const planner::Plan& plan) {
  const bool own_model = plan.model.description.find("family") == nullptr;
  if (plan.task == nullptr || plan.task->writes_answers() || own_model) return {};
  const std::vector<std::string> terms = planner::evaluated_terms(plan);
  if (terms.empty()) return {};
  std::vector<std::string> out = {"loss"};
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(out, name) == out.end()) out.push_back(name);
  };
  std::ranges::for_each(terms, add);
  if (predicts_tokens(plan)) add("perplexity");
  if (plan.config.eval.generate > 0) {
    for (const std::string_view name : tasks::kTextScores)
      add(std::string(name));
  }
  // Ranks that share the tokens of a sample make no predictions.
  if (plan.task->has_metrics() && plan.config.parallel.context.size == 1) {
    for (const tasks::NamedValue& metric : plan.task->metrics(made_up(plan)))
      add(metric.name);
  }
  return out;
}

void check_best_metric(const planner::Plan& plan) {
  if (plan.config.eval.best.is_null() || !plan.config.eval.when().any()) return;
  const std::vector<std::string> names = evaluated_metrics(plan);
  if (names.empty()) return;
  const std::string& metric = plan.config.eval.rule().metric;
  if (std::ranges::find(names, metric) == names.end()) refuse_metric(metric, names);
}

}  // namespace tessera::engine
