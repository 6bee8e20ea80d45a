// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labels.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/choices.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kMostLabels = 1'000'000;

constexpr auto kClassBalances =
    std::to_array<config::Named<ClassBalance>>({{ClassBalance::None, "none"},
                                                {ClassBalance::Inverse, "inverse"},
                                                {ClassBalance::ClassBalanced, "class_balanced"}});

/// The integer of which the name is the decimal notation.
std::optional<std::int64_t> integer_in(const std::string& name) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole ? std::optional(number) : std::nullopt;
}

/// The names that the file declares for integers in a field; nullptr: none.
std::shared_ptr<const std::vector<std::string>> declared_names(const data::Record& record,
                                                               const std::string& field) {
  if (record.classes == nullptr) return nullptr;
  const auto found = record.classes->find(field);
  return found == record.classes->end() ? nullptr : found->second;
}

}  // namespace

Label label_of(const data::Record& record, const json::Value& value, const std::string& field) {
  const bool missing =
      value.is_null() || (value.is_string() && text::trim(value.as_string()).empty());
  if (missing) {
    record.refuse(fmt::format("the label \"{}\" is missing", field),
                  "give the record a label, or leave it out: data.on_bad_record \"skip\"");
  }
  if (value.is_string()) {
    // Tables have the spelling of the program that wrote them.
    const std::string lower = text::lower(value.as_string());
    const bool flag = record.row && (lower == "true" || lower == "false");
    return {.name = flag ? lower : value.as_string()};
  }
  if (value.is_bool()) return {.name = value.as_bool() ? "true" : "false"};
  const std::optional<std::int64_t> id =
      value.is_number() ? value.as_integer() : std::optional<std::int64_t>();
  if (!id || *id <= -kMostLabels || *id >= kMostLabels) {
    record.refuse(fmt::format("the label \"{}\" is {}", field, value.dump()),
                  fmt::format("give a name or an integer from 0 to {}", kMostLabels - 1));
  }
  const auto names = declared_names(record, field);
  if (names == nullptr || *id < 0) return {.name = std::to_string(*id), .id = id};
  if (*id >= std::ssize(*names)) {
    record.refuse(
        fmt::format(
            "the label \"{}\" is {}, and the file declares {} classes", field, *id, names->size()),
        "correct the record, or the features of the dataset");
  }
  return {.name = (*names)[static_cast<std::size_t>(*id)], .declared_id = id, .declared = names};
}

std::int64_t id_in(const data::Record& record, const Label& label, const Labels& labels) {
  if (const auto id = labels.id_of(label)) return *id;
  for (const char* flag : {"True", "False"}) {  // as Python names them
    if (label.id || label.name != text::lower(flag)) continue;
    if (const auto id = labels.id_of(flag)) return *id;
  }
  record.refuse(
      fmt::format("the label \"{}\" is not one of the {} labels", label.name, labels.size()),
      label.id ? fmt::format("give one of {}, or name all labels in task.params.labels",
                             text::join_some(labels.names(), ", "))
               : text::suggestion(label.name, labels.names()));
}

Labels Labels::named(std::vector<std::string> names) {
  Labels out;
  out.names_ = std::move(names);
  for (std::size_t id = 0; id < out.names_.size(); ++id)
    out.ids_.try_emplace(out.names_[id], static_cast<std::int64_t>(id));
  out.by_value_ = std::ranges::all_of(
      out.names_, [](const std::string& name) { return integer_in(name).has_value(); });
  return out;
}

Labels Labels::found_in(const std::vector<std::string>& files,
                        const data::RecordOptions& how,
                        const std::string& field,
                        const char* option) {
  LabelCollector found({});
  for_each_record(files, how, [&](const data::Record& record) {
    found.add(record, label_of(record, field_of(record, field, option), field));
  });
  return found.labels();
}

LabelCollector::LabelCollector(std::vector<std::string> named) : named_(std::move(named)) {}

