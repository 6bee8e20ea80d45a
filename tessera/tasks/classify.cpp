// SPDX-License-Identifier: Apache-2.0
// Classification of texts and of pairs of texts: every record has a text and one label, or several,
// or one label for each of several heads.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/model_classes.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct ClassifyOptions {
  TextFields fields;
  std::vector<std::string> labels;
  bool multi_label = false;
  json::Value heads_written, head_weights, head_class_weights;
  std::vector<LabelHead> heads;  // made of the three
  std::vector<double> thresholds;
  ClassSampling balance = ClassSampling::None;
  ClassLossOptions loss;
  void describe(config::Fields& out) {
    fields.describe(out, "Field of a record that contains its label: a name or an integer from 0.");
    out.field("labels",
              labels,
              {.text = "Names of the labels in the order of their ids.",
               .default_text = "those of data.train, sorted"});
    out.field("multi_label",
              multi_label,
              {.text = "Whether a record may have any number of labels: as a list, as \"a|b\", or "
                       "with a column of 0 or 1 for each of labels."});
    out.field(
        "thresholds",
        thresholds,
        {.text = "With multi_label: probability of each label above which it is predicted, in "
                 "the order of their ids; `tessera eval --thresholds` finds them.",
         .default_text = "0.5 each"});
    out.field("heads",
              heads_written,
              {.text = "Several labels of a record, each in its own field with its own head: "
                       "{\"topic\": [\"sport\", \"arts\"], \"mood\": [\"good\", \"bad\"]}, or null "
                       "for the labels of data.train, sorted: [\"topic\", \"mood\"]. A label that "
                       "is null or empty is not learned.",
               .default_text = "none"});
    out.field("head_weights",
              head_weights,
              {.text = "Weight of the loss of each head, {\"topic\": 1, \"mood\": 0.5}.",
               .default_text = "1 each"});
    out.field("head_class_weights",
              head_class_weights,
              {.text = "Weight of the loss of each class of a head, {\"topic\": [1, 3]}, in the "
                       "order of their ids.",
               .default_text = "by class_balance"});
    out.choice(
        "balance",
        balance,
        kClassSamplings,
        {.text = "How often samples of each class are used in an epoch: none, as they occur; down, "
                 "as often as the rarest class, dropping other samples; over, as often as the most "
                 "frequent class, by repetition. class_balance weights the loss instead."});
    loss.describe(out);
  }
};

class Classify final : public RecordTask {
 public:
  explicit Classify(ClassifyOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "sequence_classification"; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    if (!options_.heads.empty()) {
      json::Value out = options_of_heads(heads_of(data), options_.loss);
      options_.loss.add_to(out, {});
      return out;
    }
    const Labels labels = labels_of(data);
    json::Value out = options_of_labels(labels);
    options_.loss.add_to(out, labels);
    if (options_.multi_label)
      out["problem_type"] = json::Value::string("multi_label_classification");
    if (!options_.thresholds.empty()) {
      TESSERA_REQUIRE(
          std::ssize(options_.thresholds) == labels.size(),
          Config,
          fmt::format("task.params.thresholds has {} numbers, and the data has {} labels",
                      options_.thresholds.size(),
                      labels.size()),
          "give one for each label, in the order of their ids");
      out["thresholds"] = json::Value::array();
      for (const double threshold : options_.thresholds)
        out["thresholds"].push_back(json::Value::number(threshold));
    }
    return out;
  }

  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    if (options_.multi_label) return {};  // one value per label
    std::vector<data::TensorSpec> out = {
        {.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}},
        {.name = "label", .dtype = DType::I64}};
    if (!options_.heads.empty()) out.back().shape = {std::ssize(options_.heads)};
    return out;
  }
  [[nodiscard]] bool has_metrics() const override { return true; }
  [[nodiscard]] json::Value prediction(const Predictions& rows,
                                       const std::vector<std::string>& names) const override {
    if (!options_.heads.empty()) {
      json::Value out = json::Value::object();
      for_each_head(rows, [&](const LabelHead& head, const Predictions& own) {
        out[head.field] = class_prediction(own, head.labels.names());
      });
      return out;
    }
    return options_.multi_label ? multi_label_prediction(rows, names, options_.thresholds)
                                : class_prediction(rows, names);
  }
  [[nodiscard]] std::vector<NamedValue> metrics(const Predictions& predictions) const override {
    if (!options_.heads.empty()) {
      std::vector<NamedValue> out;
      for_each_head(predictions, [&](const LabelHead& head, const Predictions& own) {
        for (NamedValue& metric : class_metrics(own))
          out.push_back({head.field + "_" + metric.name, metric.value});
      });
      return out;
    }
    return options_.multi_label ? multi_label_metrics(predictions, options_.thresholds)
                                : class_metrics(predictions);
  }

 private:
  template <class Take>
  void for_each_head(const Predictions& predictions, const Take& take) const {
    std::int64_t number = 0, first = 0;
    for (const LabelHead& head : known_heads()) {
      take(head, of_head(predictions, number++, first, head.labels.size()));
      first += head.labels.size();
    }
  }
  [[nodiscard]] data::RecordOptions how(const data::DataOptions& data) const {
    return record_options(
        data,
        fmt::format("{{\"{}\": \"...\", \"{}\": \"...\"}}",
                    options_.fields.text.empty() ? data.text_field : options_.fields.text,
                    options_.fields.label.empty() ? "label" : options_.fields.label));
  }
  [[nodiscard]] LabelKind kind() const {
    if (!options_.heads.empty()) return LabelKind::Heads;
    return options_.multi_label ? LabelKind::Classes : LabelKind::Class;
  }
  /// The heads with their labels, which the data has if they are not named.
  [[nodiscard]] std::vector<LabelHead> heads_of(const data::DataOptions& data) const {
    const bool count = options_.loss.balance != ClassBalance::None;
    const auto named = [](const LabelHead& head) { return head.labels.size() > 0; };
    if (!count && std::ranges::all_of(options_.heads, named)) return options_.heads;
    const std::scoped_lock lock(mutex_);
    if (found_.empty()) {
      found_ =
          heads_found_in(record_files(data.train, data::Split::Train), how(data), options_.heads);
    }
    return found_;
  }
  /// The heads of a model, whose options came from heads_of().
  [[nodiscard]] std::vector<LabelHead> known_heads() const {
    const std::scoped_lock lock(mutex_);
    return found_.empty() ? options_.heads : found_;
  }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    if (!options_.heads.empty()) return {};
    const bool count = options_.loss.balance != ClassBalance::None;
    if (!options_.labels.empty() && !count) return Labels::named(options_.labels);
    Labels found = labels_found_in(record_files(data.train, data::Split::Train),
                                   how(data),
                                   options_.fields,
                                   data.text_field,
                                   kind(),
                                   options_.labels);
    return options_.labels.empty() ? found : counted(options_.labels, found);
  }
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    TESSERA_REQUIRE(options_.balance == ClassSampling::None || request.options.streaming == 0,
                    Config,
                    "task.params.balance chooses among all samples, which data.streaming does not "
                    "hold",
                    "weight the loss instead, with task.params.class_balance");
    return [this,
            &request,
            labels = request.predict ? Labels() : labels_of(request.options),
            heads = request.predict || options_.heads.empty() ? options_.heads
                                                              : heads_of(request.options)](
               const std::vector<std::string>& names, data::Split split) {
      auto texts = std::make_unique<LabelledTexts>(LabelledTextsOptions{
          .length = request.sequence_length,
          .pad_id = request.tokenizer.padding(),
          .kind = kind(),
          .labels = labels,
          .heads = heads,
          .labelled = !request.predict,
          .sampling = split == data::Split::Train ? options_.balance : ClassSampling::None});
      texts->read_files(data::record_files(names, split),
                        how(request.options),
                        options_.fields,
                        request.options.text_field,
                        request.tokenizer,
                        request.how.poll);
      return texts;
    };
  }

  ClassifyOptions options_;
  mutable std::mutex mutex_;
  mutable std::vector<LabelHead> found_;
};

