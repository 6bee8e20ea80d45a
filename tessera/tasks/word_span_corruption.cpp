// SPDX-License-Identifier: Apache-2.0
// Span corruption of whole words, the pre-training of Megatron-LM's T5: the encoder reads sentences
// of a document without some spans of words, and the decoder predicts the spans.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/masked_tokens.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/special_token.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/word_spans.h"

namespace tessera::tasks {
namespace {

struct WordSpanOptions {
  double noise_density = 0.15, stop_probability = 0.2, short_texts = 0.1;
  std::int64_t most_words = 10, num_sentinels = 100;
  std::optional<std::int64_t> target_length, sentinel_id, end_id;
  bool dynamic = true;
  std::int64_t seed = 1234;

  void describe(config::Fields& fields) {
    fields.field("noise_density",
                 noise_density,
                 {.text = "Largest share of the tokens that are removed from the input and "
                          "predicted.",
                  .min = 0,
                  .max = 0.9,
                  .above_min = true});
    fields.field("most_words",
                 most_words,
                 {.text = "Largest number of words of a removed span.", .min = 1, .max = 1e4});
    fields.field("stop_probability",
                 stop_probability,
                 {.text = "Probability that a span ends with a word: the lengths of spans are "
                          "geometric, up to most_words.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    fields.field("short_texts",
                 short_texts,
                 {.text = "Share of samples with a random smaller length.", .min = 0, .max = 1});
    fields.field("target_length",
                 target_length,
                 {.text = "Length of the labels: no more spans are removed than fit.",
                  .unit = "tokens",
                  .min = 3,
                  .max = 1e8,
                  .default_text = "twice the removed tokens, and the end"});
    fields.field("sentinel_id",
                 sentinel_id,
                 {.text = "Id that replaces the first span of a sample; the ids of the following "
                          "spans ascend from it.",
                  .min = 0,
                  .max = 1e8,
                  .default_text = "those of the tokens <extra_id_0>, <extra_id_1>, ..."});
    fields.field(
        "num_sentinels",
        num_sentinels,
        {.text = "Number of these ids, which bounds the spans of a sample.", .min = 1, .max = 1e6});
    fields.field(
        "end_id",
        end_id,
        {.text = "Id that ends the labels.", .min = 0, .max = 1e8, .default_text = "end of text"});
    fields.field("dynamic",
                 dynamic,
                 {.text = "Whether new spans of a sample are removed each time it is read for "
                          "training; false: always the same ones."});
    fields.field("seed", seed, {.text = "Seed of the choice of spans.", .min = 0, .max = 1e15});
  }
};

class WordSpanCorruption final : public Task {
 public:
  explicit WordSpanCorruption(WordSpanOptions options) : options_(options) {}

  [[nodiscard]] std::string objective() const override { return "seq2seq"; }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::OtherText; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}},
            {.name = "labels", .dtype = DType::I64, .shape = {target_length(sequence_length)}}};
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_task_records(
        request,
        [this](const DataRequest& kept) { return texts_of(kept); },
        "documents or texts",
        sentence_files);
  }
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return open_held_out_records(names, key, texts_of(request), "documents or texts");
  }

 private:
  [[nodiscard]] std::int64_t target_length(std::int64_t input) const {
    const double removed = options_.noise_density * static_cast<double>(input);
    return options_.target_length.value_or(2 * static_cast<std::int64_t>(removed) + 3);
  }

  [[nodiscard]] ReadRecords texts_of(const DataRequest& request) const {
    const data::DataOptions& data = request.options;
    for (const auto& [given, key] :
         {std::pair{!data.pack, "data.pack"},
          {data.stride.value_or(request.sequence_length) != request.sequence_length, "data.stride"},
          {data.separate_documents, "data.separate_documents"}}) {
      TESSERA_REQUIRE(!given,
                      Config,
                      fmt::format("{} does not apply to texts of whole sentences", key),
                      "remove it, or use the task span_corruption");
    }
    TESSERA_REQUIRE(request.sequence_length > 3,
                    Config,
                    fmt::format("samples of {} tokens have no room for a span that is left out",
                                request.sequence_length),
                    "raise data.sequence_length to 4 or more");
    const WordSpansOptions options = {
        .input_length = request.sequence_length,
        .target_length = target_length(request.sequence_length),
        .density = options_.noise_density,
        .most_words = options_.most_words,
        .stop = options_.stop_probability,
        .short_share = options_.short_texts,
        .sentinels = sentinels(request),
        .end = id_of(options_.end_id, "end_id", request).value_or(request.tokenizer.end_of_text()),
        .pad = request.tokenizer.padding(),
        .begins_word = word_beginnings(request.tokenizer),
        .seed = static_cast<std::uint64_t>(options_.seed),
        .dynamic = options_.dynamic};
    return [options, &request](const std::vector<std::string>& names, data::Split split) {
      WordSpansOptions own = options;
      own.dynamic = own.dynamic && split == data::Split::Train;
      auto texts = std::make_unique<WordSpans>(std::move(own));
      data::TokenizeOptions how = request.how;
      how.text_field = request.options.text_field;
      how.invalid_utf8 = request.options.invalid_utf8;
      texts->read_files(names, request.tokenizer, how);
      return texts;
    };
  }

  static std::optional<std::int32_t> id_of(const std::optional<std::int64_t>& id,
                                           const char* key,
                                           const DataRequest& request) {
    if (!id) return std::nullopt;
    TESSERA_REQUIRE(
        *id < request.vocab_size,
        Config,
        fmt::format(
            "task.params.{} is {}, and the model has {} tokens", key, *id, request.vocab_size),
        "give the id of a token, or raise model.vocab_size");
    return static_cast<std::int32_t>(*id);
  }

  [[nodiscard]] std::vector<std::int32_t> sentinels(const DataRequest& request) const {
    std::vector<std::int32_t> out;
    if (const auto first = id_of(options_.sentinel_id, "sentinel_id", request)) {
      const std::int64_t last = *options_.sentinel_id + options_.num_sentinels - 1;
      TESSERA_REQUIRE(
          last < request.vocab_size,
          Config,
          fmt::format("the {} sentinels have the ids {} to {}, and the model has {} tokens",
                      options_.num_sentinels,
                      *first,
                      last,
                      request.vocab_size),
          "lower task.params.num_sentinels, or raise model.vocab_size");
      for (std::int64_t id = *first; id <= last; ++id)
        out.push_back(static_cast<std::int32_t>(id));
      return out;
    }
    for (std::int64_t i = 0; i < options_.num_sentinels; ++i) {
      const auto id = special_token(request.tokenizer, fmt::format("<extra_id_{}>", i));
      if (!id) break;
      out.push_back(*id);
    }
    TESSERA_REQUIRE(
        !out.empty(),
        Config,
        fmt::format("the tokenizer {} has no token \"<extra_id_0>\"", request.tokenizer.name()),
        "set task.params.sentinel_id to an id that no text has, as those above it, "
        "with model.vocab_size above them");
    return out;
  }

  WordSpanOptions options_;
};

std::unique_ptr<Task> make_word_span_corruption(const json::Value& params,
                                                config::Problems& problems,
                                                config::Origins& origins) {
  WordSpanOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<WordSpanCorruption>(options);
}

TESSERA_TASK("word_span_corruption", make_word_span_corruption);

}  // namespace
}  // namespace tessera::tasks
