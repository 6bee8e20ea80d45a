// SPDX-License-Identifier: Apache-2.0
// Phi 3: files hold queries, keys and values in one matrix, and gate and up projections in another.
// Source: Abdin et al. 2024, "Phi-3 technical report".
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "phi3-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "phi3-mini",
       .num_layers = 32,
       .hidden_size = 3072,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 8192},
  };
  return all;
}

struct Phi3Options final : DecoderOptions {
  double rotary_share = 1.0, embedding_dropout = 0.0, residual_dropout = 0.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Phi3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("rotary_share",
                 rotary_share,
                 {.text = "Share of the channels of a head that rotary positions turn.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    fields.field("embedding_dropout",
                 embedding_dropout,
                 {.text = "Dropout probability on embeddings.", .min = 0, .max = kMaxDropout});
    fields.field("residual_dropout",
                 residual_dropout,
                 {.text = "Dropout probability on the outputs of attention and MLP.",
                  .min = 0,
                  .max = kMaxDropout});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const Phi3Options&>(options);
  shape.rotary_share = own.rotary_share;
  shape.embedding_dropout = own.embedding_dropout;
  shape.residual_dropout = own.residual_dropout;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
}

Resolved resolve_phi3(const Phi3Options& options,
                      std::int64_t tokenizer_size,
                      std::optional<std::int64_t> sequence_length,
                      config::Problems& problems,
                      const config::Origins& origins) {
  return resolve_decoder(
      {"phi3", presets(), specialize}, options, tokenizer_size, sequence_length, problems, origins);
}

const DecoderDefaults kDefaults = {.model_type = "phi3",
                                   .hidden = 3072,
                                   .vocab = 32064,
                                   .positions = 4096,
                                   .ffn = 8192,
                                   .rms_norm_eps = 1e-5};

Phi3Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Phi3Options out;
  read_decoder(keys, kDefaults, out);
  out.sliding_window = keys.count_or_null("sliding_window", 1e8);
  out.rotary_share = partial_rotary_factor(keys, 1.0);
  out.embedding_dropout = keys.number("embd_pdrop", 0.0, 0, kMaxDropout);
  out.residual_dropout = keys.number("resid_pdrop", 0.0, 0, kMaxDropout);
  return out;
}

json::Value to_hf(const Phi3Options& options) {
  json::Value out = decoder_to_hf(options, "Phi3ForCausalLM", kDefaults);
  out["sliding_window"] = window_to_hf(options);
  set_partial_rotary_factor(out, options.rotary_share);
  out["embd_pdrop"] = json::Value::number(options.embedding_dropout);
  out["resid_pdrop"] = json::Value::number(options.residual_dropout);
  out["original_max_position_embeddings"] = json::Value::integer(options.max_positions.value());
  return out;
}

TESSERA_MODEL("phi3",
              FamilyOf<Phi3Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_phi3,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights(compose_fused_decoder)});

TESSERA_MODULE_ORDER("phi3",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.self_attn.qkv_proj",
                                  "model.layers.*.mlp.gate_up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
