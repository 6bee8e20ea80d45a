// SPDX-License-Identifier: Apache-2.0
// Masked language modelling: windows of a token stream, or documents, in which some tokens are
// masked. The model learns to predict them from the tokens on both sides, and with pairs of
// sentences also how the two belong together.
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/masked_tokens.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/sentence_pairs.h"
#include "tessera/tasks/sentences.h"
#include "tessera/tasks/special_token.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/token_task.h"

namespace tessera::tasks {
namespace {

constexpr auto kPairLabels =
    std::to_array<config::Named<PairLabel>>({{PairLabel::None, "none"},
                                             {PairLabel::NextSentence, "nsp"},
                                             {PairLabel::SentenceOrder, "sop"}});

struct MaskedLmOptions {
  double probability = 0.15, mask_share = 0.8, random_share = 0.1;
  std::string mask_token;
  std::optional<std::int64_t> mask_token_id;
  bool whole_words = false, dynamic = true;
  std::int64_t seed = 1234;
  PairLabel pairs = PairLabel::None;
  std::optional<double> short_pairs;
  std::optional<std::int64_t> pair_copies, cls_token_id, sep_token_id;
  void describe(config::Fields& fields) {
    fields.field("probability",
                 probability,
                 {.text = "Probability that a token is chosen for prediction.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    fields.field("mask_share",
                 mask_share,
                 {.text = "Share of the chosen tokens that are replaced by the mask token.",
                  .min = 0,
                  .max = 1});
    fields.field("random_share",
                 random_share,
                 {.text = "Share of the chosen tokens that are replaced by a random token; the "
                          "rest are unchanged.",
                  .min = 0,
                  .max = 1});
    fields.field("mask_token",
                 mask_token,
                 {.text = "Mask token, by its text in the tokenizer.",
                  .default_text = "[MASK] or <mask>, whichever the tokenizer has"});
    fields.field("mask_token_id",
                 mask_token_id,
                 {.text = "Mask token, by its id, for a tokenizer that has none.",
                  .min = 0,
                  .max = 1e8,
                  .default_text = "that of mask_token"});
    fields.field("whole_words",
                 whole_words,
                 {.text = "Whether all tokens of a word are chosen together; a word begins with a "
                          "token that has a space, or no \"##\", in front."});
    fields.field("dynamic",
                 dynamic,
                 {.text = "Whether new tokens of a sample are chosen each time it is read for "
                          "training; false: always the same ones."});
    fields.field("seed", seed, {.text = "Seed of the choice of tokens.", .min = 0, .max = 1e15});
    fields.choice(
        "pairs",
        pairs,
        kPairLabels,
        {.text = "A second objective on pairs of texts, each of successive sentences: nsp, whether "
                 "the second follows the first (BERT); sop, whether the two are in their order "
                 "(ALBERT); none. A line of the text is a sentence, and a blank line ends a "
                 "document."});
    fields.field("short_pairs",
                 short_pairs,
                 {.text = "Share of the documents that are divided into shorter pairs of a random "
                          "length.",
                  .min = 0,
                  .max = 1,
                  .default_text = "0.1"});
    fields.field(
        "pair_copies",
        pair_copies,
        {.text = "How often each document of the training data is divided into pairs, with "
                 "other random choices each time.",
         .min = 1,
         .max = 1000,
         .default_text = "1"});
    fields.field("cls_token_id",
                 cls_token_id,
                 {.text = "Token in front of a pair, by its id, for a tokenizer that puts none.",
                  .min = 0,
                  .max = 1e8,
                  .default_text = "that of the tokenizer"});
    fields.field("sep_token_id",
                 sep_token_id,
                 {.text = "Token after each text of a pair, by its id, for a tokenizer that puts "
                          "none.",
                  .min = 0,
                  .max = 1e8,
                  .default_text = "that of the tokenizer"});
  }
};

class MaskedLm final : public Task {
 public:
  explicit MaskedLm(MaskedLmOptions options) : options_(std::move(options)) {}

  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] std::string objective() const override {
    return has_pairs() ? "masked_lm_pairs" : "masked_lm";
  }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    json::Value out = json::Value::object();
    if (has_pairs())
      out["pairs"] = json::Value::string(options_.pairs == PairLabel::NextSentence ? "nsp" : "sop");
    return out;
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    std::vector<data::TensorSpec> out = Task::tensors(sequence_length);
    if (has_pairs()) {
      out.push_back({.name = "token_type_ids", .dtype = DType::I64, .shape = {sequence_length}});
      out.push_back({.name = "pair_label", .dtype = DType::I64});
    }
    return out;
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    if (has_pairs()) {
      return open_task_records(
          request,
          [this](const DataRequest& kept) { return pairs_of(kept); },
          "documents or pairs",
          sentence_files);
    }
    data::Datasets out = open_tokens(request, request.sequence_length, samples_of(request));
    if (!out.fingerprint.empty()) out.fingerprint += " masked " + masking_of(request).text();
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    if (has_pairs())
      return open_held_out_records(names, key, pairs_of(request), "documents or pairs");
    return open_held_out_tokens(request, names, key, request.sequence_length, samples_of(request));
  }

