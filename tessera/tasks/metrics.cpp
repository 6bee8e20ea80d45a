// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

double ratio(double part, double whole) {
  return whole == 0 ? 0.0 : part / whole;
}

/// Computes precision, recall and F1 from counts.
ClassReport scores_of(double right, double predicted, double support) {
  ClassReport out;
  out.precision = ratio(right, predicted);
  out.recall = ratio(right, support);
  out.f1 = ratio(2 * right, predicted + support);
  out.support = static_cast<std::int64_t>(support);
  return out;
}

/// One class against the others: (score, row has the class), highest scores first.
using Scored = std::vector<std::pair<double, bool>>;

void sort_by_score(Scored& rows) {
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.first > b.first; });
}

/// The points at which the score changes.
std::vector<RocPoint> curve_of(Scored rows) {
  sort_by_score(rows);
  const auto positive =
      static_cast<double>(std::ranges::count(rows, true, &Scored::value_type::second));
  const double negative = static_cast<double>(rows.size()) - positive;
  std::vector<RocPoint> out = {{}};
  double right = 0, wrong = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    (rows[i].second ? right : wrong) += 1;
    if (i + 1 == rows.size() || rows[i + 1].first != rows[i].first)
      out.push_back({ratio(wrong, negative), ratio(right, positive)});
  }
  return out;
}

std::optional<double> area_of(const Scored& rows) {
  const auto positive = std::ranges::count(rows, true, &Scored::value_type::second);
  if (positive == 0 || positive == std::ssize(rows)) return std::nullopt;
  const std::vector<RocPoint> curve = curve_of(rows);
  double area = 0;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    area += (curve[i].false_positives - curve[i - 1].false_positives) *
            (curve[i].true_positives + curve[i - 1].true_positives) / 2;
  }
  return area;
}

/// The rows that have a class, as (row, class).
std::vector<std::pair<std::size_t, std::size_t>> rows_with_class(const Predictions& predictions) {
  TESSERA_ASSERT(predictions.label_width == 1);
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (std::size_t i = 0; i < predictions.labels.size(); ++i) {
    const float label = predictions.labels[i];
    if (label >= 0) out.emplace_back(i, static_cast<std::size_t>(label));
  }
  return out;
}

const float* row_of(const Predictions& predictions, std::size_t row) {
  return predictions.values.data() + row * static_cast<std::size_t>(predictions.width);
}

/// The probability of a class in a row.
double probability(const Predictions& predictions, std::size_t row, std::size_t of_class) {
  const float* const logits = row_of(predictions, row);
  const auto width = static_cast<std::size_t>(predictions.width);
  const double most = *std::max_element(logits, logits + width);
  double sum = 0;
  for (std::size_t c = 0; c < width; ++c)
    sum += std::exp(logits[c] - most);
  return std::exp(logits[of_class] - most) / sum;
}

/// Two classes are ordered by the difference of their logits, which does not lose precision as
/// probabilities near 1 do.
Scored against_others(const Predictions& predictions, std::size_t of_class) {
  Scored out;
  for (const auto& [row, label] : rows_with_class(predictions)) {
    const float* const logits = row_of(predictions, row);
    const double score = predictions.width == 2
                             ? static_cast<double>(logits[of_class]) - logits[1 - of_class]
                             : probability(predictions, row, of_class);
    out.emplace_back(score, label == of_class);
  }
  return out;
}

std::optional<double> mean_area(const Predictions& predictions) {
  const auto width = static_cast<std::size_t>(predictions.width);
  if (width == 2) return area_of(against_others(predictions, 1));
  double sum = 0;
  for (std::size_t c = 0; c < width; ++c) {
    const std::optional<double> area = area_of(against_others(predictions, c));
    if (!area) return std::nullopt;
    sum += *area;
  }
  return sum / static_cast<double>(width);
}

/// The correlation of true and predicted classes.  Source: Gorodkin 2004, "Comparing two K-category
/// assignments by a K-category correlation coefficient".
double matthews_of(const std::vector<std::int64_t>& confusion, std::size_t width) {
  std::vector<double> truly(width, 0), predicted(width, 0);
  double right = 0, all = 0;
  for (std::size_t t = 0; t < width; ++t) {
    for (std::size_t p = 0; p < width; ++p) {
      const auto count = static_cast<double>(confusion[t * width + p]);
      truly[t] += count;
      predicted[p] += count;
      all += count;
      if (t == p) right += count;
    }
  }
  double both = 0, of_truly = 0, of_predicted = 0;
  for (std::size_t c = 0; c < width; ++c) {
    both += truly[c] * predicted[c];
    of_truly += truly[c] * truly[c];
    of_predicted += predicted[c] * predicted[c];
  }
  const double scale = std::sqrt((all * all - of_truly) * (all * all - of_predicted));
  return ratio(right * all - both, scale);
}

