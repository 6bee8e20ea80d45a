// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/hf_objective.h"

#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tessera/models/hf_config.h"

namespace tessera::models {
namespace {

/// How the names of architectures end that have an objective's head.
struct Ending {
  std::string_view text, objective;
  bool classifies = false;  ///< has labels
};
constexpr std::array<Ending, 9> kEndings = {
    {{"ForMaskedLM", "masked_lm"},
     {"ForSequenceClassification", "sequence_classification", true},
     {"ForTokenClassification", "token_classification", true},
     {"ForImageClassification", "image_classification", true},
     {"ForCausalLM", "causal_lm"},
     {"ForConditionalGeneration", "seq2seq"},
     {"WithLMHeadModel", ""},
     {"LMHeadModel", "causal_lm"},
     {"ForPreTraining", ""}}};

constexpr double kMostLabels = 1e6;

std::string architecture_of(const json::Value& config) {
  const json::Value* names = config.find("architectures");
  const bool named = names != nullptr && names->is_array() && !names->items().empty() &&
                     names->items().front().is_string();
  return named ? names->items().front().as_string() : "";
}

std::int64_t num_labels_of(const HfConfig& keys) {
  constexpr std::int64_t kDefault = 2;
  const json::Value* names = keys.find("id2label");
  if (names != nullptr && names->is_object() && !names->members().empty())
    return static_cast<std::int64_t>(names->members().size());
  return keys.count("num_labels", kDefault, kMostLabels);
}

}  // namespace

ObjectiveChoice objective_of_hf(const json::Value& hf_config) {
  const HfConfig keys(hf_config);
  const std::string architecture = architecture_of(hf_config);
  ObjectiveChoice out;
  for (const Ending& ending : kEndings) {
    if (!architecture.ends_with(ending.text)) continue;
    out.name = ending.objective;
    if (!ending.classifies) return out;
    const std::int64_t labels = num_labels_of(keys);
    out.options["num_labels"] = json::Value::integer(labels);
    if (ending.objective == "token_classification") return out;
    const std::string problem = keys.word("problem_type", labels == 1 ? "regression" : "");
    if (!problem.empty()) out.options["problem_type"] = json::Value::string(problem);
    return out;
  }
  return out;
}

std::optional<json::Value> said_of(const ObjectiveChoice& objective) {
  if (objective.name.empty() || objective.name == "causal_lm") return std::nullopt;
  return json::Value::object(
      {{"name", json::Value::string(objective.name)}, {"options", objective.options}});
}

void say_objective(json::Value& hf_config, const ObjectiveChoice& objective) {
  const std::string own = architecture_of(hf_config);
  const Ending* wanted = nullptr;
  std::string_view model = own;
  for (const Ending& ending : kEndings) {
    if (wanted == nullptr && ending.objective == objective.name) wanted = &ending;
    if (own.ends_with(ending.text)) model.remove_suffix(ending.text.size());
  }
  if (wanted == nullptr) return;
  // The family's own architecture is right where its objective is meant.
  if (objective_of_hf(hf_config).name != objective.name) {
    hf_config["architectures"] =
        json::Value::array({json::Value::string(fmt::format("{}{}", model, wanted->text))});
  }
  if (!wanted->classifies) return;
  const json::Value* count = objective.options.find("num_labels");
  const std::int64_t labels = count != nullptr ? count->as_integer().value_or(2) : 2;
  json::Value names = json::Value::object(), ids = json::Value::object();
  for (std::int64_t id = 0; id < labels; ++id) {
    const std::string name = fmt::format("LABEL_{}", id);
    names[std::to_string(id)] = json::Value::string(name);
    ids[name] = json::Value::integer(id);
  }
  hf_config["id2label"] = names;
  hf_config["label2id"] = ids;
  if (objective.name == "token_classification") return;
  const json::Value* problem = objective.options.find("problem_type");
  hf_config["problem_type"] =
      problem != nullptr ? *problem : json::Value::string("single_label_classification");
}

}  // namespace tessera::models
