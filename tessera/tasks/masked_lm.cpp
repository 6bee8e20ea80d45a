// SPDX-License-Identifier: Apache-2.0
// Masked language modelling: windows of a token stream, or documents, in which some tokens are
// masked. The model learns to predict them from the tokens on both sides.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/masked_tokens.h"
#include "tessera/tasks/special_token.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

struct MaskedLmOptions {
  double probability = 0.15, mask_share = 0.8, random_share = 0.1;
  std::string mask_token;
  std::optional<std::int64_t> mask_token_id;
  bool whole_words = false, dynamic = true;
  std::int64_t seed = 1234;
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
  }
};

class MaskedLm final : public Task {
 public:
  explicit MaskedLm(MaskedLmOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "masked_lm"; }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    require_whole(request.options);
    Masking masking = masking_of(request);
    data::Datasets out = data::open_datasets(request.options,
                                             request.tokenizer,
                                             request.vocab_size,
                                             request.sequence_length,
                                             request.min_samples,
                                             request.how);
    if (!out.fingerprint.empty()) out.fingerprint += " masked " + masking.text();
    out.train = masked(std::move(out.train), masking);
    masking.dynamic = false;
    if (out.validation) out.validation = masked(std::move(out.validation), masking);
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    require_whole(request.options);
    Masking masking = masking_of(request);
    masking.dynamic = false;
    data::OpenedDataset out = data::open_dataset(request.options,
                                                 names,
                                                 key,
                                                 request.tokenizer,
                                                 request.vocab_size,
                                                 request.sequence_length,
                                                 request.how,
                                                 /*shorter=*/true);
    out.dataset = masked(std::move(out.dataset), masking);
    return out;
  }

 private:
  static void require_whole(const data::DataOptions& options) {
    TESSERA_REQUIRE(!options.separate_documents,
                    Unsupported,
                    "data.separate_documents keeps documents apart for models whose tokens see the "
                    "ones before them, and those of masked_lm see all",
                    "set data.pack to false, so that each document is a sample of its own");
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

  static std::unique_ptr<data::Dataset> masked(std::unique_ptr<data::Dataset> dataset,
                                               const Masking& masking) {
    auto* const tokens = dynamic_cast<data::TokenDataset*>(dataset.get());
    TESSERA_ASSERT(tokens != nullptr);
    (void)dataset.release();
    return std::make_unique<MaskedTokens>(std::unique_ptr<data::TokenDataset>(tokens), masking);
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
  return std::make_unique<MaskedLm>(std::move(options));
}

TESSERA_TASK("masked_lm", make_masked_lm);

}  // namespace
}  // namespace tessera::tasks
