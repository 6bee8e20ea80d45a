// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/eval_history.h"

#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

constexpr const char* kLoss = "loss";

const char* mode_of(const BestRule& rule) {
  return rule.higher ? "max" : "min";
}

/// True if a state written by to_json() or state() belongs to this rule.
bool is_of(const json::Value& value, const BestRule& rule) {
  if (!value.is_object()) return false;
  const json::Value *metric = value.find("metric"), *mode = value.find("mode");
  // Older states have no metric, because the loss alone decided then.
  if (metric == nullptr) return rule.metric == kLoss && !rule.higher;
  return metric->is_string() && metric->as_string() == rule.metric && mode != nullptr &&
         mode->is_string() && mode->as_string() == mode_of(rule);
}

std::optional<std::int64_t> count_in(const json::Value& value, std::string_view key) {
  const json::Value* found = value.find(key);
  const auto count = found != nullptr && found->is_number() ? found->as_integer() : std::nullopt;
  return count && *count >= 0 ? count : std::nullopt;
}

}  // namespace

json::Value to_json(const BestEvaluation& best, const BestRule& rule) {
  return json::Value::object({{"step", json::Value::integer(best.step)},
                              {"metric", json::Value::string(rule.metric)},
                              {"mode", json::Value::string(mode_of(rule))},
                              {"value", json::Value::number(best.value)}});
}

std::optional<BestEvaluation> best_from(const json::Value& value, const BestRule& rule) {
  if (!is_of(value, rule)) return std::nullopt;
  const auto step = count_in(value, "step");
  const json::Value* number = value.find("value");
  if (number == nullptr) number = value.find(kLoss);
  if (!step || number == nullptr || !number->is_number()) return std::nullopt;
  return BestEvaluation{*step, number->as_double()};
}

void EvalHistory::add(std::int64_t step, double value, const EvalOptions& options) {
  const BestRule rule = options.rule();
  const bool better = std::isfinite(value) && (!best_ || rule.better(value, best_->value));
  const bool gain = better && (!best_ || std::abs(value - best_->value) > options.min_gain);
  last_step_ = step;
  without_gain_ = gain ? 0 : without_gain_ + 1;
  if (gain) gain_step_ = step;
  if (better) best_ = {step, value};
}

std::optional<std::string> EvalHistory::why_stop(const EvalOptions& options) const {
  const bool by_evaluations = options.patience && without_gain_ >= *options.patience;
  const std::int64_t steps = last_step_ - gain_step_;
  const bool by_steps = options.patience_steps && steps >= *options.patience_steps;
  if (!by_evaluations && !by_steps) return std::nullopt;
  const std::string& metric = options.rule().metric;
  const std::string best =
      best_ ? fmt::format("; the best, {:.4f}, was at step {}", best_->value, best_->step) : "";
  return by_evaluations ? fmt::format(
                              "stopped early at step {}: {} evaluation{} without a gain of "
                              "{}{}",
                              last_step_,
                              without_gain_,
                              without_gain_ == 1 ? "" : "s",
                              metric,
                              best)
                        : fmt::format("stopped early at step {}: {} steps without a gain of {}{}",
                                      last_step_,
                                      steps,
                                      metric,
                                      best);
}

json::Value EvalHistory::state(const EvalOptions& options) const {
  const BestRule rule = options.rule();
  json::Value out = json::Value::object({{"metric", json::Value::string(rule.metric)},
                                         {"mode", json::Value::string(mode_of(rule))},
                                         {"without_gain", json::Value::integer(without_gain_)},
                                         {"gain_step", json::Value::integer(gain_step_)},
                                         {"last_step", json::Value::integer(last_step_)}});
  if (best_) {
    out["best_step"] = json::Value::integer(best_->step);
    out["best_value"] = json::Value::number(best_->value);
  }
  return out;
}

EvalHistory EvalHistory::from(const json::Value& state, const EvalOptions& options) {
  EvalHistory out;
  if (!is_of(state, options.rule())) return out;
  const auto without_gain = count_in(state, "without_gain"), gain = count_in(state, "gain_step"),
             last = count_in(state, "last_step"), step = count_in(state, "best_step");
  const json::Value* value = state.find("best_value");
  if (!without_gain || !gain || !last) return out;
  out.without_gain_ = *without_gain;
  out.gain_step_ = *gain;
  out.last_step_ = *last;
  if (step && value != nullptr && value->is_number()) out.best_ = {*step, value->as_double()};
  return out;
}

std::optional<std::string> stopped_early(const json::Value& config, const json::Value& extra) {
  const json::Value* const evaluations = extra.find("evaluations");
  const json::Value* const section = config.is_object() ? config.find("eval") : nullptr;
  if (evaluations == nullptr || section == nullptr) return std::nullopt;
  EvalOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(*section, options, problems, origins);
  if (!problems.empty() || !options.stops_early()) return std::nullopt;
  try {
    return EvalHistory::from(*evaluations, options).why_stop(options);
  } catch (const Error&) {
    return std::nullopt;  // a rule that this version does not know
  }
}

}  // namespace tessera::tasks
