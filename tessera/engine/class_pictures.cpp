// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/class_pictures.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/report/class_plots.h"

namespace tessera::engine {
namespace {

using Names = std::vector<std::string>;
using Curve = std::vector<tasks::RocPoint>;

/// The area under a curve; nothing if all rows or none have the class.
std::optional<double> area_under(const Curve& curve) {
  double area = 0;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    area += (curve[i].false_positives - curve[i - 1].false_positives) *
            (curve[i].true_positives + curve[i - 1].true_positives) / 2;
  }
  const bool exists =
      !curve.empty() && curve.back().false_positives > 0 && curve.back().true_positives > 0;
  return exists ? std::optional(area) : std::nullopt;
}

/// The predictions of one of several flags as those of two classes, the second of which applies
/// where the probability is above `threshold`.
tasks::Predictions of_flag(const tasks::Predictions& all, std::int64_t flag, double threshold) {
  const auto least = static_cast<float>(std::log(threshold / (1 - threshold)));
  tasks::Predictions out{.width = 2, .label_width = 1};
  for (std::int64_t row = 0; row < all.rows(); ++row) {
    const auto at = static_cast<std::size_t>(row * all.width + flag);
    out.values.insert(out.values.end(), {least, all.values.at(at)});
    out.labels.push_back(all.labels.at(at) > 0.5F ? 1.0F : 0.0F);
  }
  return out;
}

/// The names of `count` labels; those that `known` does not have are their numbers.
Names names_of(const json::Value* known, std::int64_t count) {
  Names out;
  for (std::int64_t c = 0; c < count; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const bool named = known != nullptr && known->is_array() && at < known->items().size();
    out.push_back(named ? known->items()[at].as_string() : std::to_string(c));
  }
  return out;
}

/// A head's name as a part of a file's name.
std::string in_file_name(const std::string& name) {
  std::string out = name;
  for (char& c : out) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20) c = '_';
  }
  return out;
}

void write_curves(const std::filesystem::path& file, std::vector<report::RocCurve> curves) {
  if (!curves.empty()) files::write_atomic(file, report::roc_plot(std::move(curves)));
}

/// Writes the pictures of predictions of one class per sample. `ending` follows the word confusion
/// or roc in the names of the files.
void write_classes(const std::filesystem::path& folder,
                   const std::string& ending,
                   const tasks::Predictions& predictions,
                   const Names& names) {
  if (predictions.width < 2 || names.size() > report::kMostPlottedClasses) return;
  const tasks::ClassificationReport all = tasks::classification_report(predictions);
  files::write_atomic(folder / ("confusion" + ending + ".svg"),
                      report::confusion_plot(names, all.confusion));
  std::vector<report::RocCurve> curves;
  for (std::int64_t c = predictions.width == 2 ? 1 : 0; c < predictions.width; ++c) {
    Curve curve = tasks::roc_curve(predictions, c);
    if (const auto area = area_under(curve))
      curves.push_back({names[static_cast<std::size_t>(c)], std::move(curve), *area});
  }
  write_curves(folder / ("roc" + ending + ".svg"), std::move(curves));
}

/// Writes the pictures of predictions of several labels, each of which applies to a sample or not.
void write_flags(const std::filesystem::path& folder,
                 const tasks::Predictions& predictions,
                 const Names& names,
                 const json::Value* thresholds) {
  std::vector<std::vector<std::int64_t>> confusion;
  std::vector<report::RocCurve> curves;
  for (std::int64_t c = 0; c < predictions.width; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const bool given =
        thresholds != nullptr && thresholds->is_array() && at < thresholds->items().size();
    const tasks::Predictions one =
        of_flag(predictions, c, given ? thresholds->items()[at].as_double() : 0.5);
    const tasks::ClassificationReport of_label = tasks::classification_report(one);
    confusion.push_back(of_label.confusion);
    if (of_label.auc) curves.push_back({names[at], tasks::roc_curve(one, 1), *of_label.auc});
  }
  files::write_atomic(folder / "confusion.svg", report::flags_plot(names, confusion));
  write_curves(folder / "roc.svg", std::move(curves));
}

}  // namespace

void write_class_pictures(const std::filesystem::path& folder,
                          const tasks::Predictions& predictions,
                          const models::ObjectiveChoice& objective) {
  if (predictions.rows() == 0) return;
  const json::Value& options = objective.options;
  const json::Value* const heads = options.find("heads");
  if (heads != nullptr && heads->is_array()) {
    std::int64_t number = 0, first = 0;
    for (const json::Value& head : heads->items()) {
      const json::Value& labels = *head.find("labels");
      const std::int64_t size = std::ssize(labels.items());
      write_classes(folder,
                    "_" + in_file_name(head.find("name")->as_string()),
                    tasks::of_head(predictions, number++, first, size),
                    names_of(&labels, size));
      first += size;
    }
    return;
  }
  if (predictions.width > static_cast<std::int64_t>(report::kMostPlottedClasses)) return;
  const Names names = names_of(options.find("labels"), predictions.width);
  const json::Value* const problem = options.find("problem_type");
  const bool flags = problem != nullptr && problem->is_string() &&
                     problem->as_string() == "multi_label_classification";
  if (flags && predictions.width == predictions.label_width) {
    write_flags(folder, predictions, names, options.find("thresholds"));
  } else if (predictions.label_width == 1) {
    write_classes(folder, "", predictions, names);
  }
}

}  // namespace tessera::engine
