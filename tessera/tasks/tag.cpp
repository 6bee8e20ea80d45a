// SPDX-License-Identifier: Apache-2.0
// Tagging: every record has a list of words and a tag for each, such as parts of speech or named
// entities.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/tasks/model_classes.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/tagged_words.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct TagOptions {
  std::string tokens_field = "tokens", tags_field = "tags";
  std::vector<std::string> labels;
  ClassLossOptions loss;
  void describe(config::Fields& fields) {
    fields.field("tokens_field",
                 tokens_field,
                 {.text = "Field of a record that contains the list of words, or a text of words "
                          "with spaces between them.",
                  .default_text = "tokens, or words"});
    fields.field(
        "tags_field",
        tags_field,
        {.text =
             "Field of a record that contains the list of their tags, or a text of them: names or "
             "integers from 0.",
         .default_text = "tags, ner_tags, ner or pos_tags, the first that a record has"});
    fields.field("labels",
                 labels,
                 {.text = "Names of the tags in the order of their ids.",
                  .default_text = "those of data.train, sorted"});
    loss.describe(fields);
  }
};

class Tag final : public RecordTask {
 public:
  explicit Tag(TagOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "token_classification"; }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::Class; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    const Labels labels = labels_of(data);
    json::Value out = options_of_labels(labels);
    options_.loss.add_to(out, labels);
    return out;
  }

  [[nodiscard]] bool has_metrics() const override { return true; }
  [[nodiscard]] json::Value prediction(const Predictions& rows,
                                       const std::vector<std::string>& names) const override {
    return tags_prediction(rows, names);
  }
  [[nodiscard]] std::vector<NamedValue> metrics(const Predictions& predictions) const override {
    return class_metrics(predictions);
  }

 private:
  [[nodiscard]] data::RecordOptions how(const data::DataOptions& data) const {
    return record_options(data,
                          fmt::format("{{\"{}\": [\"A\", \"word\"], \"{}\": [\"DT\", \"NN\"]}}",
                                      options_.tokens_field,
                                      options_.tags_field));
  }
  [[nodiscard]] WordFields fields() const { return {options_.tokens_field, options_.tags_field}; }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    const bool count = options_.loss.balance != ClassBalance::None;
    if (!options_.labels.empty() && !count) return Labels::named(options_.labels);
    Labels found = tags_found_in(
        record_files(data.train, data::Split::Train), how(data), fields(), options_.labels);
    return options_.labels.empty() ? found : counted(options_.labels, found);
  }
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    return [this, &request, labels = request.predict ? Labels() : labels_of(request.options)](
               const std::vector<std::string>& names, data::Split split) {
      auto out = std::make_unique<TaggedWords>(
          request.sequence_length, request.tokenizer.padding(), labels);
      out->read_files(data::record_files(names, split),
                      how(request.options),
                      request.predict ? WordFields{options_.tokens_field, ""} : fields(),
                      request.tokenizer,
                      request.how.poll);
      return out;
    };
  }

  TagOptions options_;
};

std::unique_ptr<Task> make_tag(const json::Value& params,
                               config::Problems& problems,
                               config::Origins& origins) {
  TagOptions options;
  config::read(with_label_names(params), options, problems, origins);
  check_label_names(options.labels, problems, origins);
  options.loss.check(problems, origins);
  return std::make_unique<Tag>(std::move(options));
}

TaskOptions task_of_tagger(const json::Value& options, bool labelled) {
  TaskOptions out{.type = "tag", .params = json::Value::object()};
  if (labelled) out.params["labels"] = names_of_classes(options);
  return out;
}

TESSERA_TASK("tag", make_tag);
TESSERA_TASK_OF_CLASSES("tag", tag, nullptr);
TESSERA_TASK_OF_OBJECTIVE("token_classification", tag, {.of_model = task_of_tagger});

}  // namespace
}  // namespace tessera::tasks
