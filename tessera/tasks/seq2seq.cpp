// SPDX-License-Identifier: Apache-2.0
// Sequence to sequence: every record has a source, which the encoder reads, and a target, which the
// decoder generates.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/record_task.h"
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
                 {.text = "Field of a record that contains the encoder's text."});
    fields.field("target_field",
                 target_field,
                 {.text = "Field of a record that contains the decoder's text."});
    fields.field("prefix", prefix, {.text = "Prefix of every source, such as \"summarize: \"."});
    fields.field("target_length",
                 target_length,
                 {.text = "Length to which targets are truncated and padded; data.sequence_length "
                          "applies to sources.",
                  .unit = "tokens",
                  .min = 1,
                  .max = 1e8,
                  .default_text = "data.sequence_length"});
  }
};

class Seq2Seq final : public RecordTask {
 public:
  explicit Seq2Seq(Seq2SeqOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "seq2seq"; }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::OtherText; }
  [[nodiscard]] bool has_answers() const override { return true; }
  [[nodiscard]] bool streams() const override { return true; }

  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}},
            {.name = "labels",
             .dtype = DType::I64,
             .shape = {options_.target_length.value_or(sequence_length)}}};
  }

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
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
TESSERA_TASK_OF_OBJECTIVE("seq2seq", seq2seq, {.trains = "seq2seq"});

}  // namespace
}  // namespace tessera::tasks
