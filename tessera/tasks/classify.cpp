// SPDX-License-Identifier: Apache-2.0
// Classification of texts: every line of a .jsonl has a text and its label.
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/open_labelled.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

constexpr const char* kTexts = "texts";

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
    return options_of_labels(labels_of(data));
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_labelled<LabelledTexts>(
        request,
        labels_of(request.options),
        kTexts,
        [&](const std::vector<std::string>& names, const char* key, const Labels& labels) {
          return read_texts(request, labels, names, key);
        });
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return held_out_of(read_texts(request, labels_of(request.options), names, key), key, kTexts);
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
  [[nodiscard]] std::unique_ptr<LabelledTexts> read_texts(const DataRequest& request,
                                                          Labels labels,
                                                          const std::vector<std::string>& names,
                                                          const std::string& key) const {
    auto texts = std::make_unique<LabelledTexts>(
        request.sequence_length, request.tokenizer.end_of_text(), std::move(labels));
    texts->read_files(names, fields_of(request.options), request.tokenizer, request.how.poll);
    if (texts->cut() > 0) {
      log::warn_once(
          fmt::format("{}: {} of {} texts are longer than data.sequence_length ({} "
                      "tokens) and lose their end",
                      key,
                      text::with_commas(texts->cut()),
                      text::with_commas(texts->size()),
                      request.sequence_length));
    }
    return texts;
  }

  ClassifyOptions options_;
};

std::unique_ptr<Task> make_classify(const json::Value& params,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  ClassifyOptions options;
  config::read(params, options, problems, origins);
  check_label_names(options.labels, problems, origins);
  return std::make_unique<Classify>(std::move(options));
}

TESSERA_TASK("classify", make_classify);

}  // namespace
}  // namespace tessera::tasks
