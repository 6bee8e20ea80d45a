// SPDX-License-Identifier: Apache-2.0
// The labels that samples may have, and how records name them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"

namespace tessera::tasks {

/// The labels that samples may have, by their ids 0, 1, ...
class Labels {
 public:
  /// Labels by name; a record may also give the id.
  static Labels named(std::vector<std::string> names);
  /// Those of the field of the records in `files`: strings sorted by their bytes, false and true,
  /// or integers from 0 to the largest one. Error{Data} names file and line of a record that has no
  /// label, or a name where others have integers.
  static Labels found_in(const std::vector<std::string>& files,
                         const data::RecordOptions& how,
                         const std::string& field,
                         const char* option);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(names_.size()); }
  /// A label that is an integer has its digits as its name.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] std::optional<std::int64_t> id_of(const std::string& name) const;

 private:
  std::vector<std::string> names_;
};

/// A record's label: a name, or an integer, whose digits are the name. True and false are names.
struct Label {
  std::string name;
  std::optional<std::int64_t> id;
};
/// The label that `field` of a record holds. Error{Data} for a value that is neither.
Label label_of(const data::Record& record, const json::Value& value, const std::string& field);
/// Error{Data} for a label that is none of these.
std::int64_t id_in(const data::Record& record, const Label& label, const Labels& labels);

/// Makes Labels of those that records have, as Labels::found_in() does.
class LabelCollector {
 public:
  void add(const data::Record& record, const Label& label);
  [[nodiscard]] Labels labels() const;

 private:
  std::set<std::string> names_;
  std::int64_t largest_ = -1;
};

/// Adds a problem where a label is named twice.
void check_label_names(std::vector<std::string> names,
                       config::Problems& problems,
                       const config::Origins& origins);
/// Options of a classifier's objective: how many labels there are, and their names unless these are
/// the ids.
json::Value options_of_labels(const Labels& labels);

}  // namespace tessera::tasks
