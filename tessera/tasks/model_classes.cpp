// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/model_classes.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace tessera::tasks {
namespace {

constexpr const char* kMultiLabel = "multi_label_classification";

const json::Value* member_of(const json::Value& value, const char* key) {
  const json::Value* const found = value.is_object() ? value.find(key) : nullptr;
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::string problem_of(const json::Value& options) {
  const json::Value* const problem = member_of(options, "problem_type");
  return problem != nullptr && problem->is_string() ? problem->as_string() : std::string();
}

std::vector<std::string> texts(const json::Value& list) {
  std::vector<std::string> out;
  for (const json::Value& one : list.items())
    out.push_back(one.as_string());
  return out;
}

/// Names of classes, and whether the model or the data gave them, instead of numbering the classes.
struct Classes {
  std::vector<std::string> names;
  bool named = false;
};

Classes classes_of(const json::Value& options) {
  return {texts(names_of_classes(options)), member_of(options, "labels") != nullptr};
}

bool has_name(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// The first name that the others lack.
std::optional<std::string> first_missing(const std::vector<std::string>& names,
                                         const std::vector<std::string>& others) {
  const auto at =
      std::ranges::find_if(names, [&](const auto& name) { return !has_name(others, name); });
  return at == names.end() ? std::nullopt : std::optional(*at);
}

std::string names_in_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    out += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kMost ? out + ", ..." : out;
}

/// True if all names are numbers of one of `classes` classes. Integers in data are classes by
/// value, and those of a model that names its classes otherwise are their ids.
bool are_ids(const std::vector<std::string>& names, std::size_t classes) {
  constexpr std::size_t kMostDigits = 7;
  return std::ranges::all_of(names, [&](const std::string& name) {
    const bool digits = !name.empty() && name.size() <= kMostDigits &&
                        name.find_first_not_of("0123456789") == std::string::npos;
    return digits && std::stoull(name) < classes;
  });
}

/// A note about classes that do not agree.
std::string difference(const char* key,
                       const std::vector<std::string>& saved,
                       const std::vector<std::string>& trained) {
  const auto unknown = first_missing(trained, saved);
  const bool same_size = saved.size() == trained.size();
  return fmt::format("{} {} of model.from ({}): {}",
                     key,
                     unknown     ? fmt::format("has the class \"{}\", which is none", *unknown)
                     : same_size ? "has another order than the classes"
                                 : "has some of the classes",
                     names_in_text(saved),
                     same_size ? "each row of the trained head continues with another class"
                               : "the head begins with new random weights");
}

}  // namespace

json::Value names_of_classes(const json::Value& objective_options) {
  json::Value out = json::Value::array();
  if (const json::Value* const names = member_of(objective_options, "labels");
      names != nullptr && names->is_array())
    out = *names;
  const json::Value* const count = member_of(objective_options, "num_labels");
  const std::int64_t labels = count != nullptr ? count->as_integer().value_or(0) : 0;
  for (std::int64_t id = std::ssize(out.items()); id < labels; ++id)
    out.push_back(json::Value::string(std::to_string(id)));
  return out;
}

json::Value fields_of_heads(const json::Value& objective_options) {
  json::Value out = json::Value::object();
  const json::Value* const heads = member_of(objective_options, "heads");
  if (heads == nullptr || !heads->is_array()) return out;
  for (const json::Value& head : heads->items()) {
    const json::Value* const name = member_of(head, "name");
    const json::Value* const labels = member_of(head, "labels");
    if (name != nullptr && name->is_string() && labels != nullptr) out[name->as_string()] = *labels;
  }
  return out;
}

namespace {

/// The weights of the classes of each saved head that has some, by the names of the heads.
json::Value weights_of_heads(const json::Value& saved) {
  json::Value out = json::Value::object();
  for (const json::Value& head : member_of(saved, "heads")->items()) {
    const json::Value* const name = member_of(head, "name");
    const json::Value* const weights = member_of(head, "class_weights");
    if (name != nullptr && name->is_string() && weights != nullptr)
      out[name->as_string()] = *weights;
  }
  return out;
}

}  // namespace

void keep_classes(const json::Value& saved, json::Value& params) {
  json::Value heads = fields_of_heads(saved);
  if (heads.members().empty() && member_of(saved, "num_labels") == nullptr) return;
  if (!params.is_object()) params = json::Value::object();
  // With saved weights, nothing is counted in the training data.
  const auto keep_weights = [&](const char* key, const json::Value& weights) {
    if (member_of(params, "class_balance") == nullptr) return;
    std::erase_if(params.members(), [](const auto& one) { return one.first == "class_balance"; });
    params[key] = weights;
  };
  if (!heads.members().empty()) {
    params["heads"] = std::move(heads);
    const json::Value weights = weights_of_heads(saved);
    if (!weights.members().empty()) keep_weights("head_class_weights", weights);
    return;
  }
  params["labels"] = names_of_classes(saved);
  if (const json::Value* const weights = member_of(saved, "class_weights"))
    keep_weights("class_weights", *weights);
}

void adopt_kind_of_classes(const json::Value& saved, json::Value& params) {
  for (const char* key : {"heads", "labels", "label_field", "multi_label"}) {
    if (member_of(params, key) != nullptr) return;
  }
  json::Value heads = fields_of_heads(saved);
  const bool several = problem_of(saved) == kMultiLabel;
  if (heads.members().empty() && !several) return;
  if (params.is_null()) params = json::Value::object();
  if (heads.members().empty()) {
    params["multi_label"] = json::Value::boolean(true);
  } else {
    params["heads"] = std::move(heads);
  }
}

namespace {

/// adopt_classes() for several heads. The head's rows are in the order of the saved heads.
std::vector<std::string> adopt_heads(const json::Value& saved_heads,
                                     const json::Value& found_heads,
                                     json::Value& params) {
  std::vector<std::string> notes;
  json::Value adopted = json::Value::object();
  for (const auto& [field, labels] : saved_heads.members()) {
    const json::Value* const found = found_heads.find(field);
    if (found == nullptr) {
      notes.push_back(fmt::format(
          "task.params.heads lacks the field \"{}\" of model.from; its head begins with new random "
          "weights",
          field));
      return notes;
    }
    const bool agree = !first_missing(texts(*found), texts(labels));
    if (!agree) notes.push_back(difference("task.params.heads", texts(labels), texts(*found)));
    adopted[field] = agree ? labels : *found;
  }
  for (const auto& [field, labels] : found_heads.members()) {
    if (adopted.find(field) == nullptr) adopted[field] = labels;
  }
  params["heads"] = std::move(adopted);
  return notes;
}

}  // namespace

std::vector<std::string> adopt_classes(const json::Value& saved,
                                       const json::Value& found,
                                       json::Value& params) {
  const json::Value saved_heads = fields_of_heads(saved), found_heads = fields_of_heads(found);
  if (!saved_heads.members().empty() || !found_heads.members().empty()) {
    if (saved_heads.members().empty() || found_heads.members().empty()) return {};
    return adopt_heads(saved_heads, found_heads, params);
  }
  if (problem_of(saved) == "regression") return {};
  const Classes model = classes_of(saved), data = classes_of(found);
  if (model.names.empty() || data.names.empty() || model.names == data.names) return {};
  const bool given = member_of(params, "labels") != nullptr;
  if (given) {
    if (!model.named) return {};
    return {difference("task.params.labels", model.names, data.names)};
  }
  const bool numbered = are_ids(data.names, model.names.size());
  if (numbered || (model.named && !first_missing(data.names, model.names))) {
    if (params.is_null()) params = json::Value::object();
    params["labels"] = names_of_classes(saved);
    return {};
  }
  if (model.named || model.names.size() != data.names.size())
    return {difference("data.train", model.names, data.names)};
  return {
      fmt::format("model.from does not name its {} classes: they are taken for those of "
                  "data.train in the order {}; give another one in task.params.labels",
                  model.names.size(),
                  names_in_text(data.names))};
}

}  // namespace tessera::tasks