 private:
  [[nodiscard]] bool has_pairs() const { return options_.pairs != PairLabel::None; }

  [[nodiscard]] ReadRecords pairs_of(const DataRequest& request) const {
    const data::DataOptions& data = request.options;
    for (const auto& [given, key] :
         {std::pair{!data.pack, "data.pack"},
          {data.stride.value_or(request.sequence_length) != request.sequence_length, "data.stride"},
          {data.separate_documents, "data.separate_documents"}}) {
      TESSERA_REQUIRE(!given,
                      Config,
                      fmt::format("{} does not apply to pairs of sentences", key),
                      "remove it, or set task.params.pairs to none");
    }
    SentencePairsOptions options = {.length = request.sequence_length,
                                    .pad_id = request.tokenizer.padding(),
                                    .label = options_.pairs,
                                    .frame = frame_of(request),
                                    .short_share = options_.short_pairs.value_or(0.1),
                                    .copies = options_.pair_copies.value_or(1),
                                    .masking = masking_of(request)};
    for (const auto* ids : {&options.frame.before, &options.frame.between, &options.frame.after})
      options.masking.never.insert(options.masking.never.end(), ids->begin(), ids->end());
    return [options, &request](const std::vector<std::string>& names, data::Split split) {
      SentencePairsOptions own = options;
      if (split != data::Split::Train) {
        own.copies = 1;
        own.masking.dynamic = false;
      }
      auto pairs = std::make_unique<SentencePairs>(std::move(own));
      data::TokenizeOptions how = request.how;
      how.text_field = request.options.text_field;
      how.invalid_utf8 = request.options.invalid_utf8;
      pairs->read_files(names, request.tokenizer, how);
      return pairs;
    };
  }

  [[nodiscard]] PairFrame frame_of(const DataRequest& request) const {
    PairFrame frame = pair_frame_of(request.tokenizer);
    for (const auto& [id, key] : {std::pair{options_.cls_token_id, "cls_token_id"},
                                  {options_.sep_token_id, "sep_token_id"}}) {
      TESSERA_REQUIRE(!id || *id < request.vocab_size,
                      Config,
                      fmt::format("task.params.{} is {}, and the model has {} tokens",
                                  key,
                                  id.value_or(0),
                                  request.vocab_size),
                      "give the id of a token, or raise model.vocab_size");
    }
    if (options_.cls_token_id) {
      frame.before = {static_cast<std::int32_t>(*options_.cls_token_id)};
      frame.before_types = {frame.first_type};
    }
    if (options_.sep_token_id) {
      frame.between = frame.after = {static_cast<std::int32_t>(*options_.sep_token_id)};
      frame.between_types = {frame.first_type};
      frame.after_types = {frame.second_type};
    }
    TESSERA_REQUIRE(!frame.before.empty() && !frame.between.empty() && !frame.after.empty(),
                    Config,
                    fmt::format("the tokenizer {} puts no tokens around and between two texts",
                                request.tokenizer.name()),
                    "set task.params.cls_token_id and task.params.sep_token_id to ids that no text "
                    "has, with model.vocab_size above them");
    return frame;
  }

