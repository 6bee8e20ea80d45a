// SPDX-License-Identifier: Apache-2.0
// Tagging: every line of a .jsonl has a list of words and a tag for each, such as parts of speech
// or names of entities.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/open_labelled.h"
#include "tessera/tasks/tagged_words.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

constexpr const char* kTaggedTexts = "texts";

struct TagOptions {
  std::string tokens_field = "tokens", tags_field = "tags";
  std::vector<std::string> labels;
  void describe(config::Fields& fields) {
    fields.field(
        "tokens_field", tokens_field, {.text = "Field of a record that holds the list of words."});
    fields.field("tags_field",
                 tags_field,
                 {.text = "Field of a record that holds the list of their tags: names or integers "
                          "from 0."});
    fields.field("labels",
                 labels,
                 {.text = "Names of the tags in the order of their ids.",
                  .default_text = "those of data.train, sorted"});
  }
};

class Tag final : public Task {
 public:
  explicit Tag(TagOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "token_classification"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    return options_of_labels(labels_of(data));
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_labelled<TaggedWords>(
        request,
        labels_of(request.options),
        kTaggedTexts,
        [&](const std::vector<std::string>& names, const char* key, const Labels& labels) {
          return read_words(request, labels, names, key);
        });
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return held_out_of(
        read_words(request, labels_of(request.options), names, key), key, kTaggedTexts);
  }

 private:
  [[nodiscard]] RecordFields fields_of(const data::DataOptions& data) const {
    return {.text = options_.tokens_field,
            .label = options_.tags_field,
            .replace_invalid_utf8 = data.invalid_utf8 == "replace"};
  }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    if (!options_.labels.empty()) return Labels::named(options_.labels);
    return tags_found_in(data.train, fields_of(data));
  }
  [[nodiscard]] std::unique_ptr<TaggedWords> read_words(const DataRequest& request,
                                                        Labels labels,
                                                        const std::vector<std::string>& names,
                                                        const std::string& key) const {
    auto out = std::make_unique<TaggedWords>(
        request.sequence_length, request.tokenizer.end_of_text(), std::move(labels));
    out->read_files(names, fields_of(request.options), request.tokenizer, request.how.poll);
    if (out->cut() > 0) {
      log::warn_once(
          fmt::format("{}: {} of {} texts are longer than data.sequence_length ({} tokens) and "
                      "lose their end",
                      key,
                      text::with_commas(out->cut()),
                      text::with_commas(out->size()),
                      request.sequence_length));
    }
    return out;
  }

  TagOptions options_;
};

std::unique_ptr<Task> make_tag(const json::Value& params,
                               config::Problems& problems,
                               config::Origins& origins) {
  TagOptions options;
  config::read(params, options, problems, origins);
  check_label_names(options.labels, problems, origins);
  return std::make_unique<Tag>(std::move(options));
}

TESSERA_TASK("tag", make_tag);

}  // namespace
}  // namespace tessera::tasks
