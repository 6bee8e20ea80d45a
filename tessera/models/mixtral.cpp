// SPDX-License-Identifier: Apache-2.0
// Mixtral: Mistral with experts in every layer, of which each token uses some. Source: Jiang et al.
// 2024, "Mixtral of experts".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/megatron_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("mixtral-nano", 4, 128, 4, 2, 176),
      {"mixtral-8x7b",  32, 4096, 32, 8, 14336, 32768, 32000, {{"rope_theta", 1e6}, {"moe.losses.balance", 0.02}}},
      {"mixtral-8x22b", 56, 6144, 48, 8, 16384, 65536, 32000, {{"rope_theta", 1e6}}},
  };
  // clang-format on
  return all;
}

struct MixtralOptions final : DecoderOptions {
  MixtralOptions() {
    moe.num_experts = 8;
    use_pooled_balance(moe, 0.001);
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<MixtralOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const MixtralOptions& options, DecoderShape& shape) {
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
}

const HfDecoder kHf = {.model_type = "mixtral",
                       .architecture = "MixtralForCausalLM",
                       .positions = 131072,
                       .ffn = 14336,
                       .kv_heads = 8,
                       .rms_norm_eps = 1e-5,
                       .rope_theta = 1e6,
                       .has_experts = true};

void read(const HfConfig& keys, MixtralOptions& out) {
  read_layer_types(keys, out);
  out.sliding_window = keys.count_or_null("sliding_window", 1e8);
  out.moe.num_experts = keys.count("num_local_experts", 8, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 2, 1e5);
  read_balance(keys, out.moe, 0.001);
  refuse_jitter(keys, "router_jitter_noise");
}

void write(const MixtralOptions& options, json::Value& out) {
  out["sliding_window"] = window_to_hf(options);
  require_plain_experts(options, kHf.architecture.c_str(), /*normalized=*/true);
  write_experts(options, kHf.architecture.c_str(), {}, false, "num_local_experts", out);
  write_balance(options.moe, out);
  out["router_jitter_noise"] = real_to_hf(0.0);
}

constexpr const char* kModule = "block_sparse_moe";

Composition compose(const ParamInfo& info) {
  static const ExpertNames names = {.router = std::string(kModule) + ".gate",
                                    .experts = std::string(kModule) + ".experts",
                                    .gate = "w1",
                                    .up = "w3",
                                    .down = "w2"};
  return is_of_experts(info) ? compose_experts(info, "model.", names) : compose_decoder(info);
}

TESSERA_MODEL("mixtral",
              DecoderFamilyOf<MixtralOptions>{.presets = presets(),
                                              .hf = kHf,
                                              .specialize = specialize,
                                              .read = read,
                                              .write = write,
                                              .weight_map = decoder_weights(compose),
                                              .adjustable = adjustable_with_experts()});

TESSERA_MEGATRON_NAMES("mixtral",
                       {.kind = {.experts = true},
                        .architecture = kHf.architecture,
                        .model_type = kHf.model_type,
                        .of_experts = {.router = std::string(kModule) + ".gate",
                                       .experts = std::string(kModule) + ".experts",
                                       .gate = "w1",
                                       .up = "w3",
                                       .down = "w2",
                                       .count_key = "num_local_experts",
                                       .width_key = "intermediate_size",
                                       .normalized_key = "",
                                       .dense_key = ""}});

TESSERA_GGUF_NAMES("mixtral", [] {
  GgufNames names = rotary_decoder_names("MixtralForCausalLM", "mixtral");
  names.keys.push_back({kGgufWindow, "sliding_window", /*real=*/false, /*required=*/false});
  names.implied.emplace_back("layer_types", json::Value());
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  remove_dense_modules(names);
  const std::string module = std::string("model.layers.*.") + kModule;
  add_experts(names,
              {.router = module + ".gate",
               .experts = module + ".experts",
               .gate = "w1",
               .up = "w3",
               .down = "w2",
               .count_key = "num_local_experts"});
  names.stored_as = "llama";
  names.rotary_factors = true;
  return names;
}());

}  // namespace
}  // namespace tessera::models
