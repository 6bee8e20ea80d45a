// SPDX-License-Identifier: Apache-2.0
// Classification of texts and of pairs of texts: every record has a text and one label, or several.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct ClassifyOptions {
  TextFields fields;
  std::vector<std::string> labels;
  bool multi_label = false;
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
              {.text = "Whether a record may have any number of labels, as a list."});
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
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    const Labels labels = labels_of(data);
    json::Value out = options_of_labels(labels);
    options_.loss.add_to(out, labels);
    if (options_.multi_label)
      out["problem_type"] = json::Value::string("multi_label_classification");
    return out;
  }

  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    if (options_.multi_label) return {};  // one value per label
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}},
            {.name = "label", .dtype = DType::I64}};
  }
  [[nodiscard]] bool has_metrics() const override { return true; }
  [[nodiscard]] json::Value prediction(const Predictions& rows,
                                       const std::vector<std::string>& names) const override {
    return options_.multi_label ? multi_label_prediction(rows, names)
                                : class_prediction(rows, names);
  }
  [[nodiscard]] std::vector<NamedValue> metrics(const Predictions& predictions) const override {
    return options_.multi_label ? multi_label_metrics(predictions) : class_metrics(predictions);
  }

 private:
  [[nodiscard]] data::RecordOptions how(const data::DataOptions& data) const {
    return record_options(
        data,
        fmt::format("{{\"{}\": \"...\", \"{}\": \"...\"}}",
                    options_.fields.text.empty() ? data.text_field : options_.fields.text,
                    options_.fields.label.empty() ? "label" : options_.fields.label));
  }
  [[nodiscard]] LabelKind kind() const {
    return options_.multi_label ? LabelKind::Classes : LabelKind::Class;
  }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    const bool count = options_.loss.balance != ClassBalance::None;
    if (!options_.labels.empty() && !count) return Labels::named(options_.labels);
    Labels found = labels_found_in(record_files(data.train, data::Split::Train),
                                   how(data),
                                   options_.fields,
                                   data.text_field,
                                   kind());
    return options_.labels.empty() ? found : counted(options_.labels, found);
  }
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    return [this, &request, labels = request.predict ? Labels() : labels_of(request.options)](
               const std::vector<std::string>& names, data::Split split) {
      auto texts = std::make_unique<LabelledTexts>(LabelledTextsOptions{
          .length = request.sequence_length,
          .pad_id = request.tokenizer.padding(),
          .kind = kind(),
          .labels = labels,
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
};

std::unique_ptr<Task> make_classify(const json::Value& params,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  ClassifyOptions options;
  config::read(params, options, problems, origins);
  check_label_names(options.labels, problems, origins);
  options.loss.check(problems, origins);
  if (options.multi_label && options.balance != ClassSampling::None) {
    problems.add(origins.place("balance"),
                 "balance",
                 "classes cannot be balanced where a record may have several",
                 "remove balance, or multi_label");
  }
  return std::make_unique<Classify>(std::move(options));
}

TESSERA_TASK("classify", make_classify);

}  // namespace
}  // namespace tessera::tasks