void LabelCollector::add(const data::Record& record, const Label& label) {
  // -1 and -100 mark missing labels in published data.
  if (label.id && *label.id < 0 && std::ranges::find(named_, label.name) == named_.end()) {
    record.refuse(
        fmt::format("the label is {}, and negative numbers mark missing labels", *label.id),
        fmt::format("if {} is a class, name all classes: task.params.labels [\"{}\", "
                    "\"0\", ...]",
                    *label.id,
                    *label.id));
  }
  if (label.id ? !names_.empty() : !numbers_.empty()) {
    record.refuse(fmt::format("the label is {}, and that of earlier records is {}",
                              label.id ? "an integer" : "a name",
                              label.id ? "a name" : "an integer"),
                  "give names or integers in all records, or all names in task.params.labels");
  }
  if (label.declared != nullptr && declared_.empty()) declared_ = *label.declared;
  if (label.id) {
    ++numbers_[*label.id];
  } else {
    ++names_[label.name];
  }
}

Labels LabelCollector::labels() const {
  std::vector<std::string> names;
  std::vector<std::int64_t> counts;
  for (const auto& [name, count] : names_) {
    names.push_back(name);
    counts.push_back(count);
  }
  for (const auto& [number, count] : numbers_) {
    names.push_back(std::to_string(number));
    counts.push_back(count);
  }
  Labels out = Labels::named(std::move(names));
  out.counts = std::move(counts);
  const bool all_declared = std::ranges::all_of(names_, [&](const auto& one) {
    return std::ranges::find(declared_, one.first) != declared_.end();
  });
  return declared_.empty() || !all_declared ? out : counted(declared_, out);
}

