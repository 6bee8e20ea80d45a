// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gguf_names.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

/// The text matched by "*" and the rest after the module: {"3", ".weight"} for
/// "blk.3.attn_q.weight" and "blk.*.attn_q".
std::optional<std::pair<std::string, std::string>> match(std::string_view name,
                                                         std::string_view module) {
  const std::size_t star = module.find('*');
  const std::string_view begin = module.substr(0, star);
  if (!name.starts_with(begin)) return std::nullopt;
  name.remove_prefix(begin.size());
  std::string number;
  if (star != std::string_view::npos) {
    const auto digits = std::find_if_not(
        name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    number.assign(name.begin(), digits);
    name.remove_prefix(number.size());
    const std::string_view end = module.substr(star + 1);
    if (number.empty() || !name.starts_with(end)) return std::nullopt;
    name.remove_prefix(end.size());
  }
  if (name != ".weight" && name != ".bias") return std::nullopt;
  return std::pair(number, std::string(name));
}

std::optional<std::string> renamed(std::string_view name,
                                   const std::string& from,
                                   const std::string& to) {
  const auto found = match(name, from);
  if (!found) return std::nullopt;
  std::string out = to;
  if (const std::size_t star = out.find('*'); star != std::string::npos)
    out.replace(star, 1, found->first);
  return out + found->second;
}

}  // namespace

std::optional<std::string> GgufNames::to_config_name(std::string_view gguf) const {
  for (const auto& [module, theirs] : modules) {
    if (auto name = renamed(gguf, module, theirs)) return name;
  }
  return std::nullopt;
}

std::optional<std::string> GgufNames::to_gguf_name(std::string_view theirs) const {
  for (const auto& [module, its] : modules) {
    if (auto name = renamed(theirs, its, module)) return name;
  }
  return std::nullopt;
}

bool is_of_module(std::string_view name, std::string_view module) {
  return match(name, module).has_value();
}

GgufNames rotary_decoder_names(std::string architecture, std::string model_type) {
  return {.architecture = std::move(architecture),
          .model_type = std::move(model_type),
          .keys = {{"block_count", "num_hidden_layers"},
                   {"context_length", "max_position_embeddings"},
                   {"embedding_length", "hidden_size"},
                   {"feed_forward_length", "intermediate_size"},
                   {"attention.head_count", "num_attention_heads"},
                   {"attention.head_count_kv", "num_key_value_heads", false, false},
                   {"attention.key_length", "head_dim", false, false},
                   {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
                   {"rope.freq_base", "rope_theta", true, false}},
          .implied = {{"hidden_act", json::Value::string("silu")}},
          .flags = {},
          .modules = {{"token_embd", "model.embed_tokens"},
                      {"output_norm", "model.norm"},
                      {"output", "lm_head"},
                      {"blk.*.attn_norm", "model.layers.*.input_layernorm"},
                      {"blk.*.attn_q", "model.layers.*.self_attn.q_proj"},
                      {"blk.*.attn_k", "model.layers.*.self_attn.k_proj"},
                      {"blk.*.attn_v", "model.layers.*.self_attn.v_proj"},
                      {"blk.*.attn_output", "model.layers.*.self_attn.o_proj"},
                      {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm"},
                      {"blk.*.ffn_gate", "model.layers.*.mlp.gate_proj"},
                      {"blk.*.ffn_up", "model.layers.*.mlp.up_proj"},
                      {"blk.*.ffn_down", "model.layers.*.mlp.down_proj"}},
          .transposed = {},
          .rotated = {},
          .rotary = true};
}

void require_key(GgufNames& names, std::string_view gguf) {
  const auto found = std::ranges::find(names.keys, gguf, &GgufNames::Key::gguf);
  TESSERA_ASSERT(found != names.keys.end());
  found->required = true;
}

void set_module(GgufNames& names, std::string_view gguf, std::string theirs) {
  const auto found =
      std::ranges::find(names.modules, gguf, &std::pair<std::string, std::string>::first);
  if (found != names.modules.end()) {
    found->second = std::move(theirs);
  } else {
    names.modules.emplace_back(gguf, std::move(theirs));
  }
}

void remove_module(GgufNames& names, std::string_view gguf) {
  std::erase_if(names.modules, [&](const auto& module) { return module.first == gguf; });
}

std::vector<std::string> gguf_architectures() {
  std::vector<std::string> out;
  for (const std::string& name : gguf_names().names()) {
    if (gguf_names().get(name).stored_as.empty()) out.push_back(name);
  }
  return out;
}

Registry<GgufNames>& gguf_names() {
  static Registry<GgufNames> names("architecture of GGUF files");
  return names;
}

}  // namespace tessera::models
