// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/expert_weights.h"

#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace tessera::models {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.", kRouter = ".mlp.gate.",
                           kCorrection = ".mlp.gate.e_score_correction_bias",
                           kShared = ".mlp.shared_expert.", kPairs = "gate_up_proj.";

bool contains(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

/// The name with the first occurrence of `ours` replaced.
std::string replaced(std::string name, std::string_view ours, const std::string& theirs) {
  return name.replace(name.find(ours), ours.size(), theirs);
}

Composition of_experts(const ParamInfo& info, const std::string& layer, const ExpertNames& names) {
  const Shape& shape = info.shape;
  const std::string kind = info.name.substr(info.name.rfind('.'));  // ".weight", ".bias"
  const auto tensor = [&](std::int64_t e, const std::string& module, std::size_t skipped) {
    return Composition::of(
        fmt::format("{}.{}.{}.{}{}", layer, names.experts, e, module, kind),
        Shape(shape.begin() + static_cast<std::ptrdiff_t>(skipped), shape.end()));
  };
  if (contains(info.name, kPairs)) {
    return stacked_pairs(info, [&](std::int64_t e, int part) {
      return tensor(e, part == 0 ? names.gate : names.up, 2);
    });
  }
  Shape one = shape;
  one.front() = 1;
  std::vector<Composition> experts;
  for (std::int64_t e = 0; e < shape.front(); ++e)
    experts.push_back(tensor(e, names.down, 1).viewed(one));
  return Composition::concat(experts, 0);
}

}  // namespace

bool is_of_experts(const ParamInfo& info) {
  return contains(info.name, kExperts) || contains(info.name, kRouter) ||
         contains(info.name, kShared) || contains(info.name, ".mlp.shared_expert_gate.");
}

bool is_router(const ParamInfo& info) {
  return info.name.ends_with(".mlp.gate.weight") || info.name.ends_with(".self_attn.gate.weight");
}

Composition compose_experts(const ParamInfo& info,
                            const std::string& prefix,
                            const ExpertNames& names) {
  const Shape& shape = info.shape;
  const std::string theirs = prefix + info.name;
  if (contains(theirs, kExperts))
    return of_experts(info, theirs.substr(0, theirs.find(kExperts)), names);
  if (theirs.ends_with(kCorrection))
    return Composition::of(replaced(theirs, kCorrection, "." + names.correction), shape);
  if (contains(theirs, kRouter))
    return Composition::of(replaced(theirs, kRouter, "." + names.router + "."), shape);
  if (!contains(theirs, kShared)) return Composition::of(theirs, shape);
  const std::string shared = replaced(theirs, kShared, "." + names.shared + ".");
  if (!contains(shared, kPairs)) return Composition::of(shared, shape);
  const Shape stored(shape.begin() + 1, shape.end());
  Shape one = stored;
  one.insert(one.begin(), 1);
  const auto half = [&](const char* module) {
    return Composition::of(replaced(shared, kPairs, std::string(module) + "."), stored).viewed(one);
  };
  return Composition::concat({half("gate_proj"), half("up_proj")}, 0);
}

Composition compose_stacked_experts(const ParamInfo& info,
                                    const std::string& prefix,
                                    const StackedNames& names) {
  const Shape& shape = info.shape;
  const std::string layer = prefix + info.name.substr(0, info.name.find(".mlp.")) + ".",
                    module = layer + names.module;
  if (is_router(info)) return Composition::of(module + ".router.layer.weight", shape);
  if (contains(info.name, kPairs)) {
    return Composition::of(module + ".input_linear.weight",
                           {shape[0], shape[1] * shape[2], shape[3]})
        .viewed(shape);
  }
  return Composition::of(module + ".output_linear.weight", shape);
}

}  // namespace tessera::models
