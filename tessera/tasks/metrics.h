// SPDX-License-Identifier: Apache-2.0
// Metrics of predictions, in addition to the loss. They are computed from all predictions at once,
// so they do not depend on the distribution over batches and ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::tasks {

/// A model's outputs for samples (or for their tokens), and the true labels.
struct Predictions {
  std::int64_t width = 0;        ///< values per row: a logit per class, or numbers
  std::int64_t label_width = 0;  ///< labels per row: a class, a flag per class, or numbers
  std::vector<float> values;     ///< [rows, width]
  std::vector<float> labels;     ///< [rows, label_width]; a class below 0 means none
  /// Of a sample that is a list, such as words: the row of each entry, -1 for an entry without one;
  /// empty: each row has its entry.
  std::vector<std::int64_t> places = {};
  [[nodiscard]] std::int64_t rows() const {
    return width == 0 ? 0 : static_cast<std::int64_t>(values.size()) / width;
  }
};

struct NamedValue {
  std::string name;
  double value = 0.0;
};

struct ClassReport {
  double precision = 0, recall = 0, f1 = 0;  ///< 0 if undefined
  std::int64_t support = 0;                  ///< number of rows of the class
};

/// Metrics for rows with one class each. Averages are those of scikit-learn: over the classes that
/// occur in labels or predictions (macro), and by support (weighted).
struct ClassificationReport {
  std::vector<ClassReport> classes;
  double accuracy = 0;
  ClassReport macro, weighted;
  double matthews = 0;  ///< correlation; 0 if undefined
  /// Area under the ROC curve: of the second of two classes, or the mean over one-against-rest
  /// curves. Nothing if only one class occurs.
  std::optional<double> auc;
  std::vector<std::int64_t> confusion;  ///< [true, predicted]
};
/// Skips rows without a class.
ClassificationReport classification_report(const Predictions& predictions);

/// A point per threshold, from (0, 0) to (1, 1): the false and the true positive rate of a class
/// against the others.
struct RocPoint {
  double false_positives = 0, true_positives = 0;
};
std::vector<RocPoint> roc_curve(const Predictions& predictions, std::int64_t of_class);

/// The metrics that evaluation reports besides the loss and the accuracy of the rows. Classes: f1
/// (of the second of two classes, else the macro average), precision, recall, matthews, auc.
std::vector<NamedValue> class_metrics(const Predictions& predictions);
/// Flags: a class is predicted if its probability is above its threshold; no thresholds: 0.5 each.
/// accuracy (all flags of a row are right), f1_micro, f1_macro, auc (mean over the classes with
/// both values).
std::vector<NamedValue> multi_label_metrics(const Predictions& predictions,
                                            const std::vector<double>& thresholds = {});
/// A probability above which a class is predicted, and the F1 that it gives.
struct Threshold {
  double value = 0.5, f1 = 0;
};
/// Returns for each class the threshold with the best F1 on these predictions, halfway between two
/// probabilities. Among thresholds with equal F1 it is the one nearest to 0.5. A class without a
/// row has 0.5. Time: that of sorting the rows for each class.
std::vector<Threshold> best_f1_thresholds(const Predictions& predictions);
/// Numbers: mae, r2, pearson and spearman, each averaged over the numbers of a row.
std::vector<NamedValue> regression_metrics(const Predictions& predictions);

/// The part of predictions that belongs to one of several heads: the values [first, first + size),
/// and the label of number `head`.
Predictions of_head(const Predictions& all,
                    std::int64_t head,
                    std::int64_t first,
                    std::int64_t size);

// The output of `tessera predict` for a sample. `names`: label names; empty: the ids.

/// {"label": name, "score": its probability, "scores": {name: probability}}; the scores of at most
/// 100 classes.
json::Value class_prediction(const Predictions& row, const std::vector<std::string>& names);
/// {"labels": [names], "scores": {name: probability}}; for thresholds see multi_label_metrics().
json::Value multi_label_prediction(const Predictions& row,
                                   const std::vector<std::string>& names,
                                   const std::vector<double>& thresholds = {});
/// {"value": number}, or {"values": [numbers]}.
json::Value regression_prediction(const Predictions& row);
/// {"tags": [name of each entry], "scores": [its probability]}, with null for an entry without a
/// row. If the names have the form "B-PER" (schemes IOB2 and BIOES), also {"entities": [{"label",
/// "begin", "end", "score"}]}: consecutive entries of one entity, [begin, end), and the mean of
/// their probabilities.
json::Value tags_prediction(const Predictions& rows, const std::vector<std::string>& names);

}  // namespace tessera::tasks
