// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning: a decoder learns to answer, from instructions, conversations and plain
// texts.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/embedding_noise.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/sft_samples.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

/// How much the loss of each token counts.
enum class TokenWeights : std::uint8_t { Equal, Probability, Entropy };
constexpr auto kTokenWeights =
    std::to_array<config::Named<TokenWeights>>({{TokenWeights::Equal, "equal"},
                                                {TokenWeights::Probability, "probability"},
                                                {TokenWeights::Entropy, "entropy"}});

constexpr auto kPackings =
    std::to_array<config::Named<Packing>>({{Packing::BestFit, "bfd"},
                                           {Packing::BestFitSplit, "bfd_split"},
                                           {Packing::FirstFit, "ffd"},
                                           {Packing::InOrder, "sequential"},
                                           {Packing::Wrapped, "wrapped"}});

struct SftOptions {
  LossOn loss_on = LossOn::Auto;
  Packing packing = Packing::BestFit;
  Truncation truncation = Truncation::KeepStart;
  std::string chat_template;
  bool drop_system = false;
  TokenWeights token_weights = TokenWeights::Equal;
  json::Value token_weight_params = json::Value::object();
  double neftune_alpha = 0.0;
  void describe(config::Fields& fields) {
    fields.choice(
        "loss_on",
        loss_on,
        kLossOn,
        {.text = "Which tokens are learned: those of the assistant's turns (assistant), of "
                 "its last turn, of the completion of a prompt, or all; auto: assistant "
                 "for conversations, completion for prompts, all for texts. A message with "
                 "\"train\": false or \"weight\": 0 is not learned."});
    fields.choice(
        "packing",
        packing,
        kPackings,
        {.text =
             "How texts are packed if data.pack is true: bfd (best fit, the longest first), "
             "bfd_split (the same, with too long texts cut into pieces), ffd (first fit), "
             "sequential (in order), wrapped (one stream, in which texts attend to each other)."});
    fields.choice(
        "truncation",
        truncation,
        kTruncations,
        {.text = "Which end of a text that is longer than data.sequence_length is kept."});
    fields.field("chat_template",
                 chat_template,
                 {.text = "File with a chat template in Jinja, or chatml.",
                  .default_text = "the one of the model's folder"});
    fields.field("drop_system",
                 drop_system,
                 {.text = "Leave out the system text with which a conversation begins."});
    fields.choice(
        "token_weights",
        token_weights,
        kTokenWeights,
        {.text =
             "Weight of each token's cross-entropy, without a gradient: equal; probability, the "
             "model's probability of the token (DFT); entropy, the entropy of the likeliest "
             "tokens (EAFT)."});
    fields.field(
        "token_weight_params",
        token_weight_params,
        {.text = "With token_weights entropy: alpha (1), the weight's exponent; top_k (20), "
                 "the number of the likeliest tokens; scale (3), by which their entropy is "
                 "divided.",
         .default_text = "{}",
         .type = "object"});
    fields.field("neftune_alpha",
                 neftune_alpha,
                 {.text = "Noise on embeddings while training (NEFTune): uniform within alpha / "
                          "sqrt(tokens of a sample x hidden size); 5 is common.",
                  .min = 0,
                  .max = 1e6});
  }
};

class Sft final : public RecordTask, public EmbeddingNoise {
 public:
  explicit Sft(SftOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override {
    return options_.token_weights == TokenWeights::Equal ? "causal_lm" : "weighted_lm";
  }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& /*data*/) const override {
    if (options_.token_weights == TokenWeights::Equal) return json::Value::object();
    json::Value out = options_.token_weight_params;
    out["weights"] =
        json::Value::string(std::string(config::name_of(kTokenWeights, options_.token_weights)));
    return out;
  }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::NextToken; }
  [[nodiscard]] bool has_answers() const override { return true; }
  [[nodiscard]] bool packs_records() const override { return true; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] double noise_alpha() const override { return options_.neftune_alpha; }
  [[nodiscard]] std::vector<std::string> formats() const override {
    std::vector<std::string> out;
    for (const auto& form : kForms)
      out.emplace_back(form.name);
    return out;
  }

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    return [this, &request](const std::vector<std::string>& names, data::Split split) {
      const data::DataOptions& data = request.options;
      const auto chat = open_chat_template(options_.chat_template,
                                           {request.model_folder, request.tokenizer_folder},
                                           request.tokenizer);
      auto out = std::make_unique<SftSamples>(SftSamplesOptions{
          .length = request.sequence_length,
          .pad_id = request.tokenizer.padding(),
          .packing = data.pack ? options_.packing : Packing::None,
          .truncation = options_.truncation,
          .loss_on = options_.loss_on,
          .form = data.format == "auto" ? std::nullopt
                                        : std::optional(config::value_of(kForms, data.format)),
          .text_field = data.text_field,
          .drop_system = options_.drop_system});
      out->read_files(
          data::record_files(names, split),
          record_options(data,
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]} or "
                         "{\"prompt\": \"...\", \"completion\": \"...\"}"),
          ConversationTokenizer(request.tokenizer, chat ? &*chat : nullptr),
          request.how.poll);
      if (out->unlearned() > 0) {
        log::warn_once(fmt::format("{} of {} records have no token to learn{} and are left out",
                                   text::with_commas(out->unlearned()),
                                   text::with_commas(out->stats().documents),
                                   out->cut() > 0 ? " within data.sequence_length" : ""));
      }
      return out;
    };
  }

  SftOptions options_;
};

std::unique_ptr<Task> make_sft(const json::Value& params,
                               config::Problems& problems,
                               config::Origins& origins) {
  SftOptions options;
  config::read(params, options, problems, origins);
  if (!options.token_weight_params.is_object() ||
      (options.token_weights != TokenWeights::Entropy &&
       !options.token_weight_params.members().empty())) {
    problems.add(origins.place("token_weight_params"),
                 "token_weight_params",
                 "token_weight_params are of token_weights entropy alone, as an object",
                 "remove it, or write {\"alpha\": 1.0}");
    options.token_weight_params = json::Value::object();
  }
  return std::make_unique<Sft>(std::move(options));
}

TESSERA_TASK("sft", make_sft);

}  // namespace
}  // namespace tessera::tasks