std::unique_ptr<Task> make_classify(const json::Value& params,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  ClassifyOptions options;
  config::read(with_label_names(params), options, problems, origins);
  check_label_names(options.labels, problems, origins);
  options.loss.check(problems, origins);
  options.fields.columns = options.multi_label && options.fields.label.empty();
  if (options.multi_label && options.balance != ClassSampling::None) {
    problems.add(origins.place("balance"),
                 "balance",
                 "classes cannot be balanced where a record may have several",
                 "remove balance, or multi_label");
  }
  const bool between =
      std::ranges::all_of(options.thresholds, [](double value) { return value > 0 && value < 1; });
  if (!options.thresholds.empty() && (!options.multi_label || !between)) {
    problems.add(origins.place("thresholds"),
                 "thresholds",
                 between ? "thresholds are given, and a record has one label"
                         : "a threshold is not between 0 and 1",
                 between ? "remove them, or set multi_label to true" : "give probabilities");
  }
  options.heads = label_heads_of(
      options.heads_written, options.head_weights, options.head_class_weights, problems, origins);
  if (!options.heads.empty()) {
    // A field that is set here is not searched for in the records.
    if (options.fields.label.empty()) options.fields.label = options.heads.front().field;
    if (options.loss.balance != ClassBalance::None && origins.given("head_class_weights")) {
      problems.add(origins.place("head_class_weights"),
                   "head_class_weights",
                   "head_class_weights and class_balance are both given",
                   "keep one of them");
    }
    for (const char* key : {"labels", "label_field", "multi_label", "balance", "class_weights"}) {
      if (!origins.given(key)) continue;
      problems.add(origins.place(key),
                   key,
                   fmt::format("{} is for one label of a record, and heads are several", key),
                   std::string_view(key) == "class_weights" ? "write head_class_weights"
                                                            : "remove it, or heads");
    }
  }
  return std::make_unique<Classify>(std::move(options));
}

/// The task of a classifier, which may be one of numbers.
TaskOptions task_of_classifier(const json::Value& options, bool labelled) {
  const json::Value* const problem = options.find("problem_type");
  const std::string kind = problem != nullptr ? problem->as_string() : "";
  TaskOptions out{.type = "classify", .params = json::Value::object()};
  if (kind == "regression") out.type = "regression";
  if (kind == "multi_label_classification") out.params["multi_label"] = json::Value::boolean(true);
  if (options.find("heads") != nullptr) {
    out.params["heads"] = fields_of_heads(options);
  } else if (labelled && kind != "regression") {
    out.params["labels"] = names_of_classes(options);
  }
  const json::Value* const count = options.find("num_labels");
  if (kind == "regression" && count != nullptr) out.params["numbers"] = *count;
  return out;
}

TESSERA_TASK("classify", make_classify);
TESSERA_TASK_OF_CLASSES("classify", classify, adopt_kind_of_classes);
TESSERA_TASK_OF_OBJECTIVE("sequence_classification", classify, {.of_model = task_of_classifier});

}  // namespace
}  // namespace tessera::tasks
