// SPDX-License-Identifier: Apache-2.0
// How good predictions are: what people look at beside the loss. Everything is computed from all
// predictions at once, so that it does not depend on how they were spread over batches and ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::tasks {

/// What a model says of samples (or of their tokens), and what is true.
struct Predictions {
  std::int64_t width = 0;        ///< values of a row: a logit for each class, or numbers
  std::int64_t label_width = 0;  ///< labels of a row: a class, a flag for each class, or numbers
  std::vector<float> values;     ///< [rows, width]
  std::vector<float> labels;     ///< [rows, label_width]; a class below 0 is none
  [[nodiscard]] std::int64_t rows() const {
    return width == 0 ? 0 : static_cast<std::int64_t>(values.size()) / width;
  }
};

struct NamedValue {
  std::string name;
  double value = 0.0;
};

struct ClassReport {
  double precision = 0, recall = 0, f1 = 0;  ///< 0 where one is not defined
  std::int64_t support = 0;                  ///< rows of the class
};

/// Of rows that have one class each. Averages are those of scikit-learn: over the classes that
/// labels or predictions have (macro), and by support (weighted).
struct ClassificationReport {
  std::vector<ClassReport> classes;
  double accuracy = 0;
  ClassReport macro, weighted;
  double matthews = 0;  ///< correlation; 0 where it is not defined
  /// Area under the ROC curve: of the second class of two, or the mean over classes against the
  /// others. Nothing where only one class occurs.
  std::optional<double> auc;
  std::vector<std::int64_t> confusion;  ///< [true, predicted]
};
/// Rows without a class are left out.
ClassificationReport classification_report(const Predictions& predictions);

/// A point for each threshold, from (0, 0) to (1, 1): the rate of false and of true positives of a
/// class against the others.
struct RocPoint {
  double false_positives = 0, true_positives = 0;
};
std::vector<RocPoint> roc_curve(const Predictions& predictions, std::int64_t of_class);

/// What evaluation reports beside the loss and the accuracy of the rows. Classes: f1 (of the second
/// class of two, else the macro average), precision, recall, matthews, auc.
std::vector<NamedValue> class_metrics(const Predictions& predictions);
/// Flags: a class is predicted where its logit is above 0. accuracy (all flags of a row), f1_micro,
/// f1_macro, auc (mean over the classes that have both).
std::vector<NamedValue> multi_label_metrics(const Predictions& predictions);
/// Numbers: mae, r2, pearson and spearman, each the mean over the numbers of a row.
std::vector<NamedValue> regression_metrics(const Predictions& predictions);

// What `tessera predict` writes of a sample. `names`: of the labels; empty: their ids.

/// {"label": name, "score": its probability, "scores": {name: probability}}; the scores of up to
/// 100 classes.
json::Value class_prediction(const Predictions& row, const std::vector<std::string>& names);
/// {"labels": [names], "scores": {name: probability}}.
json::Value multi_label_prediction(const Predictions& row, const std::vector<std::string>& names);
/// {"value": number}, or {"values": [numbers]}.
json::Value regression_prediction(const Predictions& row);
/// {"tags": [name of each row]}.
json::Value tags_prediction(const Predictions& rows, const std::vector<std::string>& names);

}  // namespace tessera::tasks