std::optional<std::int64_t> Labels::id_of(const std::string& name) const {
  const auto at = ids_.find(name);
  return at == ids_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<std::int64_t> Labels::id_of(const Label& label) const {
  if (const auto id = id_of(label.name)) return id;
  if (label.declared_id) {
    const std::string digits = std::to_string(*label.declared_id);
    return id_of({.name = digits, .id = label.declared_id});
  }
  const bool is_id = label.id && *label.id >= 0 && *label.id < size();
  return is_id && !by_value_ ? label.id : std::nullopt;
}

Labels counted(const std::vector<std::string>& names, const Labels& found) {
  Labels out = Labels::named(names);
  out.counts.assign(names.size(), 0);
  for (std::size_t i = 0; i < found.counts.size(); ++i) {
    // Records may also contain ids, whose names are digits.
    const std::string& name = found.names()[i];
    if (const auto id = out.id_of(Label{name, integer_in(name)}))
      out.counts[static_cast<std::size_t>(*id)] += found.counts[i];
  }
  return out;
}

json::Value with_label_names(json::Value params) {
  json::Value* const labels = params.is_object() ? params.find("labels") : nullptr;
  if (labels == nullptr || !labels->is_array()) return params;
  for (json::Value& label : labels->items()) {
    const bool is_integer = label.is_number() && label.as_integer().has_value();
    if (!is_integer && !label.is_bool()) continue;
    const json::Place place = label.place;
    label = json::Value::string(is_integer ? std::to_string(*label.as_integer())
                                           : std::string(label.as_bool() ? "true" : "false"));
    label.place = place;
  }
  return params;
}

void check_label_names(std::vector<std::string> names,
                       config::Problems& problems,
                       const config::Origins& origins) {
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return;
  problems.add(origins.place("labels"),
               "labels",
               fmt::format("the label \"{}\" is named twice", *twice),
               "name every label once");
}

json::Value options_of_labels(const Labels& labels) {
  TESSERA_REQUIRE(labels.size() > 0,
                  Data,
                  "data.train has no record with a label",
                  "name files that have records, or list the labels in the task's params");
  json::Value out = json::Value::object(), names = json::Value::array();
  out["num_labels"] = json::Value::integer(labels.size());
  bool named = false;
  for (const std::string& name : labels.names()) {
    named |= name != std::to_string(names.items().size());
    names.push_back(json::Value::string(name));
  }
  if (named) out["labels"] = std::move(names);
  return out;
}

std::vector<LabelHead> label_heads_of(const json::Value& heads,
                                      const json::Value& weights,
                                      const json::Value& class_weights,
                                      config::Problems& problems,
                                      const config::Origins& origins) {
  std::vector<LabelHead> out;
  const auto refuse = [&](const char* key, const std::string& what, const char* fix) {
    problems.add(origins.place(key), key, what, fix);
  };
  constexpr const char* kFix =
      "name the labels of each field, or null for those of the data: {\"topic\": [\"sport\", "
      "\"arts\"], \"mood\": null}";
  const bool fields = heads.is_array() && !heads.items().empty() &&
                      std::ranges::all_of(heads.items(), &json::Value::is_string);
  if (!heads.is_null() && !fields && (!heads.is_object() || heads.members().empty())) {
    refuse("heads", fmt::format("heads is {}", heads.dump()), kFix);
    return out;
  }
  if (fields) {
    for (const json::Value& field : heads.items()) {
      const bool again = std::ranges::find(out, field.as_string(), &LabelHead::field) != out.end();
      if (again || field.as_string().empty())
        refuse("heads", fmt::format("heads is {}", heads.dump()), "name every field once");
      out.push_back({.field = field.as_string(), .labels = {}});
    }
  }
  if (heads.is_object()) {
    for (const auto& [field, labels] : heads.members()) {
      std::vector<std::string> names;
      if (labels.is_null() && !field.empty()) {
        out.push_back({.field = field, .labels = {}});
        continue;
      }
      const bool listed = labels.is_array() && labels.items().size() > 1 &&
                          std::ranges::all_of(labels.items(), &json::Value::is_string);
      if (!listed || field.empty()) {
        refuse("heads", fmt::format("heads.{} is {}", field, labels.dump()), kFix);
        continue;
      }
      for (const json::Value& label : labels.items())
        names.push_back(label.as_string());
      std::vector<std::string> sorted = names;
      std::ranges::sort(sorted);
      if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
        refuse("heads",
               fmt::format("the label \"{}\" of heads.{} is named twice", *twice, field),
               "name every label once");
      }
      out.push_back({.field = field, .labels = Labels::named(std::move(names))});
    }
  }
  const auto members = [&](const json::Value& value, const char* key, const char* fix) {
    if (!value.is_null() && !value.is_object())
      refuse(key, fmt::format("{} is {}", key, value.dump()), fix);
    return value.is_object() ? value.members() : std::vector<json::Value::Member>();
  };
  for (const auto& [field, list] : members(
           class_weights, "head_class_weights", "write {\"topic\": [1, 3], \"mood\": [1, 1]}")) {
    const auto head = std::ranges::find(out, field, &LabelHead::field);
    const auto above_zero = [](const json::Value& weight) {
      return weight.is_number() && weight.as_double() > 0;
    };
    const bool fits = head != out.end() && list.is_array() &&
                      std::ranges::all_of(list.items(), above_zero) &&
                      (head->labels.size() == 0 || std::ssize(list.items()) == head->labels.size());
    if (!fits) {
      refuse("head_class_weights",
             fmt::format("head_class_weights.{} is {}", field, list.dump()),
             "give fields of heads a number above 0 for each label");
      continue;
    }
    for (const json::Value& weight : list.items())
      head->class_weights.push_back(weight.as_double());
  }
  for (const auto& [field, weight] :
       members(weights, "head_weights", "write {\"topic\": 1, \"mood\": 0.5}")) {
    const auto head = std::ranges::find(out, field, &LabelHead::field);
    if (head == out.end() || !weight.is_number() || !(weight.as_double() > 0)) {
      refuse("head_weights",
             fmt::format("head_weights.{} is {}", field, weight.dump()),
             "give fields of heads a number above 0");
      continue;
    }
    head->weight = weight.as_double();
  }
  return out;
}

std::optional<Label> label_of_head(const data::Record& record, const LabelHead& head) {
  const json::Value& value = field_of(record, head.field, "heads");
  if (value.is_null() || (value.is_string() && value.as_string().empty())) return std::nullopt;
  return label_of(record, value, head.field);
}

std::vector<LabelHead> heads_found_in(const std::vector<std::string>& files,
                                      const data::RecordOptions& how,
                                      std::vector<LabelHead> heads) {
  std::vector<LabelCollector> found;
  for (const LabelHead& head : heads)
    found.emplace_back(head.labels.names());
  for_each_record(files, how, [&](const data::Record& record) {
    for (std::size_t h = 0; h < heads.size(); ++h) {
      if (const auto label = label_of_head(record, heads[h])) found[h].add(record, *label);
    }
  });
  for (std::size_t h = 0; h < heads.size(); ++h) {
    LabelHead& head = heads[h];
    const Labels labels = found[h].labels();
    head.labels = head.labels.size() == 0 ? labels : counted(head.labels.names(), labels);
    TESSERA_REQUIRE(head.labels.size() > 1,
                    Data,
                    fmt::format("the field {} of data.train has {} labels, and a head needs two",
                                head.field,
                                head.labels.size()),
                    "name its labels in task.params.heads, or leave it out");
    TESSERA_REQUIRE(
        head.class_weights.empty() || std::ssize(head.class_weights) == head.labels.size(),
        Config,
        fmt::format("head_class_weights.{} has {} numbers, and the data has {} labels",
                    head.field,
                    head.class_weights.size(),
                    head.labels.size()),
        "give one for each label, in the order of their ids");
  }
  return heads;
}

