// SPDX-License-Identifier: Apache-2.0
// Regression on texts and pairs of texts: every record has a text and one number, or several.
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

struct RegressionOptions {
  TextFields fields;
  std::int64_t numbers = 1;
  void describe(config::Fields& out) {
    fields.describe(out, "Field of a record that holds its number, or a list of numbers.");
    out.field("numbers", numbers, {.text = "Number of values per record.", .min = 1, .max = 1e6});
  }
};

class Regression final : public RecordTask {
 public:
  explicit Regression(RegressionOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "sequence_classification"; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    json::Value out = json::Value::object();
    out["num_labels"] = json::Value::integer(options_.numbers);
    out["problem_type"] = json::Value::string("regression");
    return out;
  }

  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    data::TensorSpec label{.name = "label", .dtype = DType::F32};
    if (options_.numbers > 1) label.shape = {options_.numbers};
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}}, label};
  }
  [[nodiscard]] bool has_metrics() const override { return true; }
  [[nodiscard]] json::Value prediction(const Predictions& rows,
                                       const std::vector<std::string>& /*names*/) const override {
    return regression_prediction(rows);
  }
  [[nodiscard]] std::vector<NamedValue> metrics(const Predictions& predictions) const override {
    return regression_metrics(predictions);
  }

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    return [this, &request](const std::vector<std::string>& names, data::Split split) {
      std::vector<std::string> numbered;
      for (std::int64_t i = 0; i < options_.numbers; ++i)
        numbered.push_back(std::to_string(i));
      auto texts = std::make_unique<LabelledTexts>(
          LabelledTextsOptions{.length = request.sequence_length,
                               .pad_id = request.tokenizer.padding(),
                               .kind = LabelKind::Numbers,
                               .labels = Labels::named(std::move(numbered)),
                               .labelled = !request.predict});
      texts->read_files(data::record_files(names, split),
                        record_options(request.options, "{\"text\": \"...\", \"label\": 0.5}"),
                        options_.fields,
                        request.options.text_field,
                        request.tokenizer,
                        request.how.poll);
      return texts;
    };
  }

  RegressionOptions options_;
};

std::unique_ptr<Task> make_regression(const json::Value& params,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  RegressionOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Regression>(std::move(options));
}

TESSERA_TASK("regression", make_regression);

}  // namespace
}  // namespace tessera::tasks
