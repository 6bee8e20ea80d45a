// SPDX-License-Identifier: Apache-2.0
// Classification of texts: every line of a .jsonl has a text and its label.
#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/records.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct ClassifyOptions {
  std::string text_field;  ///< empty: data.text_field
  std::string label_field = "label";
  std::vector<std::string> labels;
  void describe(config::Fields& fields) {
    fields.field(
        "text_field",
        text_field,
        {.text = "Field of a record that holds its text.", .default_text = "data.text_field"});
    fields.field("label_field",
                 label_field,
                 {.text = "Field of a record that holds its label: a name or an integer from 0."});
    fields.field("labels",
                 labels,
                 {.text = "Names of the labels in the order of their ids.",
                  .default_text = "those of data.train, sorted"});
  }
};

class Classify final : public Task {
 public:
  explicit Classify(ClassifyOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "sequence_classification"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    json::Value out = json::Value::object();
    out["num_labels"] = json::Value::integer(labels_of(data).size());
    return out;
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_records(request, reader(request));
  }
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return open_held_out_records(names, key, reader(request));
  }

 private:
  [[nodiscard]] RecordFields fields_of(const data::DataOptions& data) const {
    return {.text = options_.text_field.empty() ? data.text_field : options_.text_field,
            .label = options_.label_field,
            .replace_invalid_utf8 = data.invalid_utf8 == "replace"};
  }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    if (!options_.labels.empty()) return Labels::named(options_.labels);
    return Labels::found_in(data.train, fields_of(data));
  }
  /// All data has the labels of data.train.
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const {
    return [&request, fields = fields_of(request.options), labels = labels_of(request.options)](
               const std::vector<std::string>& files) {
      auto texts = std::make_unique<LabelledTexts>(
          request.sequence_length, request.tokenizer.end_of_text(), labels);
      texts->read_files(files, fields, request.tokenizer, request.how.poll);
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
  std::vector<std::string> sorted = options.labels;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    problems.add(origins.place("labels"),
                 "labels",
                 fmt::format("the label \"{}\" is named twice", *twice),
                 "name every label once");
  }
  return std::make_unique<Classify>(std::move(options));
}

TESSERA_TASK("classify", make_classify);

}  // namespace
}  // namespace tessera::tasks