/// The values of one column.
std::vector<double> column(const std::vector<float>& values, std::int64_t width, std::int64_t at) {
  std::vector<double> out;
  for (auto i = static_cast<std::size_t>(at); i < values.size();
       i += static_cast<std::size_t>(width))
    out.push_back(values[i]);
  return out;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double pearson(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = mean_of(a), mean_b = mean_of(b);
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ratio(ab, std::sqrt(aa * bb));
}

/// Ranks from 1; equal values get the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> out(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]])
      ++end;
    for (std::size_t i = begin; i < end; ++i)
      out[order[i]] = static_cast<double>(begin + 1 + end) / 2;
    begin = end;
  }
  return out;
}

}  // namespace

ClassificationReport classification_report(const Predictions& predictions) {
  const auto width = static_cast<std::size_t>(predictions.width);
  ClassificationReport out;
  out.confusion.assign(width * width, 0);
  const auto rows = rows_with_class(predictions);
  for (const auto& [row, label] : rows) {
    const float* const logits = row_of(predictions, row);
    const auto best = static_cast<std::size_t>(std::max_element(logits, logits + width) - logits);
    TESSERA_ASSERT(label < width);
    ++out.confusion[label * width + best];
  }
  double right = 0, known = 0;
  for (std::size_t c = 0; c < width; ++c) {
    double support = 0, predicted = 0;
    for (std::size_t o = 0; o < width; ++o) {
      support += static_cast<double>(out.confusion[c * width + o]);
      predicted += static_cast<double>(out.confusion[o * width + c]);
    }
    const auto of_class = static_cast<double>(out.confusion[c * width + c]);
    const ClassReport scores = scores_of(of_class, predicted, support);
    out.classes.push_back(scores);
    right += of_class;
    if (support + predicted == 0) continue;
    known += 1;
    out.macro.precision += scores.precision;
    out.macro.recall += scores.recall;
    out.macro.f1 += scores.f1;
    out.weighted.precision += support * scores.precision;
    out.weighted.recall += support * scores.recall;
    out.weighted.f1 += support * scores.f1;
  }
  const auto all = static_cast<double>(rows.size());
  out.accuracy = ratio(right, all);
  for (double ClassReport::*score :
       {&ClassReport::precision, &ClassReport::recall, &ClassReport::f1}) {
    out.macro.*score = ratio(out.macro.*score, known);
    out.weighted.*score = ratio(out.weighted.*score, all);
  }
  out.macro.support = out.weighted.support = std::ssize(rows);
  out.matthews = matthews_of(out.confusion, width);
  out.auc = mean_area(predictions);
  return out;
}

std::vector<RocPoint> roc_curve(const Predictions& predictions, std::int64_t of_class) {
  return curve_of(against_others(predictions, static_cast<std::size_t>(of_class)));
}

std::vector<NamedValue> class_metrics(const Predictions& predictions) {
  const ClassificationReport report = classification_report(predictions);
  const ClassReport& shown = predictions.width == 2 ? report.classes[1] : report.macro;
  std::vector<NamedValue> out = {{"f1", shown.f1},
                                 {"precision", shown.precision},
                                 {"recall", shown.recall},
                                 {"matthews", report.matthews}};
  if (report.auc) out.push_back({"auc", *report.auc});
  return out;
}

Predictions of_head(const Predictions& all,
                    std::int64_t head,
                    std::int64_t first,
                    std::int64_t size) {
  TESSERA_ASSERT(first >= 0 && first + size <= all.width);
  Predictions out{.width = size, .label_width = all.label_width > 0 ? 1 : 0};
  for (std::int64_t row = 0; row < all.rows(); ++row) {
    const auto begin = all.values.begin() + row * all.width + first;
    out.values.insert(out.values.end(), begin, begin + size);
    if (all.label_width > 0)
      out.labels.push_back(all.labels.at(static_cast<std::size_t>(row * all.label_width + head)));
  }
  return out;
}

namespace {

/// Returns true if the label with this logit is predicted.
bool flagged(double logit, const std::vector<double>& thresholds, std::size_t of_class) {
  if (of_class >= thresholds.size()) return logit > 0;
  return 1 / (1 + std::exp(-logit)) > thresholds[of_class];
}

}  // namespace

