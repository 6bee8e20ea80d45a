// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gguf_names.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

/// The text matched by "*" and the rest after the module: {"3", ".weight"} for
/// "blk.3.attn_q.weight" and "blk.*.attn_q".
std::optional<std::pair<std::string, std::string>> match_beginning(std::string_view name,
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
  return std::pair(number, std::string(name));
}
/// The same for tensors of the module.
std::optional<std::pair<std::string, std::string>> match(std::string_view name,
                                                         std::string_view module) {
  auto found = match_beginning(name, module);
  if (found && found->second != ".weight" && found->second != ".bias") found.reset();
  return found;
}

std::string with_number(std::string pattern, const std::string& number) {
  if (const std::size_t star = pattern.find('*'); star != std::string::npos)
    pattern.replace(star, 1, number);
  return pattern;
}

/// As renamed(), for whole names.
std::optional<std::string> renamed_whole(std::string_view name,
                                         const std::string& from,
                                         const std::string& to) {
  const auto found = match_beginning(name, from);
  if (!found || !found->second.empty()) return std::nullopt;
  return with_number(to, found->first);
}

std::optional<std::string> renamed(std::string_view name,
                                   const std::string& from,
                                   const std::string& to) {
  const auto found = match(name, from);
  if (!found) return std::nullopt;
  return with_number(to, found->first) + found->second;
}

/// The number after `begin` and the rest of the name behind it.
struct Numbered {
  std::int64_t number = 0;
  std::string_view rest;
};
std::optional<Numbered> numbered(std::string_view name, std::string_view begin) {
  if (!name.starts_with(begin)) return std::nullopt;
  name.remove_prefix(begin.size());
  Numbered out;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), out.number);
  if (failed != std::errc() || out.number < 0) return std::nullopt;
  out.rest = name.substr(static_cast<std::size_t>(end - name.data()));
  return out;
}

}  // namespace

std::optional<std::string> GgufNames::expert_to_config_name(std::string_view gguf,
                                                            std::int64_t expert) const {
  for (const auto& [module, theirs] : stacked) {
    std::string one = theirs;
    one.replace(one.find('#'), 1, std::to_string(expert));
    if (auto name = renamed(gguf, module, one)) return name;
  }
  return std::nullopt;
}

std::optional<GgufNames::ExpertTensor> GgufNames::expert_to_gguf_name(
    std::string_view theirs) const {
  for (const auto& [module, its] : stacked) {
    // its: LAYERS.*.EXPERTS.#.PROJECTION
    const std::string_view pattern = its;
    const std::size_t star = pattern.find('*'), hash = pattern.find('#');
    const auto layer = numbered(theirs, pattern.substr(0, star));
    if (!layer) continue;
    const auto expert = numbered(layer->rest, pattern.substr(star + 1, hash - star - 1));
    const std::string_view projection = pattern.substr(hash + 1);
    if (!expert || !expert->rest.starts_with(projection)) continue;
    const std::string_view part = expert->rest.substr(projection.size());
    if (part != ".weight" && part != ".bias") continue;
    std::string name = module;
    name.replace(name.find('*'), 1, std::to_string(layer->number));
    return ExpertTensor{name + std::string(part), expert->number};
  }
  return std::nullopt;
}

std::optional<std::string> GgufNames::to_config_name(std::string_view gguf) const {
  for (const auto& [module, theirs] : modules) {
    if (auto name = renamed(gguf, module, theirs)) return name;
  }
  for (const auto& [whole, theirs] : exact) {
    if (auto name = renamed_whole(gguf, whole, theirs)) return name;
  }
  return std::nullopt;
}

std::optional<std::string> GgufNames::to_gguf_name(std::string_view theirs) const {
  for (const auto& [module, its] : modules) {
    if (auto name = renamed(theirs, its, module)) return name;
  }
  for (const auto& [whole, its] : exact) {
    if (auto name = renamed_whole(theirs, its, whole)) return name;
  }
  return std::nullopt;
}

std::optional<GgufNames::Part> GgufNames::part_of(std::string_view gguf) const {
  for (const Parts& one : parts) {
    for (std::size_t i = 0; i < one.files.size(); ++i) {
      if (auto name = renamed_whole(gguf, one.files[i], one.theirs))
        return Part{&one, i, std::move(*name)};
    }
  }
  return std::nullopt;
}

std::optional<GgufNames::InParts> GgufNames::in_parts(std::string_view theirs) const {
  for (const Parts& one : parts) {
    InParts out{&one, {}};
    for (const std::string& file : one.files) {
      if (auto name = renamed_whole(theirs, one.theirs, file)) out.files.push_back(*name);
    }
    if (!out.files.empty()) return out;
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

void remove_dense_modules(GgufNames& names) {
  for (const char* const dense : {"blk.*.ffn_gate", "blk.*.ffn_up", "blk.*.ffn_down"})
    remove_module(names, dense);
}

void add_experts(GgufNames& names, const GgufExperts& experts) {
  names.keys.push_back({"expert_count", experts.count_key});
  names.keys.push_back({"expert_used_count", "num_experts_per_tok"});
  names.unread.emplace_back("expert_gating_func");
  names.modules.emplace_back("blk.*.ffn_gate_inp", experts.router);
  for (const auto& [module, projection] : {std::pair("blk.*.ffn_gate_exps", &experts.gate),
                                           std::pair("blk.*.ffn_up_exps", &experts.up),
                                           std::pair("blk.*.ffn_down_exps", &experts.down)})
    names.stacked.emplace_back(module, experts.experts + ".#." + *projection);
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
