// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/make_rule.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/optim/compressed.h"

namespace tessera::optim {

json::Value params_or(const json::Value& params, const json::Place& place) {
  if (!params.is_null()) return params;
  json::Value out = json::Value::object();
  out.place = place;
  return out;
}

std::unique_ptr<Rule> make_rule(const OptimizerOptions& options,
                                const json::Place& place,
                                config::Problems& problems) {
  const RuleFactory factory = rule_factory(options.type);
  config::Problems part;
  config::Origins origins;
  auto rule = factory(params_or(options.params, place), part, origins);
  problems.adopt(part, "optimizer.params");
  return rule;
}

std::unique_ptr<Rule> rule_if_any(const OptimizerOptions& options) {
  const bool fits = options.params.is_null() || options.params.is_object();
  if (!fits || !rules().has(options.type)) return nullptr;
  config::Problems ignored;
  return make_rule(options, {}, ignored);
}

void check_params_of_unknown(const OptimizerOptions& options,
                             const json::Place& place,
                             config::Problems& problems) {
  OptimizerOptions nearest = options;
  nearest.type = text::nearest(options.type, rules().names()).value_or("AdamW");
  config::Problems all;
  make_rule(nearest, place, all);
  for (const config::Problems::Problem& problem : all.list()) {
    if (problem.kind == config::Problems::Kind::Wrong)
      problems.add(problem.place, problem.path, problem.what, problem.fix, problem.kind);
  }
}

ExchangeNeeds exchange_needs(const OptimizerOptions& options) {
  const auto rule = rule_if_any(options);
  const auto* compressed = rule != nullptr ? rule->compressed() : nullptr;
  if (compressed == nullptr) return {};
  return {true, compressed->local_weights(), compressed->fused()};
}

std::vector<std::string> optimizer_notes(const OptimizerOptions& options) {
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

void fill_width(OptimizerOptions& options, std::int64_t hidden_size) {
  const std::string type = text::lower(options.type);
  if (type != "muadam" && type != "muadamw" && type != "musgd") return;
  if (!options.params.is_object() || hidden_size <= 0) return;
  if (options.params.find("hidden_size") == nullptr)
    options.params["hidden_size"] = json::Value::integer(hidden_size);
}

json::Value complete_optimizer_params(const OptimizerOptions& options) {
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

}  // namespace tessera::optim