std::vector<NamedValue> multi_label_metrics(const Predictions& predictions,
                                            const std::vector<double>& thresholds) {
  TESSERA_ASSERT(predictions.width == predictions.label_width);
  const auto width = static_cast<std::size_t>(predictions.width);
  const auto rows = static_cast<std::size_t>(predictions.rows());
  std::vector<double> right(width, 0), predicted(width, 0), support(width, 0);
  double whole = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    bool equal = true;
    for (std::size_t c = 0; c < width; ++c) {
      const bool said = flagged(predictions.values[r * width + c], thresholds, c),
                 truly = predictions.labels[r * width + c] > 0.5F;
      right[c] += said && truly ? 1 : 0;
      predicted[c] += said ? 1 : 0;
      support[c] += truly ? 1 : 0;
      equal = equal && said == truly;
    }
    whole += equal ? 1 : 0;
  }
  double macro = 0, areas = 0, with_area = 0;
  for (std::size_t c = 0; c < width; ++c) {
    macro += scores_of(right[c], predicted[c], support[c]).f1;
    Scored scored;
    for (std::size_t r = 0; r < rows; ++r)
      scored.emplace_back(predictions.values[r * width + c],
                          predictions.labels[r * width + c] > 0.5F);
    if (const std::optional<double> area = area_of(scored)) {
      areas += *area;
      with_area += 1;
    }
  }
  const auto sum = [](const std::vector<double>& counts) {
    return std::accumulate(counts.begin(), counts.end(), 0.0);
  };
  std::vector<NamedValue> out = {
      {"accuracy", ratio(whole, static_cast<double>(rows))},
      {"f1_micro", scores_of(sum(right), sum(predicted), sum(support)).f1},
      {"f1_macro", ratio(macro, static_cast<double>(width))}};
  if (with_area > 0) out.push_back({"auc", areas / with_area});
  return out;
}

std::vector<Threshold> best_f1_thresholds(const Predictions& predictions) {
  TESSERA_ASSERT(predictions.width == predictions.label_width);
  const auto width = static_cast<std::size_t>(predictions.width);
  const auto rows = static_cast<std::size_t>(predictions.rows());
  std::vector<Threshold> out(width);
  for (std::size_t c = 0; c < width; ++c) {
    std::vector<std::pair<double, bool>> scored;
    double support = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const double logit = predictions.values[r * width + c];
      const bool truly = predictions.labels[r * width + c] > 0.5F;
      scored.emplace_back(1 / (1 + std::exp(-logit)), truly);
      support += truly ? 1 : 0;
    }
    std::ranges::sort(scored, std::greater<>());
    Threshold& best = out[c];
    double right = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      right += scored[r].second ? 1 : 0;
      const double next = r + 1 < rows ? scored[r + 1].first : 0.0;
      if (next == scored[r].first) continue;  // rows with equal scores are predicted together
      const Threshold one = {.value = (scored[r].first + next) / 2,
                             .f1 = scores_of(right, static_cast<double>(r + 1), support).f1};
      const bool nearer = std::abs(one.value - 0.5) < std::abs(best.value - 0.5);
      if (one.f1 > best.f1 || (one.f1 == best.f1 && one.f1 > 0 && nearer)) best = one;
    }
  }
  return out;
}

std::vector<NamedValue> regression_metrics(const Predictions& predictions) {
  TESSERA_ASSERT(predictions.width == predictions.label_width);
  const std::int64_t width = predictions.width;
  double mae = 0, r2 = 0, correlation = 0, of_ranks = 0;
  for (std::int64_t c = 0; c < width; ++c) {
    const std::vector<double> said = column(predictions.values, width, c),
                              truly = column(predictions.labels, width, c);
    const double mean = mean_of(truly);
    double absolute = 0, squares = 0, around = 0;
    for (std::size_t i = 0; i < said.size(); ++i) {
      absolute += std::abs(said[i] - truly[i]);
      squares += (said[i] - truly[i]) * (said[i] - truly[i]);
      around += (truly[i] - mean) * (truly[i] - mean);
    }
    mae += absolute / static_cast<double>(said.size());
    r2 += around == 0 ? 0.0 : 1 - squares / around;
    correlation += pearson(said, truly);
    of_ranks += pearson(ranks_of(said), ranks_of(truly));
  }
  const auto columns = static_cast<double>(width);
  return {{"mae", mae / columns},
          {"r2", r2 / columns},
          {"pearson", correlation / columns},
          {"spearman", of_ranks / columns}};
}

namespace {

constexpr std::int64_t kMostScores = 100;

json::Value label_name(const std::vector<std::string>& names, std::int64_t id) {
  if (id < std::ssize(names)) return json::Value::string(names[static_cast<std::size_t>(id)]);
  return json::Value::integer(id);
}
std::string label_key(const std::vector<std::string>& names, std::int64_t id) {
  const json::Value name = label_name(names, id);
  return name.is_string() ? name.as_string() : name.dump();
}

}  // namespace

