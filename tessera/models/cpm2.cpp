// SPDX-License-Identifier: Apache-2.0
// CPM-2: an encoder-decoder model like T5 whose MLP has a gate with the exact gelu, with an untied
// head. Source: Zhang et al. 2021, "CPM-2: large-scale cost-effective pre-trained language models",
// and OpenBMB/ModelCenter.
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
#include "tessera/ops/relative_position.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 26240;
constexpr const char* kGelu = "gated_gelu";

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("cpm2-nano", 2, 128, 4),
      {"cpm2-11b", 24, 4096, 64, 0, 10240, 0, kVocabulary, {}, 64},
  };
  return all;
}

struct Cpm2Options final : EncoderDecoderOptions {
  Cpm2Options() {
    activation = "gelu";
    gated = true;
    tie_embeddings = false;
    drops_only_branches = true;
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Cpm2Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_all(fields, presets()); }
};

/// ModelCenter's own keys.
Cpm2Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type", keys.word("model_type", "cpm2") == "cpm2", "\"model_type\": \"cpm2\"");
  Cpm2Options out;
  out.num_layers = keys.count("num_encoder_layers", 12, 1e4);
  out.num_decoder_layers = keys.count("num_decoder_layers", 12, 1e4);
  out.hidden_size = keys.count("dim_model", 768, 1e6);
  out.num_heads = keys.count("num_heads", 12, 1e6);
  out.head_dim = keys.count("dim_head", 64, 1e6);
  out.ffn_hidden_size = keys.count("dim_ff", 256, 1e7);
  out.vocab_size = keys.count("vocab_size", kVocabulary, 1e8);
  out.position_buckets = keys.count("position_bias_num_buckets", 32, 1e5);
  out.position_max_distance = keys.count("position_bias_max_distance", 128, 1e8);
  keys.refuse("position_bias_num_buckets",
              out.position_buckets >= ops::least_buckets(/*bidirectional=*/true) &&
                  out.position_max_distance > out.position_buckets / 2,
              "at least 4 buckets, of which half reach less far than the longest distance");
  keys.refuse("ffn_activate_fn", keys.word("ffn_activate_fn", kGelu) == kGelu, kGelu);
  for (const char* key :
       {"norm_bias", "att_bias", "ffn_bias", "proj_bias", "attn_scale", "length_scale"})
    keys.refuse(key, !keys.flag(key, false), fmt::format("{} false", key).c_str());
  keys.refuse("post_layer_norm", !keys.flag("post_layer_norm", false), "norms before branches");
  keys.refuse("cls_head", keys.empty("cls_head"), "the head of a language model");
  out.dropout = keys.number("dropout_p", 0.0, 0, kMaxDropout);
  out.rms_norm_eps = keys.number("norm_eps", 1e-6, 1e-30, 1);
  out.start_token = static_cast<std::int64_t>(keys.number("decoder_start_token_id", 0, 0, 1e8));
  out.pad_token = static_cast<std::int64_t>(keys.number("pad_token_id", 0, 0, 1e8));
  out.tie_embeddings = false;
  out.scale_output = false;
  return out;
}

json::Value to_hf(const Cpm2Options& options) {
  const auto refuse = [](bool fits, const char* what, const char* fix) {
    TESSERA_REQUIRE(fits, Unsupported, fmt::format("{}, and a CPM-2 has another", what), fix);
  };
  refuse(options.gated && options.activation == "gelu",
         "the MLP is not gated by gelu",
         "train with model.activation gelu and model.gated true");
  refuse(!options.tie_embeddings && !options.scale_output.value(),
         "the head shares the table or divides hidden states",
         "train with model.tie_embeddings and model.scale_output false");
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("CPM2")})},
       {"model_type", json::Value::string("cpm2")},
       {"is_encoder_decoder", json::Value::boolean(true)},
       {"vocab_size", integer(options.vocab_size.value())},
       {"dim_model", integer(options.hidden_size.value())},
       {"num_heads", integer(options.num_heads.value())},
       {"dim_head", integer(options.head_dim.value())},
       {"dim_ff", integer(options.ffn_hidden_size.value())},
       {"num_encoder_layers", integer(options.num_layers.value())},
       {"num_decoder_layers", integer(options.num_decoder_layers.value())},
       {"dropout_p", json::Value::number(options.dropout)},
       {"position_bias_num_buckets", integer(options.position_buckets)},
       {"position_bias_max_distance", integer(options.position_max_distance)},
       {"norm_eps", json::Value::number(options.rms_norm_eps)},
       {"ffn_activate_fn", json::Value::string(kGelu)},
       {"decoder_start_token_id", integer(options.start_token)},
       {"pad_token_id", integer(options.pad_token)}});
}

TESSERA_MODEL(
    "cpm2",
    FamilyOf<Cpm2Options>{
        .presets = presets(),
        .adjustable = {{"dropout"}, {"init_factor"}, {"label_smoothing"}},
        .resolve =
            [](const Cpm2Options& options,
               std::int64_t tokenizer_size,
               std::optional<std::int64_t> sequence_length,
               config::Problems& problems,
               const config::Origins& origins) {
              return resolve_encoder_decoder(
                  "cpm2", presets(), options, tokenizer_size, sequence_length, problems, origins);
            },
        .from_hf = from_hf,
        .to_hf = to_hf,
        .weight_map = encoder_decoder_weights(),
        .objective = "seq2seq"});

TESSERA_MODULE_ORDER("cpm2", {.modules = encoder_decoder_modules()});

json::Value modelcenter_config(const json::Value& facts, const json::Value& config) {
  json::Value out = config;
  out["model_type"] = json::Value::string("cpm2");
  for (const auto& [fact, key] : NamePairs{{"vocab_size", "vocab_size"},
                                           {"hidden_size", "dim_model"},
                                           {"ffn_hidden_size", "dim_ff"},
                                           {"num_heads", "num_heads"},
                                           {"head_dim", "dim_head"},
                                           {"norm_eps", "norm_eps"}})
    out[key] = *facts.find(fact);
  require_equal_stacks(facts, config, "CPM2");
  out["num_encoder_layers"] = out["num_decoder_layers"] = *facts.find("num_layers");
  return out;
}

TESSERA_MODELCENTER("cpm2",
                    {.class_name = "CPM2",
                     .is_of =
                         [](const ModelCenterFile& file) {
                           return is_encoder_decoder_file(file) && gate_is_gelu(file.config);
                         },
                     .computes = encoder_decoder_keys(),
                     .config_of = modelcenter_config,
                     .names = encoder_decoder_names,
                     .head = "output_projection.weight"});

}  // namespace
}  // namespace tessera::models
