// SPDX-License-Identifier: Apache-2.0
// Granite's mixtures of experts: factors of embeddings, scores, branches and logits, and experts
// that files store as one tensor for each projection. Source: IBM 2024, "Granite 3.0 language
// models".
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

std::vector<PresetValue> published(std::int64_t experts) {
  return {{"moe.num_experts", experts},
          {"moe.top_k", std::int64_t{8}},
          {"embedding_multiplier", 12.0},
          {"attention_multiplier", 0.015625},
          {"residual_multiplier", 0.22},
          {"logits_scaling", 6.0}};
}

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("granitemoe-nano", 4, 128, 4, 2, 96),
      {"granite-3.0-1b-a400m", 24, 1024, 16, 8, 512, 4096, 49155, published(32)},
      {"granite-3.0-3b-a800m", 32, 1536, 24, 8, 512, 4096, 49155, published(40)},
  };
  // clang-format on
  return all;
}

struct GraniteMoeOptions final : DecoderOptions {
  GraniteMoeOptions() {
    tie_embeddings = true;
    moe.num_experts = 8;
    use_pooled_balance(moe, 0.001);
  }
  double embedding_multiplier = 1.0, attention_multiplier = 0.0, residual_multiplier = 1.0,
         logits_scaling = 1.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<GraniteMoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_factor(
        fields, "embedding_multiplier", embedding_multiplier, "Factor of the embeddings.");
    fields.field(
        "attention_multiplier",
        attention_multiplier,
        {.text = "Factor of attention scores; 0: 1 / sqrt(head_dim).", .min = 0, .max = 1e6});
    describe_factor(fields,
                    "residual_multiplier",
                    residual_multiplier,
                    "Factor of the outputs of attention and of experts.");
    describe_factor(fields, "logits_scaling", logits_scaling, "Divisor of the logits.");
    describe_attention_bias(fields);
    describe_rest(fields);
  }
};

void specialize(const GraniteMoeOptions& options, DecoderShape& shape) {
  if (options.embedding_multiplier != 1.0) shape.embedding_scale = options.embedding_multiplier;
  shape.attention_scale = options.attention_multiplier;
  shape.branch_factor = options.residual_multiplier;
  shape.state_factor = 1.0 / options.logits_scaling;
}

const HfDecoder kHf = {.model_type = "granitemoe",
                       .architecture = "GraniteMoeForCausalLM",
                       .has_attention_bias = true,
                       .has_experts = true};

void read(const HfConfig& keys, GraniteMoeOptions& out) {
  const auto factor = [&](const char* key) { return keys.number(key, 1.0, 1e-30, 1e6); };
  out.embedding_multiplier = factor("embedding_multiplier");
  out.attention_multiplier = factor("attention_multiplier");
  out.residual_multiplier = factor("residual_multiplier");
  out.logits_scaling = factor("logits_scaling");
  out.moe.num_experts = keys.count("num_local_experts", 8, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 2, 1e5);
  keys.refuse("shared_intermediate_size",
              keys.empty("shared_intermediate_size"),
              "no shared experts, which granitemoe does not have");
  read_balance(keys, out.moe, 0.001);
}

void write(const GraniteMoeOptions& options, json::Value& out) {
  require_plain_experts(options, kHf.architecture.c_str(), /*normalized=*/true);
  write_experts(options, kHf.architecture.c_str(), {}, false, "num_local_experts", out);
  write_balance(options.moe, out);
  const std::int64_t head = options.head_dim.value_or(*options.hidden_size / *options.num_heads);
  const double plain = 1.0 / std::sqrt(static_cast<double>(head));
  out["embedding_multiplier"] = real_to_hf(options.embedding_multiplier);
  out["attention_multiplier"] =
      real_to_hf(options.attention_multiplier > 0 ? options.attention_multiplier : plain);
  out["residual_multiplier"] = real_to_hf(options.residual_multiplier);
  out["logits_scaling"] = real_to_hf(options.logits_scaling);
}

Composition compose(const ParamInfo& info) {
  if (!is_of_experts(info)) return compose_decoder(info);
  static const StackedNames names = {.module = "block_sparse_moe"};
  return compose_stacked_experts(info, "model.", names);
}

TESSERA_MODEL("granitemoe",
              DecoderFamilyOf<GraniteMoeOptions>{.presets = presets(),
                                                 .hf = kHf,
                                                 .specialize = specialize,
                                                 .read = read,
                                                 .write = write,
                                                 .weight_map = decoder_weights(compose),
                                                 .adjustable = adjustable_with_experts()});

TESSERA_GGUF_NAMES("granitemoe", [] {
  GgufNames names = rotary_decoder_names("GraniteMoeForCausalLM", "granitemoe");
  for (const auto& [gguf, config] : {std::pair("embedding_scale", "embedding_multiplier"),
                                     std::pair("attention.scale", "attention_multiplier"),
                                     std::pair("residual_scale", "residual_multiplier"),
                                     std::pair("logit_scale", "logits_scaling")})
    names.keys.push_back({gguf, config, /*real=*/true});
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  remove_dense_modules(names);
  const std::string module = "model.layers.*.block_sparse_moe";
  add_experts(names, {.router = module + ".router.layer", .count_key = "num_local_experts"});
  names.stacked.clear();
  using Parts = GgufNames::Parts;
  names.parts = {
      Parts{.theirs = module + ".input_linear.weight",
            .files = {"blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"}},
      Parts{.theirs = module + ".output_linear.weight", .files = {"blk.*.ffn_down_exps.weight"}}};
  return names;
}());

}  // namespace
}  // namespace tessera::models