json::Value class_prediction(const Predictions& row, const std::vector<std::string>& names) {
  TESSERA_ASSERT(row.rows() == 1);
  const auto best = std::ranges::max_element(row.values) - row.values.begin();
  json::Value out = json::Value::object();
  out["label"] = label_name(names, best);
  out["score"] = json::Value::number(probability(row, 0, static_cast<std::size_t>(best)));
  if (row.width > kMostScores) return out;
  out["scores"] = json::Value::object();
  for (std::int64_t c = 0; c < row.width; ++c) {
    out["scores"][label_key(names, c)] =
        json::Value::number(probability(row, 0, static_cast<std::size_t>(c)));
  }
  return out;
}

json::Value multi_label_prediction(const Predictions& row,
                                   const std::vector<std::string>& names,
                                   const std::vector<double>& thresholds) {
  TESSERA_ASSERT(row.rows() == 1);
  json::Value out = json::Value::object(), scores = json::Value::object();
  out["labels"] = json::Value::array();
  for (std::int64_t c = 0; c < row.width; ++c) {
    const double logit = row.values[static_cast<std::size_t>(c)];
    if (flagged(logit, thresholds, static_cast<std::size_t>(c)))
      out["labels"].push_back(label_name(names, c));
    scores[label_key(names, c)] = json::Value::number(1 / (1 + std::exp(-logit)));
  }
  out["scores"] = std::move(scores);
  return out;
}

json::Value regression_prediction(const Predictions& row) {
  TESSERA_ASSERT(row.rows() == 1);
  if (row.width == 1)
    return json::Value::object({{"value", json::Value::number(row.values.front())}});
  json::Value list = json::Value::array();
  for (const float value : row.values)
    list.push_back(json::Value::number(value));
  return json::Value::object({{"values", std::move(list)}});
}

namespace {

/// A tag "B-PER": the part that an entry is of an entity, and the entity's label. Another tag has
/// the part 'O'.
struct EntityTag {
  char part = 'O';
  std::string label;
};

EntityTag entity_tag(const std::string& name) {
  constexpr std::string_view kParts = "BIESLU";
  const bool entity = name.size() > 2 && name[1] == '-' && kParts.find(name[0]) != kParts.npos;
  return entity ? EntityTag{name[0], name.substr(2)} : EntityTag{};
}

/// The entities in the tags of a list; a null ends an entity. `scores`: the tags' probabilities.
json::Value entities_of(const json::Value& tags, const json::Value& scores) {
  json::Value out = json::Value::array();
  std::string open;  // the label of the entity that may continue
  const std::size_t count = tags.items().size();
  std::size_t begin = 0;
  double sum = 0;
  const auto close = [&](std::size_t end) {
    if (open.empty()) return;
    out.push_back(json::Value::object(
        {{"label", json::Value::string(open)},
         {"begin", json::Value::integer(static_cast<std::int64_t>(begin))},
         {"end", json::Value::integer(static_cast<std::int64_t>(end))},
         {"score", json::Value::number(sum / static_cast<double>(end - begin))}}));
    open.clear();
  };
  for (std::size_t i = 0; i < count; ++i) {
    const EntityTag tag =
        tags.items()[i].is_string() ? entity_tag(tags.items()[i].as_string()) : EntityTag{};
    const bool starts = tag.part == 'B' || tag.part == 'S' || tag.part == 'U';
    if (tag.part == 'O' || starts || tag.label != open) close(i);
    if (tag.part == 'O') continue;
    if (open.empty()) {
      open = tag.label;
      begin = i;
      sum = 0;
    }
    sum += scores.items()[i].as_double();
    if (tag.part != 'B' && tag.part != 'I') close(i + 1);
  }
  close(count);
  return out;
}

}  // namespace

json::Value tags_prediction(const Predictions& rows, const std::vector<std::string>& names) {
  json::Value tags = json::Value::array(), scores = json::Value::array();
  std::vector<std::int64_t> places = rows.places;
  for (std::int64_t r = 0; rows.places.empty() && r < rows.rows(); ++r)
    places.push_back(r);
  for (const std::int64_t place : places) {
    if (place < 0) {
      tags.push_back({});
      scores.push_back({});
      continue;
    }
    const auto row = static_cast<std::size_t>(place);
    const float* const logits = row_of(rows, row);
    const std::int64_t best = std::max_element(logits, logits + rows.width) - logits;
    tags.push_back(label_name(names, best));
    scores.push_back(json::Value::number(probability(rows, row, static_cast<std::size_t>(best))));
  }
  const bool entities = std::ranges::any_of(
      names, [](const std::string& name) { return entity_tag(name).part != 'O'; });
  json::Value found = entities ? entities_of(tags, scores) : json::Value();
  json::Value out = json::Value::object({{"tags", std::move(tags)}, {"scores", std::move(scores)}});
  if (entities) out["entities"] = std::move(found);
  return out;
}

}  // namespace tessera::tasks
