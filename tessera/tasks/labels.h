// SPDX-License-Identifier: Apache-2.0
// The labels of samples, and their names in records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"

namespace tessera::tasks {

struct Label;

/// The possible labels, with ids 0, 1, ...
class Labels {
 public:
  /// Labels by name. A record may also give the id, unless the names are integers themselves.
  static Labels named(std::vector<std::string> names);
  /// The labels in a field of the records in `files`: strings sorted by bytes, false and true, or
  /// integers in ascending order. Throws Error{Data} with file and line for a record without
  /// a label, or with a name if others have integers.
  static Labels found_in(const std::vector<std::string>& files,
                         const data::RecordOptions& how,
                         const std::string& field,
                         const char* option);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(names_.size()); }
  /// An integer label has its digits as its name.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] std::optional<std::int64_t> id_of(const std::string& name) const;
  /// The id of a record's label: that of its name, or else the integer itself if the names are no
  /// integers, or have its digits; nothing if there is no such label.
  [[nodiscard]] std::optional<std::int64_t> id_of(const Label& label) const;
  /// The frequency of each label in the training data; empty: not counted.
  std::vector<std::int64_t> counts;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int64_t> ids_;  // of the names
  bool by_value_ = false;                              // all names are integers
};

/// A record's label: a name, or an integer, whose digits are the name. True and false are names. An
/// integer for which the file declares a name has that name.
struct Label {
  std::string name;
  std::optional<std::int64_t> id = {};  ///< of an integer without a declared name
  /// The integer with a declared name, and all names in the order of their integers.
  std::optional<std::int64_t> declared_id = {};
  std::shared_ptr<const std::vector<std::string>> declared = nullptr;
};
/// The label in `field` of a record. Throws Error{Data} for a value that is neither a name nor an
/// integer.
Label label_of(const data::Record& record, const json::Value& value, const std::string& field);
/// The id of the label. Throws Error{Data} for an unknown label.
std::int64_t id_in(const data::Record& record, const Label& label, const Labels& labels);

/// Collects the labels of records, as for Labels::found_in(). If the files declare names of
/// classes, all of these are labels, in the declared order.
class LabelCollector {
 public:
  /// `named` are the labels that the configuration names; negative integers that it does not name
  /// are refused.
  explicit LabelCollector(std::vector<std::string> named);
  void add(const data::Record& record, const Label& label);
  [[nodiscard]] Labels labels() const;

 private:
  std::map<std::string, std::int64_t> names_;  // with their frequencies
  std::vector<std::string> declared_;
  std::map<std::int64_t, std::int64_t> numbers_;
  std::vector<std::string> named_;
};

/// The weights of the classes in the loss.
enum class ClassBalance : std::uint8_t {
  None,     ///< all labels equally
  Inverse,  ///< by 1 / n_c, so that all classes have the same total weight
  /// By (1 - beta) / (1 - beta^n_c), scaled to a sum equal to the number of classes.
  ClassBalanced,
};
/// A task's options for the loss of a class.
struct ClassLossOptions {
  ClassBalance balance = ClassBalance::None;
  double beta = 0.999, focal_gamma = 0.0, label_smoothing = 0.0;
  std::vector<double> class_weights;
  void describe(config::Fields& fields);
  void check(config::Problems& problems, const config::Origins& origins) const;
  /// Adds them to the objective's options; `labels` needs counts if `balance` uses them.
  void add_to(json::Value& options, const Labels& labels) const;
};
/// Class weights from frequencies. A class that does not occur gets the weight of one that occurs
/// once. Source of ClassBalanced: Cui et al. 2019, "Class-balanced loss based on effective number
/// of samples".
std::vector<double> class_weights_of(const std::vector<std::int64_t>& counts,
                                     ClassBalance balance,
                                     double beta);

/// A head of a classifier with several: the field of a record that has its label, and the labels.
struct LabelHead {
  std::string field;
  Labels labels;                           ///< none: those of the data
  double weight = 1.0;                     ///< of its loss
  std::vector<double> class_weights = {};  ///< in the order of the labels; empty: 1 each
};
/// Reads {"topic": ["sport", "arts"], "mood": null, ...} or ["topic", "mood"], the weights
/// {"topic": 0.5} and the class weights {"topic": [1, 3]}; each may be null. Adds a problem for
/// anything else.
std::vector<LabelHead> label_heads_of(const json::Value& heads,
                                      const json::Value& weights,
                                      const json::Value& class_weights,
                                      config::Problems& problems,
                                      const config::Origins& origins);
/// A record's label for a head; nothing if it is null or empty.
std::optional<Label> label_of_head(const data::Record& record, const LabelHead& head);
/// The heads with the labels of the records in `files` where they have none, and with the frequency
/// of each label. Throws Error{Data} for a field with fewer than two labels, and Error{Config} for
/// class weights of another number.
std::vector<LabelHead> heads_found_in(const std::vector<std::string>& files,
                                      const data::RecordOptions& how,
                                      std::vector<LabelHead> heads);
/// Options of the objective of a classifier with several heads. A label is called "topic/sport".
/// With `loss.balance` each head's classes are weighted by their frequencies.
json::Value options_of_heads(const std::vector<LabelHead>& heads, const ClassLossOptions& loss);

/// The labels `names`, in that order, with the counts from `found`.
Labels counted(const std::vector<std::string>& names, const Labels& found);
/// Returns the parameters of a task with names in place of the integers and truth values that its
/// `labels` list.
json::Value with_label_names(json::Value params);
/// Adds a problem if a label is listed twice.
void check_label_names(std::vector<std::string> names,
                       config::Problems& problems,
                       const config::Origins& origins);
/// Options of a classifier's objective: the number of labels, and their names unless these are the
/// ids.
json::Value options_of_labels(const Labels& labels);

}  // namespace tessera::tasks