  [[nodiscard]] Masking masking_of(const DataRequest& request) const {
    return {.probability = options_.probability,
            .mask_share = options_.mask_share,
            .random_share = options_.random_share,
            .mask_id = mask_id(request),
            .vocab_size = request.tokenizer.size(),
            .never = {request.tokenizer.end_of_text()},
            .begins_word =
                options_.whole_words ? word_beginnings(request.tokenizer) : std::vector<bool>(),
            .seed = static_cast<std::uint64_t>(options_.seed),
            .dynamic = options_.dynamic};
  }

  [[nodiscard]] std::int32_t mask_id(const DataRequest& request) const {
    if (options_.mask_token_id) {
      TESSERA_REQUIRE(*options_.mask_token_id < request.vocab_size,
                      Config,
                      fmt::format("task.params.mask_token_id is {}, and the model has {} tokens",
                                  *options_.mask_token_id,
                                  request.vocab_size),
                      "give the id of a token, or raise model.vocab_size");
      return static_cast<std::int32_t>(*options_.mask_token_id);
    }
    const std::vector<std::string> names = options_.mask_token.empty()
                                               ? std::vector<std::string>{"[MASK]", "<mask>"}
                                               : std::vector<std::string>{options_.mask_token};
    for (const std::string& name : names) {
      if (const auto id = special_token(request.tokenizer, name)) return *id;
    }
    throw Error(
        Error::Kind::Config,
        fmt::format(
            "the tokenizer {} has no token \"{}\"", request.tokenizer.name(), names.front()),
        "name its mask token in task.params.mask_token, or set task.params.mask_token_id to "
        "an id that no text has, with model.vocab_size above it");
  }

  [[nodiscard]] data::TokenSamples samples_of(const DataRequest& request) const {
    const auto make = [masking = masking_of(request)](std::unique_ptr<data::TokenDataset> tokens,
                                                      bool training) {
      Masking own = masking;
      own.dynamic = own.dynamic && training;
      return std::make_unique<MaskedTokens>(std::move(tokens), std::move(own));
    };
    return {.make = make, .seed = request.seed};
  }

  MaskedLmOptions options_;
};

std::unique_ptr<Task> make_masked_lm(const json::Value& params,
                                     config::Problems& problems,
                                     config::Origins& origins) {
  MaskedLmOptions options;
  config::read(params, options, problems, origins);
  if (options.mask_share + options.random_share > 1.0 + 1e-9) {
    problems.add(origins.place("random_share"),
                 "random_share",
                 fmt::format("mask_share {} and random_share {} are more than all chosen tokens",
                             options.mask_share,
                             options.random_share),
                 "lower one of them");
  }
  if (!options.mask_token.empty() && options.mask_token_id) {
    problems.add(origins.place("mask_token_id"),
                 "mask_token_id",
                 "mask_token and mask_token_id are both given",
                 "keep one of them");
  }
  if (options.pairs == PairLabel::None) {
    for (const char* key : {"short_pairs", "pair_copies", "cls_token_id", "sep_token_id"}) {
      if (!origins.given(key)) continue;
      problems.add(origins.place(key),
                   key,
                   fmt::format("{} is given without pairs of sentences", key),
                   "set pairs to nsp or sop, or remove it");
    }
  }
  return std::make_unique<MaskedLm>(std::move(options));
}

TESSERA_TASK("masked_lm", make_masked_lm);
TESSERA_TASK_OF_OBJECTIVE("masked_lm",
                          masked_lm,
                          {.trains = "masked_lm", .example = R"({"mask_token_id": 0})"});

}  // namespace
}  // namespace tessera::tasks
