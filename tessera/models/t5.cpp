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
                .head_dim = head_dim,
                .vocab_size = kVocabulary};
  if (gated) {
    out.values = {
        {"activation", std::string("gelu_tanh")}, {"gated", true}, {"tie_embeddings", false}};
  }
  return out;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out = {
        {.name = "t5-nano", .num_layers = 2, .hidden_size = 128, .num_heads = 4, .bytes = true},
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
  const auto layers_of = [&](const char* key) {
    const json::Value* given = config.find(key);
    return given == nullptr || given->is_null() ? facts.find("num_layers")->dump() : given->dump();
  };
  TESSERA_REQUIRE(layers_of("num_decoder_layers") == layers_of("num_encoder_layers"),
                  Unsupported,
                  fmt::format("config.json: {} layers read and {} write",
                              layers_of("num_encoder_layers"),
                              layers_of("num_decoder_layers")),
                  "a T5 of ModelCenter is read with as many of both");
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

/// The modules of an attention block of ModelCenter and of transformers.
void add_attention(NamePairs& out,
                   const std::string& theirs,
                   const std::string& layer,
                   const char* ours) {
  out.emplace_back(theirs + ".layernorm_before_attention", layer + ".layer_norm");
  for (const char* which : {"q", "k", "v"})
    out.emplace_back(fmt::format("{}.self_attention.project_{}", theirs, which),
                     fmt::format("{}.{}.{}", layer, ours, which));
  out.emplace_back(theirs + ".self_attention.attention_out", fmt::format("{}.{}.o", layer, ours));
}

NamePairs modelcenter_names(std::int64_t layers) {
  NamePairs out = {{"input_embedding", "shared"}, {"output_projection", "lm_head"}};
  for (const bool writes : {false, true}) {
    const std::string stack = writes ? "decoder" : "encoder", mlp = writes ? "layer.2" : "layer.1";
    out.emplace_back(stack + ".output_layernorm", stack + ".final_layer_norm");
    out.emplace_back(writes ? "position_bias_dec.relative_attention_bias"
                            : "position_bias_enc.relative_attention_bias",
                     stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    NamePairs modules = {{"ffn.layernorm_before_ffn", mlp + ".layer_norm"},
                         {"ffn.ffn.w_in.w", mlp + ".DenseReluDense.wi"},
                         {"ffn.ffn.w_in.w_0", mlp + ".DenseReluDense.wi_0"},
                         {"ffn.ffn.w_in.w_1", mlp + ".DenseReluDense.wi_1"},
                         {"ffn.ffn.w_out", mlp + ".DenseReluDense.wo"}};
    add_attention(modules, "self_att", "layer.0", "SelfAttention");
    if (writes) add_attention(modules, "cross_att", "layer.1", "EncDecAttention");
    add_layers(out, layers, stack + ".layers", stack + ".block", modules);
  }
  return out;
}

// With a tied head, ModelCenter does not scale the hidden states, which transformers' T5 cannot
// express.
TESSERA_MODELCENTER(
    "t5",
    {.class_name = "T5",
     .is_of =
         [](const ModelCenterFile& file) {
           return file.has("decoder.layers.0.cross_att.self_attention.project_q.weight") &&
                  file.has("position_bias_enc.relative_attention_bias");
         },
     .computes = {{"post_layer_norm", json::Value::boolean(false)},
                  {"norm_bias", json::Value::boolean(false)},
                  {"att_bias", json::Value::boolean(false)},
                  {"ffn_bias", json::Value::boolean(false)},
                  {"proj_bias", json::Value::boolean(false)},
                  {"attn_scale", json::Value::boolean(false)},
                  {"length_scale", json::Value::boolean(false)},
                  {"tied", json::Value::boolean(false)}},
     .config_of = modelcenter_config,
     .names = modelcenter_names,
     .head = "output_projection.weight"});

}  // namespace
}  // namespace tessera::models
