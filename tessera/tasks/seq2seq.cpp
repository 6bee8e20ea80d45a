// SPDX-License-Identifier: Apache-2.0
// Texts that answer texts: every record has a source, which the encoder reads, and a target, which
// the decoder writes.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/text_pairs.h"

namespace tessera::tasks {
namespace {

struct Seq2SeqOptions {
  std::string source_field = "source", target_field = "target", prefix;
  std::optional<std::int64_t> target_length;
  void describe(config::Fields& fields) {
    fields.field("source_field",
                 source_field,
                 {.text = "Field of a record that holds the text that the encoder reads."});
    fields.field("target_field",
                 target_field,
                 {.text = "Field of a record that holds the text that the decoder writes."});
    fields.field("prefix", prefix, {.text = "Text before every source, such as \"summarize: \"."});
    fields.field("target_length",
                 target_length,
                 {.text = "Length to which targets are cut and padded; data.sequence_length is "
                          "that of sources.",
                  .unit = "tokens",
                  .min = 1,
                  .max = 1e8,
                  .default_text = "data.sequence_length"});
  }
};

class Seq2Seq final : public Task {
 public:
  explicit Seq2Seq(Seq2SeqOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "seq2seq"; }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_records(request, reader(request));
  }
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return open_held_out_records(names, key, reader(request));
  }
  [[nodiscard]] bool reads_records() const override { return true; }

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const {
    return [this, &request](const std::vector<std::string>& names, data::Split split) {
      auto pairs =
          std::make_unique<TextPairs>(request.sequence_length,
                                      options_.target_length.value_or(request.sequence_length),
                                      request.tokenizer.end_of_text());
      pairs->read_files(data::record_files(names, split),
                        record_options(request.options,
                                       fmt::format("{{\"{}\": \"...\", \"{}\": \"...\"}}",
                                                   options_.source_field,
                                                   options_.target_field)),
                        {.source = options_.source_field,
                         .target = options_.target_field,
                         .prefix = options_.prefix},
                        request.tokenizer,
                        request.how.poll);
      return pairs;
    };
  }

  Seq2SeqOptions options_;
};

std::unique_ptr<Task> make_seq2seq(const json::Value& params,
                                   config::Problems& problems,
                                   config::Origins& origins) {
  Seq2SeqOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Seq2Seq>(std::move(options));
}

TESSERA_TASK("seq2seq", make_seq2seq);

}  // namespace
}  // namespace tessera::tasks
