// SPDX-License-Identifier: Apache-2.0
// DeepSeek V2: latent attention, and a softmax over all experts whose weights are not normalized.
// Source: DeepSeek-AI 2024, "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts
// language model".
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
      nano("deepseek-v2-nano", 4, 128, 4, 0, 352, 48),
      {"deepseek-v2-lite", 27, 2048, 16, 0, 10944, 163840, 102400,
       values_of({.experts = 64, .top_k = 6, .width = 1408, .shared = 2, .mscale = 0.707}), 192},
      {"deepseek-v2", 60, 5120, 128, 0, 12288, 163840, 102400,
       values_of({.q_lora_rank = 1536, .experts = 160, .top_k = 6, .width = 1536, .shared = 2, .groups = 8, .top_groups = 3, .scale = 16.0}), 192},
  };
  // clang-format on
  return all;
}

struct DeepseekV2Options final : DeepseekOptions {
  DeepseekV2Options() {
    moe.router.normalize = false;
    moe.router.group_rank = "best";
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<DeepseekV2Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_deepseek(fields, presets()); }
};

void specialize(const DeepseekV2Options& options, DecoderShape& shape) {
  specialize_deepseek(options, shape);
}

const HfDecoder kHf = {.model_type = "deepseek_v2",
                       .architecture = "DeepseekV2ForCausalLM",
                       .vocab = 102400,
                       .has_attention_bias = true,
                       .has_mlp_bias = true,
                       .has_experts = true};
constexpr const char *kGreedy = "greedy", *kGrouped = "group_limited_greedy";

void read(const HfConfig& keys, DeepseekV2Options& out) {
  read_deepseek(keys, out);
  keys.refuse("mlp_bias", !out.mlp_bias, "false");
  keys.refuse("num_experts_per_tok", !keys.empty("num_experts_per_tok"), "a number");
  MoeOptions& moe = out.moe;
  moe.num_experts = keys.count("n_routed_experts", 64, 1e5);
  moe.top_k = keys.count("num_experts_per_tok", 1, 1e5);
  if (!keys.given("n_shared_experts")) moe.shared = 2;
  moe.router.scale = keys.number("routed_scaling_factor", 1.0, 1e-30, 1e6);
  const std::string method = keys.word("topk_method", kGreedy);
  keys.refuse("topk_method", method == kGreedy || method == kGrouped, "a published method");
  keys.refuse("scoring_func", keys.word("scoring_func", "softmax") == "softmax", "\"softmax\"");
  if (method == kGreedy) return;
  moe.router.groups = keys.count("n_group", 1, 1e5);
  moe.router.top_groups = keys.count("topk_group", 1, 1e5);
}

void write(const DeepseekV2Options& options, json::Value& out) {
  MoeOptions::Router known;
  known.normalize = false;
  TESSERA_REQUIRE(!options.moe.router.normalize && options.rope_interleaved,
                  Unsupported,
                  "Hugging Face's DeepseekV2ForCausalLM does not normalize the weights of experts, "
                  "and rotates neighbouring channels",
                  "leave model.moe.router.normalize and model.rope_interleaved at their defaults");
  write_deepseek(options, kHf.architecture.c_str(), known, out);
  out["scoring_func"] = json::Value::string("softmax");
  out["topk_method"] = json::Value::string(options.moe.router.groups > 1 ? kGrouped : kGreedy);
}

TESSERA_MODEL("deepseek_v2",
              DecoderFamilyOf<DeepseekV2Options>{.presets = presets(),
                                                 .hf = kHf,
                                                 .specialize = specialize,
                                                 .read = read,
                                                 .write = write,
                                                 .weight_map = deepseek_weights(),
                                                 .adjustable = adjustable_with_experts()});

GgufNames::Values derived_deepseek_v2_gguf(const json::Value& config) {
  const json::Value* groups = config.find("n_group");
  const bool grouped = groups != nullptr && groups->is_number() && groups->as_double() > 1;
  return {{"topk_method", json::Value::string(grouped ? kGrouped : kGreedy)}};
}

TESSERA_GGUF_NAMES("deepseek_v2", [] {
  GgufNames names = deepseek_gguf_names("DeepseekV2ForCausalLM", "deepseek_v2", /*gating=*/1);
  names.fixed_flags = {{"expert_weights_norm", false}};
  names.derived = derived_deepseek_v2_gguf;
  names.exact.clear();  // no correction
  names.stored_as = "deepseek2";
  return names;
}());

}  // namespace
}  // namespace tessera::models
