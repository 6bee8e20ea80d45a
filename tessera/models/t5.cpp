// SPDX-License-Identifier: Apache-2.0
// T5 and its versions: 1.0, whose MLP uses relu and whose head is the token table; 1.1, whose MLP
// is gated and whose head has its own weight; Flan-T5, which is 1.1 trained on instructions.
// Source: Raffel et al. 2020, "Exploring the limits of transfer learning with a unified
// text-to-text transformer"; Chung et al. 2022, "Scaling instruction-finetuned language models".
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 32128;

/// A model of version 1.0 or, with `gated`, of version 1.1.
Preset published(std::string name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::int64_t ffn,
                 std::int64_t head_dim,
                 bool gated) {
  Preset out = {.name = std::move(name),
                .num_layers = layers,
                .hidden_size = hidden,
                .num_heads = heads,
                .ffn_hidden_size = ffn,
                .vocab_size = kVocabulary,
                .head_dim = head_dim};
  if (gated) {
    out.values = {
        {"activation", std::string("gelu_tanh")}, {"gated", true}, {"tie_embeddings", false}};
  }
  return out;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out = {
        nano("t5-nano", 2, 128, 4),
        published("t5-small", 6, 512, 8, 2048, 64, false),
        published("t5-base", 12, 768, 12, 3072, 64, false),
        published("t5-large", 24, 1024, 16, 4096, 64, false),
        published("t5-3b", 24, 1024, 32, 16384, 128, false),
        published("t5-11b", 24, 1024, 128, 65536, 128, false),
    };
    for (const std::string begin : {"t5-v1_1-", "flan-t5-"}) {
      out.push_back(published(begin + "small", 8, 512, 6, 1024, 64, true));
      out.push_back(published(begin + "base", 12, 768, 12, 2048, 64, true));
      out.push_back(published(begin + "large", 24, 1024, 16, 2816, 64, true));
      out.push_back(published(begin + "xl", 24, 2048, 32, 5120, 64, true));
      out.push_back(published(begin + "xxl", 24, 4096, 64, 10240, 64, true));
    }
    return out;
  }();
  return all;
}

struct T5Options final : EncoderDecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<T5Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_all(fields, presets()); }
};

TESSERA_MODEL("t5",
              EncoderDecoderFamilyOf<T5Options>{.presets = presets(),
                                                .hf = {.model_type = "t5",
                                                       .architecture = "T5ForConditionalGeneration",
                                                       .vocab = kVocabulary,
                                                       .hidden = 512,
                                                       .ffn = 2048,
                                                       .layers = 6,
                                                       .heads = 8,
                                                       .feed_forward = "relu",
                                                       .tied = true}});

TESSERA_MODULE_ORDER("t5", {.modules = encoder_decoder_modules()});

/// The value of feed_forward_proj. ModelCenter's gelu, also when gated, uses the error function;
/// that of transformers' T5 uses tanh.
std::string their_feed_forward(const json::Value& config) {
  const json::Value* given = config.find("ffn_activate_fn");
  const std::string word = given != nullptr && given->is_string() ? given->as_string() : "relu";
  if (word == "relu") return word;
  if (word == "gated_gelu_new") return "gated-gelu";
  TESSERA_REQUIRE(word == "gated_silu",
                  Unsupported,
                  fmt::format("config.json: ffn_activate_fn is {}, and a T5 of ModelCenter is read "
                              "with relu, gated_gelu_new or gated_silu",
                              word),
                  "models of this kind are not read from ModelCenter's files");
  return "gated-silu";
}

json::Value modelcenter_config(const json::Value& facts, const json::Value& config) {
  require_equal_stacks(facts, config, "T5");
  json::Value out = json::Value::object({{"model_type", json::Value::string("t5")}});
  for (const auto& [fact, key] : NamePairs{{"vocab_size", "vocab_size"},
                                           {"hidden_size", "d_model"},
                                           {"ffn_hidden_size", "d_ff"},
                                           {"num_layers", "num_layers"},
                                           {"num_heads", "num_heads"},
                                           {"head_dim", "d_kv"},
                                           {"norm_eps", "layer_norm_epsilon"}})
    out[key] = *facts.find(fact);
  for (const auto& [theirs, key] :
       NamePairs{{"position_bias_num_buckets", "relative_attention_num_buckets"},
                 {"position_bias_max_distance", "relative_attention_max_distance"},
                 {"dropout_p", "dropout_rate"}}) {
    const json::Value* given = config.find(theirs);
    if (given != nullptr && given->is_number()) out[key] = *given;
  }
  out["feed_forward_proj"] = json::Value::string(their_feed_forward(config));
  out["tie_word_embeddings"] = json::Value::boolean(false);
  return out;
}

// With a tied head, ModelCenter does not scale the hidden states, which transformers' T5 cannot
// express.
TESSERA_MODELCENTER("t5",
                    {.class_name = "T5",
                     .is_of =
                         [](const ModelCenterFile& file) {
                           return is_encoder_decoder_file(file) && !gate_is_gelu(file.config);
                         },
                     .computes = encoder_decoder_keys(),
                     .config_of = modelcenter_config,
                     .names = encoder_decoder_names,
                     .head = "output_projection.weight"});

}  // namespace
}  // namespace tessera::models
