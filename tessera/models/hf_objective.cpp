// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/hf_objective.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/objective.h"

namespace tessera::models {
namespace {

/// The suffixes of architecture names that have an objective's head.
struct Ending {
  std::string_view text, objective;
  bool classifies = false;  ///< has labels
  bool answers = false;     ///< reads one text and writes another
  bool is_bare = false;     ///< has no head of its own
};
// The first match counts, because "LMHeadModel" also ends with "Model".
constexpr std::array<Ending, 10> kEndings = {
    {{"ForMaskedLM", "masked_lm"},
     {"ForSequenceClassification", "sequence_classification", true},
     {"ForTokenClassification", "token_classification", true},
     {"ForImageClassification", "image_classification", true},
     {"ForCausalLM", "causal_lm"},
     {"ForConditionalGeneration", "seq2seq", false, true},
     {"WithLMHeadModel", ""},
     {"LMHeadModel", "causal_lm"},
     {"ForPreTraining", "masked_lm_pairs"},
     {"Model", "embedding", false, false, true}}};

const Ending* ending_of(std::string_view architecture) {
  const auto found = std::ranges::find_if(
      kEndings, [&](const Ending& ending) { return architecture.ends_with(ending.text); });
  return found == kEndings.end() ? nullptr : &*found;
}

/// True if a folder without a head belongs to a family that is trained to continue text: its head
/// is the token table, which exists.
bool continues_text(const HfConfig& keys) {
  const std::string type = keys.word("model_type", "");
  return !families().has(type) ||
         traits_of(families().get(type).objective).predicts == Predicts::NextToken;
}

/// True for a model of images and texts of which the text part, which continues texts, is read.
bool wraps_text(const HfConfig& keys) {
  const std::string type = keys.word("model_type", "");
  return std::ranges::any_of(families().names(), [&](const std::string& family) {
    const auto& wholes = families().get(family).text_of;
    return std::ranges::find(wholes, type) != wholes.end();
  });
}

constexpr double kMostLabels = 1e6;
/// Key of config.json with the heads of a classifier that has several, whose logits transformers
/// sees as those of one.
constexpr const char* kHeads = "label_heads";
/// Keys of config.json, and options of the objective, with a number for each label.
constexpr const char* kThresholds = "thresholds";
constexpr const char* kClassWeights = "class_weights";

/// Takes the numbers over if there is one above 0 for each label.
void copy_numbers(const HfConfig& keys,
                  const char* key,
                  std::int64_t labels,
                  json::Value& options) {
  const json::Value* const found = keys.find(key);
  if (found == nullptr || !found->is_array() || std::ssize(found->items()) != labels) return;
  const bool right = std::ranges::all_of(found->items(), [](const json::Value& value) {
    return value.is_number() && value.as_double() > 0;
  });
  if (right) options[key] = *found;
}

std::string architecture_of(const json::Value& config) {
  const json::Value* names = config.find("architectures");
  const bool named = names != nullptr && names->is_array() && !names->items().empty() &&
                     names->items().front().is_string();
  return named ? names->items().front().as_string() : "";
}

std::int64_t num_labels_of(const HfConfig& keys) {
  constexpr std::int64_t kDefault = 2;
  const json::Value* names = keys.find("id2label");
  const std::int64_t said = keys.count("num_labels", kDefault, kMostLabels);
  if (names == nullptr || !names->is_object() || names->members().empty()) return said;
  const auto named = static_cast<std::int64_t>(names->members().size());
  if (!keys.empty("num_labels") && said != named)
    log::warn_once(
        fmt::format("config.json: num_labels is {}, and id2label names {} labels: "
                    "id2label decides, as in transformers",
                    said,
                    named));
  return named;
}

std::string unnamed(std::int64_t id) {
  return fmt::format("LABEL_{}", id);
}

/// The names of the labels in the order of their ids; empty if they have only default names.
json::Value label_names_of(const HfConfig& keys, std::int64_t labels) {
  json::Value out = json::Value::array();
  const json::Value* names = keys.find("id2label");
  if (names == nullptr || !names->is_object()) return out;
  bool named = false;
  for (std::int64_t id = 0; id < labels; ++id) {
    const json::Value* name = names->find(std::to_string(id));
    if (name == nullptr || !name->is_string()) {
      log::warn_once(fmt::format(
          "config.json: id2label has {} labels and no name for label {}: its names are not used",
          labels,
          id));
      return json::Value::array();
    }
    named |= name->as_string() != unnamed(id);
    out.push_back(*name);
  }
  return named ? out : json::Value::array();
}

/// The objective under which a model trained with this one is saved.
ObjectiveChoice kept_as(const ObjectiveChoice& trained_by) {
  if (!kept_objectives().has(trained_by.name)) return trained_by;
  const KeptObjective& kept = kept_objectives().get(trained_by.name);
  return {kept.name, kept.options};
}

}  // namespace

ObjectiveChoice objective_of_hf(const json::Value& hf_config) {
  const HfConfig keys(hf_config);
  const std::string architecture = architecture_of(hf_config);
  ObjectiveChoice out;
  const Ending* const ending = ending_of(architecture);
  if (ending == nullptr || (ending->is_bare && continues_text(keys))) return out;
  const bool part = ending->answers && wraps_text(keys);
  out.name = part ? kDefaultObjective : ending->objective;
  if (!ending->classifies) return out;
  const std::int64_t labels = num_labels_of(keys);
  out.options["num_labels"] = json::Value::integer(labels);
  if (json::Value names = label_names_of(keys, labels); !names.items().empty())
    out.options["labels"] = std::move(names);
  if (traits_of(out.name).predicts == Predicts::TokenClass) {
    copy_numbers(keys, kClassWeights, labels, out.options);
    return out;
  }
  if (const json::Value* const heads = keys.find(kHeads); heads != nullptr && heads->is_array()) {
    out.options["heads"] = *heads;
    return out;
  }
  const std::string problem = keys.word("problem_type", labels == 1 ? "regression" : "");
  if (!problem.empty()) out.options["problem_type"] = json::Value::string(problem);
  if (problem == "multi_label_classification") {
    copy_numbers(keys, kThresholds, labels, out.options);
  } else if (problem != "regression") {
    copy_numbers(keys, kClassWeights, labels, out.options);
  }
  return out;
}

bool knows_head(const json::Value& hf_config) {
  return ending_of(architecture_of(hf_config)) != nullptr;
}

std::optional<json::Value> said_of(const ObjectiveChoice& trained_by) {
  const ObjectiveChoice objective = kept_as(trained_by);
  if (objective.name.empty() || objective.name == kDefaultObjective) return std::nullopt;
  return json::Value::object(
      {{"name", json::Value::string(objective.name)}, {"options", objective.options}});
}

void say_objective(json::Value& hf_config, const ObjectiveChoice& trained_by) {
  const ObjectiveChoice objective = kept_as(trained_by);
  const std::string own = architecture_of(hf_config);
  const auto wanted = std::ranges::find_if(
      kEndings, [&](const Ending& ending) { return ending.objective == objective.name; });
  if (wanted == kEndings.end()) return;
  std::string_view model = own;
  if (const Ending* ending = ending_of(own)) model.remove_suffix(ending->text.size());
  // The family's own architecture is right if its own objective is meant.
  if (objective_of_hf(hf_config).name != objective.name) {
    hf_config["architectures"] =
        json::Value::array({json::Value::string(fmt::format("{}{}", model, wanted->text))});
  }
  if (!wanted->classifies) return;
  const json::Value* count = objective.options.find("num_labels");
  const std::int64_t labels = count != nullptr ? count->as_integer().value_or(2) : 2;
  const json::Value* own_names = objective.options.find("labels");
  json::Value names = json::Value::object(), ids = json::Value::object();
  for (std::int64_t id = 0; id < labels; ++id) {
    const bool named = own_names != nullptr && id < std::ssize(own_names->items());
    const std::string name =
        named ? own_names->items()[static_cast<std::size_t>(id)].as_string() : unnamed(id);
    names[std::to_string(id)] = json::Value::string(name);
    ids[name] = json::Value::integer(id);
  }
  hf_config["id2label"] = names;
  hf_config["label2id"] = ids;
  for (const char* key : {kThresholds, kClassWeights}) {
    if (const json::Value* const numbers = objective.options.find(key)) hf_config[key] = *numbers;
  }
  if (traits_of(objective.name).predicts == Predicts::TokenClass) return;
  if (const json::Value* const heads = objective.options.find("heads")) {
    hf_config[kHeads] = *heads;
    hf_config["problem_type"] = json::Value::string("multi_label_classification");
    return;
  }
  const json::Value* problem = objective.options.find("problem_type");
  hf_config["problem_type"] =
      problem != nullptr ? *problem : json::Value::string("single_label_classification");
}

}  // namespace tessera::models
