// SPDX-License-Identifier: Apache-2.0
// DeepSeek V3 and R1: latent attention, and a router of sigmoids with a correction that balances
// the experts without a loss. Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/deepseek.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("deepseek-v3-nano", 4, 128, 4, 0, 352, 48),
      {"deepseek-v3", 61, 7168, 128, 0, 18432, 163840, 129280,
       values_of({.q_lora_rank = 1536, .experts = 256, .top_k = 8, .width = 2048, .first_dense = 3, .groups = 8, .top_groups = 4, .scale = 2.5}), 192},
  };
  // clang-format on
  return all;
}

MoeOptions::Router published_router() {
  MoeOptions::Router out;
  out.score = "sigmoid";
  out.correction = true;
  out.normalize = true;
  out.normalize_eps = 1e-20;
  return out;
}

struct DeepseekV3Options final : DeepseekOptions {
  DeepseekV3Options() { moe.router = published_router(); }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<DeepseekV3Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_deepseek(fields, presets()); }
};

void specialize(const DeepseekV3Options& options, DecoderShape& shape) {
  specialize_deepseek(options, shape);
}

const HfDecoder kHf = {.model_type = "deepseek_v3",
                       .architecture = "DeepseekV3ForCausalLM",
                       .layers = 61,
                       .hidden = 7168,
                       .heads = 128,
                       .vocab = 129280,
                       .positions = 4096,
                       .ffn = 18432,
                       .has_attention_bias = true,
                       .has_experts = true};

void read(const HfConfig& keys, DeepseekV3Options& out) {
  read_deepseek(keys, out);
  MoeOptions& moe = out.moe;
  moe.num_experts = keys.count("n_routed_experts", 256, 1e5);
  moe.top_k = keys.count("num_experts_per_tok", 8, 1e5);
  if (!keys.given("moe_intermediate_size")) moe.ffn_hidden_size = 2048;
  if (!keys.given("n_shared_experts")) moe.shared = 1;
  if (!keys.given("first_k_dense_replace")) moe.first_dense = 3;
  moe.router.groups = keys.count("n_group", 8, 1e5);
  moe.router.top_groups = keys.count("topk_group", 4, 1e5);
  moe.router.scale = keys.number("routed_scaling_factor", 2.5, 1e-30, 1e6);
  moe.router.normalize = keys.flag("norm_topk_prob", true);
  keys.refuse("scoring_func", keys.word("scoring_func", "sigmoid") == "sigmoid", "\"sigmoid\"");
  keys.refuse("topk_method", keys.word("topk_method", "noaux_tc") == "noaux_tc", "\"noaux_tc\"");
  out.rope_interleaved = keys.flag("rope_interleave", true);
}

void write(const DeepseekV3Options& options, json::Value& out) {
  write_deepseek(options, kHf.architecture.c_str(), published_router(), out);
  out["scoring_func"] = json::Value::string("sigmoid");
  out["topk_method"] = json::Value::string("noaux_tc");
  out["rope_interleave"] = json::Value::boolean(options.rope_interleaved);
  out["num_nextn_predict_layers"] = json::Value::integer(0);
}

TESSERA_MODEL("deepseek_v3",
              DecoderFamilyOf<DeepseekV3Options>{.presets = presets(),
                                                 .hf = kHf,
                                                 .specialize = specialize,
                                                 .read = read,
                                                 .write = write,
                                                 .weight_map = deepseek_weights(),
                                                 .adjustable = adjustable_with_experts()});

TESSERA_GGUF_NAMES("deepseek2", [] {
  GgufNames names = deepseek_gguf_names("DeepseekV3ForCausalLM", "deepseek_v3", /*gating=*/2);
  names.switches = {{"expert_weights_norm", "norm_topk_prob"}};
  names.implied.emplace_back("rope_interleave", json::Value::boolean(true));
  return names;
}());

}  // namespace
}  // namespace tessera::models
