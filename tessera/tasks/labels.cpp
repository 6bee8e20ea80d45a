// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labels.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kMostLabels = 1'000'000;

}  // namespace

Label label_of(const data::Record& record, const json::Value& value, const std::string& field) {
  if (value.is_string()) return {value.as_string(), std::nullopt};
  if (value.is_bool()) return {value.as_bool() ? "true" : "false", std::nullopt};
  const std::optional<std::int64_t> id =
      value.is_number() ? value.as_integer() : std::optional<std::int64_t>();
  if (!id || *id < 0 || *id >= kMostLabels) {
    record.refuse(fmt::format("the label \"{}\" is {}", field, value.dump()),
                  fmt::format("give a name or an integer from 0 to {}", kMostLabels - 1));
  }
  return {std::to_string(*id), id};
}

std::int64_t id_in(const data::Record& record, const Label& label, const Labels& labels) {
  if (label.id && *label.id < labels.size()) return *label.id;
  if (!label.id) {
    if (const auto id = labels.id_of(label.name)) return *id;
  }
  record.refuse(fmt::format("the label \"{}\" is none of the {} labels", label.name, labels.size()),
                label.id ? fmt::format("give integers from 0 to {}, or name more labels in "
                                       "task.params.labels",
                                       labels.size() - 1)
                         : text::suggestion(label.name, labels.names()));
}

Labels Labels::named(std::vector<std::string> names) {
  Labels out;
  out.names_ = std::move(names);
  return out;
}

Labels Labels::found_in(const std::vector<std::string>& files,
                        const data::RecordOptions& how,
                        const std::string& field,
                        const char* option) {
  LabelCollector found;
  for_each_record(files, how, [&](const data::Record& record) {
    found.add(record, label_of(record, field_of(record, field, option), field));
  });
  return found.labels();
}

void LabelCollector::add(const data::Record& record, const Label& label) {
  if (label.id ? !names_.empty() : largest_ >= 0) {
    record.refuse(fmt::format("the label is {}, and that of earlier records is {}",
                              label.id ? "an integer" : "a name",
                              label.id ? "a name" : "an integer"),
                  "give names or integers in all records, or all names in task.params.labels");
  }
  if (label.id) {
    largest_ = std::max(largest_, *label.id);
  } else {
    names_.insert(label.name);
  }
}

Labels LabelCollector::labels() const {
  if (largest_ < 0) return Labels::named({names_.begin(), names_.end()});
  std::vector<std::string> digits;
  for (std::int64_t id = 0; id <= largest_; ++id)
    digits.push_back(std::to_string(id));
  return Labels::named(std::move(digits));
}

std::optional<std::int64_t> Labels::id_of(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at == names_.end()) return std::nullopt;
  return at - names_.begin();
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

}  // namespace tessera::tasks