json::Value options_of_heads(const std::vector<LabelHead>& heads, const ClassLossOptions& loss) {
  json::Value all = json::Value::array(), labels = json::Value::array();
  for (const LabelHead& head : heads) {
    json::Value names = json::Value::array();
    for (const std::string& name : head.labels.names()) {
      names.push_back(json::Value::string(name));
      labels.push_back(json::Value::string(head.field + "/" + name));
    }
    json::Value one = json::Value::object(
        {{"name", json::Value::string(head.field)}, {"labels", std::move(names)}});
    if (head.weight != 1.0) one["weight"] = json::Value::number(head.weight);
    const std::vector<double> weights =
        loss.balance != ClassBalance::None
            ? class_weights_of(head.labels.counts, loss.balance, loss.beta)
            : head.class_weights;
    if (!weights.empty()) {
      json::Value list = json::Value::array();
      for (const double weight : weights)
        list.push_back(json::Value::number(weight));
      one["class_weights"] = std::move(list);
    }
    all.push_back(std::move(one));
  }
  return json::Value::object({{"num_labels", json::Value::integer(std::ssize(labels.items()))},
                              {"labels", std::move(labels)},
                              {"heads", std::move(all)}});
}

void ClassLossOptions::describe(config::Fields& fields) {
  fields.choice(
      "class_balance",
      balance,
      kClassBalances,
      {.text =
           "How the loss weights classes by their frequency in data.train: none, inverse (1 / n, "
           "so that all classes count equally), class_balanced ((1 - beta) / (1 - beta^n))."});
  fields.field(
      "beta", beta, {.text = "The beta of class_balance class_balanced.", .min = 0, .max = 1});
  fields.field("class_weights",
               class_weights,
               {.text = "Weight of the loss of each class, in the order of their ids.",
                .default_text = "by class_balance"});
  fields.field("focal_gamma",
               focal_gamma,
               {.text = "Exponent of the focal loss -(1-p)^gamma ln p; 0 is the cross-entropy.",
                .min = 0,
                .max = 100});
  fields.field("label_smoothing",
               label_smoothing,
               {.text = "Share of the target spread over all classes, in training only.",
                .min = 0,
                .max = 1});
}

void ClassLossOptions::check(config::Problems& problems, const config::Origins& origins) const {
  if (!class_weights.empty() && balance != ClassBalance::None) {
    problems.add(origins.place("class_weights"),
                 "class_weights",
                 "class_weights and class_balance are both given",
                 "keep one of them");
  }
}

void ClassLossOptions::add_to(json::Value& options, const Labels& labels) const {
  if (label_smoothing > 0) options["label_smoothing"] = json::Value::number(label_smoothing);
  if (focal_gamma > 0) options["focal_gamma"] = json::Value::number(focal_gamma);
  std::vector<double> weights = class_weights;
  if (balance != ClassBalance::None) weights = class_weights_of(labels.counts, balance, beta);
  if (weights.empty()) return;
  json::Value list = json::Value::array();
  for (const double weight : weights)
    list.push_back(json::Value::number(weight));
  options["class_weights"] = std::move(list);
}

std::vector<double> class_weights_of(const std::vector<std::int64_t>& counts,
                                     ClassBalance balance,
                                     double beta) {
  std::vector<double> out;
  double sum = 0;
  for (const std::int64_t count : counts) {
    const auto n = static_cast<double>(std::max<std::int64_t>(count, 1));
    // (1 - beta) / (1 - beta^n) is 1 / n at beta 1.
    const bool inverse = balance == ClassBalance::Inverse || beta == 1.0;
    out.push_back(inverse ? 1 / n : (1 - beta) / -std::expm1(n * std::log(beta)));
    sum += out.back();
  }
  for (double& weight : out)
    weight *= static_cast<double>(out.size()) / sum;
  return out;
}

}  // namespace tessera::tasks
