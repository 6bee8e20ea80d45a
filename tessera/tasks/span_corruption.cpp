// SPDX-License-Identifier: Apache-2.0
// Span corruption, T5's pre-training: the encoder reads windows of a token stream, or documents,
// without some spans, and the decoder predicts the spans.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/corrupted_spans.h"
#include "tessera/tasks/special_token.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct SpanCorruptionOptions {
  double noise_density = 0.15, mean_span_length = 3.0;
  std::optional<std::int64_t> sentinel_id;
  bool dynamic = true;
  std::int64_t seed = 1234;
  void describe(config::Fields& fields) {
    fields.field("noise_density",
                 noise_density,
                 {.text = "Share of the tokens that are removed from the input and predicted.",
                  .min = 0,
                  .max = 0.9,
                  .above_min = true});
    fields.field(
        "mean_span_length",
        mean_span_length,
        {.text = "Mean length of the removed spans.", .unit = "tokens", .min = 1, .max = 1e4});
    fields.field("sentinel_id",
                 sentinel_id,
                 {.text = "Id that replaces the first span of a sample; the ids of the following "
                          "spans descend from it.",
                  .min = 0,
                  .max = 1e8,
                  .default_text = "those of the tokens <extra_id_0>, <extra_id_1>, ..."});
    fields.field("dynamic",
                 dynamic,
                 {.text = "Whether new spans of a sample are removed each time it is read for "
                          "training; false: always the same ones."});
    fields.field("seed", seed, {.text = "Seed of the choice of spans.", .min = 0, .max = 1e15});
  }
};

class SpanCorruption final : public Task {
 public:
  explicit SpanCorruption(SpanCorruptionOptions options) : options_(options) {}

  [[nodiscard]] std::string objective() const override { return "seq2seq"; }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::OtherText; }
  [[nodiscard]] bool streams() const override { return true; }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    data::Datasets out = data::open_datasets(request.options,
                                             request.tokenizer,
                                             request.vocab_size,
                                             text_length(request),
                                             request.min_samples,
                                             request.how,
                                             samples_of(request));
    if (!out.fingerprint.empty()) out.fingerprint += " spans " + noise_of(request).text();
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return data::open_dataset(request.options,
                              names,
                              key,
                              request.tokenizer,
                              request.vocab_size,
                              text_length(request),
                              request.how,
                              /*shorter=*/true,
                              samples_of(request));
  }

 private:
  [[nodiscard]] SpanCounts counts(std::int64_t tokens) const {
    return count_spans(tokens, options_.noise_density, options_.mean_span_length);
  }

  /// The number of tokens of a sequence whose input fills a sample.
  [[nodiscard]] std::int64_t text_length(const DataRequest& request) const {
    const std::int64_t tokens =
        text_length_for(request.sequence_length, options_.noise_density, options_.mean_span_length);
    TESSERA_REQUIRE(tokens > 1,
                    Config,
                    fmt::format("samples of {} tokens have no room for a span that is left out",
                                request.sequence_length),
                    "raise data.sequence_length to 3 or more");
    return tokens;
  }

  [[nodiscard]] SpanNoise noise_of(const DataRequest& request) const {
    return {.density = options_.noise_density,
            .mean_length = options_.mean_span_length,
            .sentinels = sentinels(request, counts(text_length(request)).spans),
            .end = request.tokenizer.end_of_text(),
            .seed = static_cast<std::uint64_t>(options_.seed),
            .dynamic = options_.dynamic};
  }

  [[nodiscard]] std::vector<std::int32_t> sentinels(const DataRequest& request,
                                                    std::int64_t count) const {
    std::vector<std::int32_t> out;
    if (options_.sentinel_id) {
      const std::int64_t first = *options_.sentinel_id, last = first - count + 1;
      TESSERA_REQUIRE(
          first < request.vocab_size && last >= 0,
          Config,
          fmt::format("the {} spans of a sample have the ids {} to {}, and the model has {} tokens",
                      count,
                      first,
                      last,
                      request.vocab_size),
          "give an id in task.params.sentinel_id that has as many below it, or raise "
          "model.vocab_size");
      for (std::int64_t id = first; id >= last; --id)
        out.push_back(static_cast<std::int32_t>(id));
      return out;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto id = special_token(request.tokenizer, fmt::format("<extra_id_{}>", i));
      if (!id) {
        throw Error(
            Error::Kind::Config,
            fmt::format("a sample has {} spans, and the tokenizer {} no token \"<extra_id_{}>\"",
                        count,
                        request.tokenizer.name(),
                        i),
            i > 0 ? "lower data.sequence_length, or raise task.params.mean_span_length"
                  : "set task.params.sentinel_id to an id that no text has, as those below it, "
                    "with model.vocab_size above it");
      }
      out.push_back(*id);
    }
    return out;
  }

  [[nodiscard]] data::TokenSamples samples_of(const DataRequest& request) const {
    const std::int64_t length = text_length(request), full_input = request.sequence_length;
    const auto make = [this, length, full_input, noise = noise_of(request)](
                          std::unique_ptr<data::TokenDataset> tokens, bool training) {
      SpanNoise own = noise;
      own.dynamic = own.dynamic && training;
      // Held-out data may be shorter.
      const std::int64_t input =
          tokens->length() == length ? full_input : counts(tokens->length()).input;
      return std::make_unique<CorruptedSpans>(std::move(tokens), input, std::move(own));
    };
    // A sample is one text, whose spans one answer has in order.
    return {.make = make, .seed = request.seed, .of_one_document = true};
  }

  SpanCorruptionOptions options_;
};

std::unique_ptr<Task> make_span_corruption(const json::Value& params,
                                           config::Problems& problems,
                                           config::Origins& origins) {
  SpanCorruptionOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<SpanCorruption>(options);
}

TESSERA_TASK("span_corruption", make_span_corruption);

}  // namespace
}  // namespace tessera::tasks
