// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness for the readers of external files (targets.h). TESSERA_FUZZ selects one.
// Build and run: fuzz/run.sh.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/targets.h"
#include <unistd.h>

#include "tessera/models/gguf_names.h"
#include "tessera/models/gpt_names.h"

namespace {

// Readers rename tensors to the names of a family of models. Families need libtorch, which this
// build leaves out, so this file registers names of its own instead.
TESSERA_GPT_NAMES("fuzzed",
                  {.architecture = "Fuzzed",
                   .model_type = "fuzzed",
                   .table = "table.weight",
                   .positions = "positions.weight",
                   .layers = "layers.",
                   .attention_norm = "attention_norm",
                   .attention_input = "attention_input",
                   .attention_output = "attention_output",
                   .mlp_norm = "mlp_norm",
                   .mlp_input = "mlp_input",
                   .mlp_output = "mlp_output",
                   .final_norm = "final_norm",
                   .head = "head.weight",
                   .config = {}});

// The architecture of the seeds, with everything that a family may declare.
TESSERA_GGUF_NAMES("llama", [] {
  auto names = tessera::models::rotary_decoder_names("Fuzzed", "fuzzed");
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}};
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  names.transposed = {"blk.*.ffn_down"};
  return names;
}());

// Architectures whose seeds hold experts in each way.
tessera::models::GgufNames with_experts() {
  auto names = tessera::models::rotary_decoder_names("Fuzzed", "fuzzed");
  names.keys.push_back({tessera::models::kGgufWindow, "sliding_window", false, false});
  tessera::models::add_experts(
      names, {.router = "model.layers.*.gate", .experts = "model.layers.*.experts"});
  names.keys.push_back({"expert_feed_forward_length", "moe_intermediate_size", false, false});
  return names;
}
TESSERA_GGUF_NAMES("gpt-oss", [] {
  using Parts = tessera::models::GgufNames::Parts;
  auto names = with_experts();
  names.stacked.clear();
  names.parts = {
      Parts{.theirs = "model.layers.*.experts.gate_up_proj",
            .files = {"blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"},
            .rows = tessera::models::GgufNames::PartRows::Turns,
            .transposed = true},
      Parts{.theirs = "model.layers.*.experts.gate_up_bias",
            .files = {"blk.*.ffn_gate_exps.bias", "blk.*.ffn_up_exps.bias"},
            .rows = tessera::models::GgufNames::PartRows::Turns},
      Parts{.theirs = "model.layers.*.experts.down_proj",
            .files = {"blk.*.ffn_down_exps.weight"},
            .transposed = true},
      Parts{.theirs = "model.layers.*.experts.down_bias", .files = {"blk.*.ffn_down_exps.bias"}}};
  names.exact = {{"blk.*.attn_sinks.weight", "model.layers.*.sinks"}};
  names.modules.emplace_back("blk.*.post_attention_norm", "model.layers.*.post_norm");
  names.yarn = tessera::models::GgufNames::Yarn{.truncate = false};
  return names;
}());
TESSERA_GGUF_NAMES("dbrx", [] {
  auto names = with_experts();
  std::erase_if(names.keys, [](const auto& key) { return key.gguf.ends_with("rms_epsilon"); });
  names.keys.push_back({"attention.clamp_kqv", "attn_config.clip_qkv", true});
  names.real_constants = {{"attention.layer_norm_epsilon", 1e-5}};
  names.stacked.clear();
  for (const std::string part : {"gate", "up", "down"})
    names.parts.push_back({.theirs = "model.layers.*.experts." + part,
                           .files = {"blk.*.ffn_" + part + "_exps.weight"},
                           .transposed = part == "down",
                           .flat = true});
  names.modules.emplace_back("blk.*.attn_qkv", "model.layers.*.qkv");
  names.modules.emplace_back("blk.*.attn_output_norm", "model.layers.*.output_norm");
  return names;
}());
TESSERA_GGUF_NAMES("phimoe", [] {
  auto names = with_experts();
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}};
  names.unread = {"rope.scaling.original_context_length"};
  names.long_rope = tessera::models::GgufNames::LongRope{.mscale = true};
  return names;
}());

const tessera::fuzz::Target& chosen() {
  static const tessera::fuzz::Target& target = []() -> const tessera::fuzz::Target& {
    const char* name = std::getenv("TESSERA_FUZZ");
    const auto found = tessera::fuzz::targets().find(name == nullptr ? "" : name);
    if (found == tessera::fuzz::targets().end()) std::abort();
    return found->second;
  }();
  return target;
}

/// The temporary folder of this process; run.sh removes it.
const std::filesystem::path& folder() {
  static const std::filesystem::path made = [] {
    std::filesystem::path path = "/dev/shm/tessera-fuzz-" + std::to_string(::getpid());
    tessera::fuzz::surround(chosen(), "tests/golden/reference", path);
    return path;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::feed(chosen(), folder(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
