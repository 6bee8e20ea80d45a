// SPDX-License-Identifier: Apache-2.0
// The labels that samples may have, and how records name them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  /// How often each of them occurs in the training data; empty: nobody has counted.
  std::vector<std::int64_t> counts;

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
  std::map<std::string, std::int64_t> names_;  // with how often each occurs
  std::map<std::int64_t, std::int64_t> numbers_;
  std::int64_t largest_ = -1;
};

/// How the loss weighs the classes.
enum class ClassBalance : std::uint8_t {
  None,           ///< each label counts alike
  Inverse,        ///< by 1 / n_c, so that each class counts alike
  ClassBalanced,  ///< by (1 - beta) / (1 - beta^n_c), scaled to a sum of the number of classes
};
/// The options of a task that say how the loss of a class is made.
struct ClassLossOptions {
  ClassBalance balance = ClassBalance::None;
  double beta = 0.999, focal_gamma = 0.0, label_smoothing = 0.0;
  std::vector<double> class_weights;
  void describe(config::Fields& fields);
  void check(config::Problems& problems, const config::Origins& origins) const;
  /// Adds them to the options of the objective; `labels` have counts where `balance` asks for them.
  void add_to(json::Value& options, const Labels& labels) const;
};
/// Weights of classes by how often they occur. A class that never does has that of one that occurs
/// once.  Source of ClassBalanced: Cui et al. 2019, "Class-balanced loss based on effective number
/// of samples".
std::vector<double> class_weights_of(const std::vector<std::int64_t>& counts,
                                     ClassBalance balance,
                                     double beta);

/// The labels of `names`, in that order, with the counts of those that were found.
Labels counted(const std::vector<std::string>& names, const Labels& found);
/// Adds a problem where a label is named twice.
void check_label_names(std::vector<std::string> names,
                       config::Problems& problems,
                       const config::Origins& origins);
/// Options of a classifier's objective: how many labels there are, and their names unless these are
/// the ids.
json::Value options_of_labels(const Labels& labels);

}  // namespace tessera::tasks
