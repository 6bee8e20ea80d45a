// SPDX-License-Identifier: Apache-2.0
// JetMoE: experts in attention, each with its own projections to queries and back, and experts
// instead of the MLP. Source: Shen et al. 2024, "JetMoE: reaching Llama2 performance with 0.1M
// dollars".
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder_family.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("jetmoe-nano", 4, 128, 8, 4, 176, 32),
      {"jetmoe-8b", 24, 2048, 32, 16, 5632, 4096, 32000, {}, 128},
  };
  // clang-format on
  return all;
}

struct JetMoeOptions final : DecoderOptions {
  JetMoeOptions() {
    tie_embeddings = true;
    init_std = 0.01;
    moe.num_experts = 8;
    use_pooled_balance(moe, 0.01);
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<JetMoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_rest(fields);
  }
};

void specialize(const JetMoeOptions& /*options*/, DecoderShape& shape) {
  if (!shape.experts) return;
  shape.expert_attention = true;
  shape.experts->sum_bias_name = "mlp.experts_bias";
}

void check(const JetMoeOptions& options, const DecoderShape& shape, Checks& checks) {
  const MoeOptions& moe = options.moe;
  checks.require(moe.num_experts > 0,
                 "model.moe.num_experts",
                 "num_experts is 0, and this family has experts in attention",
                 "choose a family without experts");
  checks.require(shape.num_heads == shape.kv_heads() * moe.top_k,
                 "model.num_heads",
                 fmt::format("num_heads is {}, and each of the {} experts of a token has {} heads",
                             shape.num_heads,
                             moe.top_k,
                             shape.kv_heads()),
                 fmt::format("set num_heads to {}", shape.kv_heads() * moe.top_k));
  const bool everywhere = moe.every == 1 && moe.first_dense == 0 && moe.layers.empty();
  checks.require(everywhere,
                 "model.moe.every",
                 "some layers have no experts, and attention has them in all layers",
                 "leave every, first_dense and layers at their defaults");
  const MoeOptions::Router& router = moe.router;
  checks.require(moe.capacity == 0 && !router.correction && router.bias_update == 0 &&
                     !router.bias && !router.weighs_inputs && moe.shared_width(1) == 0,
                 "model.moe",
                 "experts in attention have no capacity, correction, bias or shared experts",
                 "leave these keys at their defaults");
}

const HfDecoder kHf = {.model_type = "jetmoe",
                       .architecture = "JetMoeForCausalLM",
                       .layers = 12,
                       .hidden = 2048,
                       .heads = 32,
                       .positions = 4096,
                       .ffn = 5632,
                       .kv_heads = 16,
                       .head_dim = 128,
                       .activation_key = "activation_function",
                       .tied = true,
                       .has_experts = true};

void read(const HfConfig& keys, JetMoeOptions& out) {
  out.moe.num_experts = keys.count("num_local_experts", 8, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 2, 1e5);
  out.num_kv_heads = keys.count("num_key_value_heads", 16, 1e6);
  out.num_heads = *out.num_kv_heads * out.moe.top_k;
  const bool same = keys.empty("num_attention_heads") ||
                    keys.count("num_attention_heads", 0, 1e6) == *out.num_heads;
  keys.refuse("num_attention_heads", same, "num_key_value_heads x num_experts_per_tok");
  out.head_dim = keys.count("kv_channels", 128, 1e6);
  out.init_std = keys.number("initializer_range", 0.01, 0, 100);
  read_balance(keys, out.moe, 0.01, "aux_loss_coef");
}

void write(const JetMoeOptions& options, json::Value& out) {
  require_plain_experts(options, kHf.architecture.c_str(), /*normalized=*/true);
  write_experts(options, kHf.architecture.c_str(), {}, false, "num_local_experts", out);
  write_balance(options.moe, out, "aux_loss_coef");
  out["kv_channels"] = *out.find("head_dim");
  std::erase_if(out.members(), [](const auto& one) { return one.first == "head_dim"; });
}

Composition compose(const ParamInfo& info) {
  static const StackedNames names = {.module = "mlp"};
  static const std::map<std::string, std::string> attention = {
      {"gate.weight", "experts.router.layer.weight"},
      {"experts.q_proj.weight", "experts.input_linear.weight"},
      {"experts.o_proj.weight", "experts.output_linear.weight"},
      {"experts.bias", "experts.bias"},
      {"kv_proj.weight", "kv_proj.weight"}};
  const std::string theirs = "model." + info.name, ours = ".self_attn.", bias = ".mlp.experts_bias";
  if (theirs.ends_with(bias))
    return Composition::of(theirs.substr(0, theirs.size() - bias.size()) + ".mlp.bias", info.shape);
  const std::size_t at = theirs.find(ours);
  if (at != std::string::npos) {
    return Composition::of(
        theirs.substr(0, at) + ".self_attention." + attention.at(theirs.substr(at + ours.size())),
        info.shape);
  }
  return is_of_experts(info) ? compose_stacked_experts(info, "model.", names)
                             : compose_decoder(info);
}

TESSERA_MODEL("jetmoe",
              DecoderFamilyOf<JetMoeOptions>{.presets = presets(),
                                             .hf = kHf,
                                             .specialize = specialize,
                                             .check = check,
                                             .read = read,
                                             .write = write,
                                             .weight_map = decoder_weights(compose),
                                             .adjustable = adjustable_with_experts()});

}  // namespace
}  // namespace tessera::models
