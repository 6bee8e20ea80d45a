// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder_weights.h"

#include <utility>

#include "tessera/models/expert_weights.h"

namespace tessera::models {

using enum LogicalAxis;

namespace {

std::string hf_name(const std::string& ours) {
  const bool outside = ours.starts_with("lm_head.") || ours.starts_with("score.");
  return (outside ? "" : "model.") + ours;
}

/// The boxes of queries, keys and values in [groups, queries + 2, channels, ...], or in [3, heads,
/// channels, ...] if heads share nothing: the number of heads of each, and the shape of its part.
struct HeadsPart {
  std::int64_t rows = 0;
  Shape stored, here;
};
HeadsPart heads_part(const ParamInfo& info, bool queries) {
  const Shape& shape = info.shape;
  const bool grouped = info.axes.front() == KvHeads;
  const std::int64_t count = grouped && queries ? shape[1] - 2 : 1, channels = shape[2],
                     all = grouped ? shape[0] * count : shape[1];
  HeadsPart out = {.rows = all * channels,
                   .stored = {all * channels},
                   .here = grouped ? Shape{shape[0], count, channels} : Shape{1, all, channels}};
  out.stored.insert(out.stored.end(), shape.begin() + 3, shape.end());
  out.here.insert(out.here.end(), shape.begin() + 3, shape.end());
  return out;
}

bool is_part(const std::string& name, std::string_view module) {
  return name.find(module) != std::string::npos;
}

/// True for a projection of latent attention by heads: [1, heads, channels, inputs].
bool is_latent_projection(const ParamInfo& info) {
  return info.shape.size() == 4 && info.shape.front() == 1 && info.axes[1] == Heads;
}

}  // namespace

Composition compose_decoder(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const std::string theirs = hf_name(info.name);
  if (is_of_experts(info)) return compose_experts(info, "model.");
  if (is_latent_projection(info)) return Composition::of(theirs, info.matrix_shape).viewed(shape);
  // The name with, for example, "qkv" replaced by "q".
  const auto part = [&](std::string_view ours, std::string_view its, Shape stored) {
    std::string name = theirs;
    name.replace(name.find(ours), ours.size(), its);
    return Composition::of(std::move(name), std::move(stored));
  };
  if (is_part(theirs, ".gate_up_proj.")) {
    const Shape stored(shape.begin() + 1, shape.end());
    Shape one = stored;
    one.insert(one.begin(), 1);
    return Composition::concat({part("gate_up_proj", "gate_proj", stored).viewed(one),
                                part("gate_up_proj", "up_proj", stored).viewed(one)},
                               0);
  }
  if (!is_part(theirs, ".qkv_proj.")) return Composition::of(theirs, shape);
  const auto heads = [&](std::string_view its, bool queries) {
    const HeadsPart of = heads_part(info, queries);
    return part("qkv_proj", its, of.stored).viewed(of.here);
  };
  return Composition::concat(
      {heads("q_proj", true), heads("k_proj", false), heads("v_proj", false)},
      info.axes.front() == KvHeads ? 1 : 0);
}

Composition compose_fused_qkv(const ParamInfo& info, const std::string& theirs) {
  const HeadsPart q = heads_part(info, true), k = heads_part(info, false);
  Shape whole = q.stored;
  whole.front() = q.rows + 2 * k.rows;
  const Composition all = Composition::of(theirs, whole);
  return Composition::concat({all.slice(0, 0, q.rows).viewed(q.here),
                              all.slice(0, q.rows, q.rows + k.rows).viewed(k.here),
                              all.slice(0, q.rows + k.rows, q.rows + 2 * k.rows).viewed(k.here)},
                             info.axes.front() == KvHeads ? 1 : 0);
}

Composition compose_fused_decoder(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const std::string theirs = hf_name(info.name);
  if (is_part(theirs, ".gate_up_proj.")) {
    Shape stored(shape.begin() + 1, shape.end());
    stored.front() *= shape.front();
    return Composition::of(theirs, stored).viewed(shape);
  }
  return is_part(theirs, ".qkv_proj.") ? compose_fused_qkv(info, theirs)
                                       : Composition::of(theirs, shape);
}

bool is_rotary_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

std::string without_text_prefix(std::string name) {
  constexpr std::string_view kText = "language_model.", kModel = "model.";
  const bool within = name.starts_with(std::string(kModel) + std::string(kText));
  if (within) return std::string(kModel) + name.substr(kModel.size() + kText.size());
  return name.starts_with(kText) ? name.substr(kText.size()) : name;
}

WeightMap decoder_weights(Composition (*compose)(const ParamInfo& info)) {
  return {.compose = compose,
          .base = "model.",
          .ties = {{"lm_head.weight", "model.embed_tokens.weight"}},
          .is_buffer = is_rotary_buffer,
          .anchor = "model.embed_tokens.weight"};
}

ModuleOrder decoder_order(const DecoderModules& layer) {
  ModuleOrder out = {.base = "model.", .modules = {"model.embed_tokens"}};
  const auto add = [&](const char* part, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      out.modules.push_back(std::string("model.layers.*.") + part + name);
  };
  add("self_attn.", layer.attention);
  add("mlp.", layer.mlp);
  add("", layer.norms);
  out.modules.insert(out.modules.end(), {"model.norm", "lm_head"});
  return out;
}

}  // namespace tessera::models
