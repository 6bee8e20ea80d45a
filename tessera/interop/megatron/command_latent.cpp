// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_latent.h"

#include <array>
#include <utility>

namespace tessera::interop::megatron {

void set_latent_attention(Meaning& meaning) {
  meaning.set("model.family", json::Value::string("deepseek_v3"), meaning.find("@latent"));
  for (const auto& [key, name] : {std::pair("model.kv_lora_rank", "@kv_rank"),
                                  {"model.qk_nope_head_dim", "@qk_plain"},
                                  {"model.qk_rope_head_dim", "@qk_rotary"},
                                  {"model.v_head_dim", "@v_channels"}})
    meaning.copy(key, meaning.find(name));
  if (const auto* const rank = meaning.given("@q_rank")) {
    meaning.copy("model.q_lora_rank", rank);
  } else {
    meaning.set("model.q_lora_rank", json::Value::integer(0));
  }
  meaning.drop("model.num_kv_heads");
  // Its positions are YaRN's unless it names others; with a factor of 1 YaRN changes none.
  if (meaning.text("@rope_type", "yarn") == "yarn" &&
      meaning.number("@rotary_factor").value_or(1.0) > 1.0) {
    const auto* const factor = meaning.find("@rotary_factor");
    meaning.set("model.rope_scaling", json::Value::string("yarn"), factor);
    meaning.copy("model.rope_factor", factor);
    meaning.set("model.rope_original_positions", json::Value::integer(4096));
    meaning.copy("model.rope_mscale", meaning.find("@mscale"));
    meaning.copy("model.rope_mscale_all_dim", meaning.find("@mscale_all"));
  }
  // The family has experts unless it is told otherwise.
  meaning.set("model.moe.num_experts", json::Value::integer(0));
}

}  // namespace tessera::interop::megatron
