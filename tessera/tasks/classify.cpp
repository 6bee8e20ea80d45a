// SPDX-License-Identifier: Apache-2.0
// Classification of texts: every line of a .jsonl has a text and its label.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/labelled_texts.h"
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
    const data::DataOptions& options = request.options;
    TESSERA_REQUIRE(
        options.validation.empty() || options.validation_fraction == 0.0,
        Config,
        "data.validation and data.validation_fraction are both given",
        "keep data.validation (other data) or data.validation_fraction (the tail of data.train)");
    auto train = read_texts(request, labels_of(options), options.train, "data.train");
    data::Datasets out;
    out.fingerprint = fingerprint_of(*train, options);
    out.train_stats = train->stats();
    if (options.validation_fraction > 0.0) {
      const auto kept = static_cast<std::int64_t>(
          std::floor(static_cast<double>(train->size()) * (1.0 - options.validation_fraction)));
      auto validation = train->split_off(train->size() - kept);
      require_samples(*validation, 1, "the tail of data.train");
      out.validation_tokens = validation->tokens();
      out.validation = std::move(validation);
    } else if (!options.validation.empty()) {
      auto validation = read_texts(request, train->labels(), options.validation, "data.validation");
      require_samples(*validation, 1, "data.validation");
      out.validation_tokens = validation->tokens();
      out.validation_stats = validation->stats();
      out.validation_fingerprint = validation->fingerprint();
      out.validation = std::move(validation);
    }
    require_samples(*train, std::max<std::int64_t>(request.min_samples, 1), "data.train");
    out.train_tokens = train->tokens();
    out.train = std::move(train);
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    auto texts = read_texts(request, labels_of(request.options), names, key);
    require_samples(*texts, 1, key);
    data::OpenedDataset out;
    out.tokens = texts->tokens();
    out.stats = texts->stats();
    out.fingerprint = texts->fingerprint();
    out.dataset = std::move(texts);
    return out;
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
  static void require_samples(const LabelledTexts& texts,
                              std::int64_t wanted,
                              const std::string& what) {
    TESSERA_REQUIRE(
        texts.size() >= wanted,
        Data,
        fmt::format("{} has {} texts; at least {} are needed", what, texts.size(), wanted),
        "use more data, or a smaller batch");
  }
  static std::string fingerprint_of(const LabelledTexts& texts, const data::DataOptions& data) {
    return fmt::format(
        "{} {} {}", texts.fingerprint(), data.shuffle, text::number(data.validation_fraction));
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
