// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/torchtitan/command_models.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tessera::interop::torchtitan {
namespace {

struct Flavor {
  std::string_view model, flavor, keys;
  /// Added for sequences longer than `scaled_above`.
  std::string_view scaled = "{}";
  std::int64_t scaled_above = 0;
};

// DeepSeek V3 scales its positions, and sharpens its attention, where sequences are longer than
// those of its original training.
#define TESSERA_YARN(mscale)                                                         \
  R"({"rope_scaling": "yarn", "rope_factor": 40, "rope_original_positions": 4096, )" \
  R"("rope_mscale": )" mscale R"(, "rope_mscale_all_dim": )" mscale "}"
constexpr std::int64_t kOriginal = 4096;

// Llama 4 with the frequencies of its longest variants, without norms of queries and keys.
#define TESSERA_LLAMA4(more)                                              \
  R"({"family": "llama4_text", "rope_theta": 500000, "qk_norm": false, )" \
  R"("temperature_scale": 0, "tie_embeddings": false, )" more "}"
#define TESSERA_LLAMA4_SCALED                                                     \
  R"(, "rope_scaling": "llama3", "rope_factor": 16, "rope_low_freq_factor": 1, )" \
  R"("rope_high_freq_factor": 1, "rope_original_positions": 8192)"
#define TESSERA_LLAMA4_NANO                                                           \
  R"("hidden_size": 256, "num_layers": 6, "num_heads": 16, "ffn_hidden_size": 768, )" \
  R"("moe": {"num_experts": 8, "top_k": 1, "ffn_hidden_size": 512, "shared": 1, )"    \
  R"("every": 2, "router": {"bias_update": 0.001}})" TESSERA_LLAMA4_SCALED

constexpr auto kFlavors = std::to_array<Flavor>({
    {"llama3",
     "debugmodel",
     R"({"family": "llama", "hidden_size": 256, "num_layers": 6, "num_heads": 16,
         "ffn_hidden_size": 768, "rope_theta": 500000, "tie_embeddings": false})"},
    {"llama3", "8B", R"({"preset": "llama3.1-8b"})"},
    {"llama3", "70B", R"({"preset": "llama3.1-70b"})"},
    {"llama3", "405B", R"({"preset": "llama3.1-405b"})"},
    {"qwen3",
     "debugmodel",
     R"({"family": "qwen3", "hidden_size": 256, "num_layers": 8, "num_heads": 16,
         "num_kv_heads": 8, "head_dim": 128, "ffn_hidden_size": 3072, "rope_theta": 1000000,
         "rms_norm_eps": 1e-6, "tie_embeddings": true})"},
    {"qwen3", "0.6B", R"({"preset": "qwen3-0.6b"})"},
    {"qwen3", "1.7B", R"({"preset": "qwen3-1.7b"})"},
    {"qwen3", "4B", R"({"preset": "qwen3-4b"})"},
    {"qwen3", "8B", R"({"preset": "qwen3-8b"})"},
    {"qwen3", "14B", R"({"preset": "qwen3-14b"})"},
    {"qwen3", "32B", R"({"preset": "qwen3-32b"})"},
    {"qwen3",
     "debugmodel_moe",
     R"({"family": "qwen3_moe", "hidden_size": 256, "num_layers": 8, "num_heads": 16,
         "num_kv_heads": 8, "head_dim": 128, "ffn_hidden_size": 3072, "rope_theta": 1000000,
         "rms_norm_eps": 1e-6, "tie_embeddings": false,
         "moe": {"num_experts": 64, "top_k": 8, "ffn_hidden_size": 768,
                 "router": {"normalize": true, "bias_update": 0.001}, "losses": {"balance": 0}}})"},
    {"deepseek_v3",
     "debugmodel",
     R"({"family": "deepseek_v3", "hidden_size": 256, "num_layers": 6, "num_heads": 16,
         "ffn_hidden_size": 1024, "q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "tie_embeddings": false,
         "moe": {"num_experts": 8, "top_k": 3, "ffn_hidden_size": 256, "shared": 2,
                 "first_dense": 1, "router": {"score": "softmax", "normalize": false,
                                              "bias_update": 0.001}}})",
     TESSERA_YARN("0.7"),
     kOriginal},
    {"deepseek_v3",
     "16B",
     R"({"family": "deepseek_v3", "hidden_size": 2048, "num_layers": 27, "num_heads": 16,
         "ffn_hidden_size": 10944, "q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "tie_embeddings": false,
         "moe": {"num_experts": 64, "top_k": 6, "ffn_hidden_size": 1408, "shared": 2,
                 "first_dense": 1, "router": {"score": "softmax", "normalize": false,
                                              "bias_update": 0.001}}})",
     TESSERA_YARN("0.7"),
     kOriginal},
    {"deepseek_v3",
     "671B",
     R"({"family": "deepseek_v3", "hidden_size": 7168, "num_layers": 61, "num_heads": 128,
         "ffn_hidden_size": 18432, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
         "tie_embeddings": false,
         "moe": {"num_experts": 256, "top_k": 8, "ffn_hidden_size": 2048, "shared": 1,
                 "first_dense": 3, "router": {"score": "sigmoid", "normalize": true,
                                              "groups": 8, "top_groups": 4, "scale": 2.5,
                                              "bias_update": 0.001}}})",
     TESSERA_YARN("1.0"),
     kOriginal},
    {"gpt_oss",
     "debugmodel",
     R"({"family": "gpt_oss", "hidden_size": 256, "num_layers": 4, "num_heads": 64,
         "num_kv_heads": 8, "head_dim": 64, "sliding_window": 128, "rms_norm_eps": 1e-5,
         "rope_theta": 150000, "rope_scaling": "yarn", "rope_factor": 32,
         "rope_original_positions": 4096, "rope_truncate": false, "tie_embeddings": false,
         "moe": {"num_experts": 8, "top_k": 4, "ffn_hidden_size": 2880,
                 "router": {"bias_update": 0.001}, "losses": {"balance": 0}}})"},
    {"llama4", "debugmodel", TESSERA_LLAMA4(TESSERA_LLAMA4_NANO R"(, "no_rope_interval": 0)")},
    {"llama4",
     "debugmodel_irope",
     TESSERA_LLAMA4(TESSERA_LLAMA4_NANO R"(, "attention_chunk": 256, "no_rope_layers": [0, 4])")},
    {"llama4",
     "17bx16e",
     TESSERA_LLAMA4(
         R"("hidden_size": 5120, "num_layers": 48, "num_heads": 40, "num_kv_heads": 8,
            "ffn_hidden_size": 16384, "no_rope_interval": 0,
            "moe": {"num_experts": 16, "top_k": 1, "ffn_hidden_size": 8192, "shared": 1,
                    "router": {"bias_update": 0.001}})" TESSERA_LLAMA4_SCALED)},
    {"llama4",
     "17bx128e",
     TESSERA_LLAMA4(
         R"("hidden_size": 5120, "num_layers": 48, "num_heads": 40, "num_kv_heads": 8,
            "ffn_hidden_size": 16384, "no_rope_interval": 0,
            "moe": {"num_experts": 128, "top_k": 1, "ffn_hidden_size": 8192, "shared": 1,
                    "every": 2, "router": {"bias_update": 0.001}})")},
});

}  // namespace

std::optional<json::Value> model_of(std::string_view model,
                                    std::string_view flavor,
                                    std::int64_t sequence_length) {
  const std::string_view name = model == "llama3_ft" ? "llama3" : model;
  const auto* const found = std::ranges::find_if(
      kFlavors, [&](const Flavor& one) { return one.model == name && one.flavor == flavor; });
  if (found == kFlavors.end()) return std::nullopt;
  json::Value out = json::parse(found->keys, "torchtitan");
  if (sequence_length > found->scaled_above) {
    const json::Value scaled = json::parse(found->scaled, "torchtitan");
    for (const auto& [key, value] : scaled.members())
      out[key] = value;
  }
  return out;
}

std::string known_flavors() {
  std::string out;
  std::string_view before;
  for (const Flavor& one : kFlavors) {
    if (one.model == before) {
      out += fmt::format(", {}", one.flavor);
    } else {
      out += fmt::format("{}{} ({}", before.empty() ? "" : "), ", one.model, one.flavor);
    }
    before = one.model;
  }
  return out + ")";
}

}  // namespace tessera::interop::torchtitan
