// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labels.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kMostLabels = 1'000'000;

}  // namespace

Label label_of(const Line& line, const json::Value& value, const std::string& field) {
  if (value.is_string()) return {value.as_string(), std::nullopt};
  const std::optional<std::int64_t> id =
      value.is_number() ? value.as_integer() : std::optional<std::int64_t>();
  if (!id || *id < 0 || *id >= kMostLabels) {
    refuse(line,
           fmt::format("the label \"{}\" is {}", field, value.dump()),
           fmt::format("give a name or an integer from 0 to {}", kMostLabels - 1));
  }
  return {std::to_string(*id), id};
}

std::int64_t id_in(const Line& line, const Label& label, const Labels& labels) {
  if (label.id && *label.id < labels.size()) return *label.id;
  if (!label.id) {
    if (const auto id = labels.id_of(label.name)) return *id;
  }
  refuse(line,
         fmt::format("the label \"{}\" is none of the {} labels", label.name, labels.size()),
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

Labels Labels::found_in(const std::vector<std::string>& files, const RecordFields& fields) {
  std::int64_t replaced = 0;
  LabelCollector found;
  for_each_line(files, [&](const Line& line) {
    const json::Value record = parse_record(line, fields, replaced);
    found.add(line,
              label_of(line, member(line, record, fields.label, "label_field"), fields.label));
  });
  return found.labels();
}

void LabelCollector::add(const Line& line, const Label& label) {
  if (label.id ? !names_.empty() : largest_ >= 0) {
    refuse(line,
           fmt::format("the label is {}, and that of earlier records is {}",
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

}  // namespace tessera::tasks
