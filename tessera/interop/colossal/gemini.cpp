// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/colossal/gemini.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

// Removes a member, and objects that become empty within one at the top.
std::optional<json::Value> take(json::Value& source,
                                std::string_view section,
                                std::string_view key) {
  json::Value* object = &source;
  std::vector<std::pair<json::Value*, std::string>> way;
  for (const std::string& step : text::split(section, '.')) {
    json::Value* const next = object->find(step);
    if (next == nullptr || !next->is_object()) return std::nullopt;
    way.emplace_back(object, step);
    object = next;
  }
  const json::Value* const found = object->find(key);
  if (found == nullptr) return std::nullopt;
  json::Value out = *found;
  const auto drop = [](json::Value& from, std::string_view name) {
    std::erase_if(from.members(), [&](const auto& member) { return member.first == name; });
  };
  drop(*object, key);
  for (; way.size() > 1 && object->members().empty(); way.pop_back()) {
    object = way.back().first;
    drop(*object, way.back().second);
  }
  return out;
}

struct Placement {
  std::string key, policy;
  double optimizer = 0, params = 0, shards = 1;
};

Placement placement_of(json::Value& source) {
  Placement out;
  for (const char* section : {"gemini", "zero.model_config"}) {
    for (const char* key : {"placement_policy", "tensor_placement_policy"}) {
      const auto policy = take(source, section, key);
      if (!policy || !policy->is_string()) continue;
      out.key = fmt::format("{}.{}", section, key);
      out.policy = policy->as_string();
    }
    const std::array<std::pair<const char*, double*>, 3> fractions = {
        {{"offload_optim_frac", &out.optimizer},
         {"offload_param_frac", &out.params},
         {"shard_param_frac", &out.shards}}};
    for (const auto& [key, to] : fractions) {
      const auto value = take(source, section, key);
      if (value && value->is_number()) *to = value->as_double();
    }
  }
  return out;
}

}  // namespace

json::Value take_placement(json::Value& source, std::vector<std::string>& notes) {
  const Placement placement = placement_of(source);
  json::Value out = json::Value::object();
  const auto on_host = [&](const char* section) {
    out[section]["device"] = json::Value::string("cpu");
  };
  const bool fixed = placement.policy == "static";
  if (placement.policy == "cpu" || (fixed && placement.params > 0)) on_host("offload_param");
  if (placement.policy == "cpu" || (fixed && placement.optimizer > 0)) on_host("offload_optimizer");
  if (placement.policy == "auto") {
    notes.push_back(fmt::format(
        "{} = \"auto\": ranks compute on the CPU, whose memory has everything that Gemini would "
        "move; zero_optimization.offload_optimizer moves it to a disk",
        placement.key));
  } else if (!fixed && !placement.policy.empty() && placement.policy != "cpu" &&
             placement.policy != "cuda") {
    notes.push_back(fmt::format("{} = \"{}\" is not a placement: cpu, cuda, auto and static are",
                                placement.key,
                                placement.policy));
  }
  if (placement.shards < 1) {
    notes.emplace_back(
        "shard_param_frac has no effect: zero_optimization.stage 3 shards all parameters");
  }

  double share = 0;
  std::string folder;
  for (const char* section : {"optimizer", "optimizer.params", "zero.optimizer_config"}) {
    const auto fraction = take(source, section, "nvme_offload_fraction");
    if (fraction && fraction->is_number()) share = fraction->as_double();
    const auto path = take(source, section, "nvme_offload_dir");
    if (path && path->is_string()) folder = path->as_string();
  }
  if (share > 0) {
    out["stage"] = json::Value::integer(3);
    json::Value& disk = out["offload_optimizer"];
    disk["device"] = json::Value::string("nvme");
    if (!folder.empty()) disk["nvme_path"] = json::Value::string(folder);
    if (share < 1) disk["ratio"] = json::Value::number(share);
  } else if (!folder.empty()) {
    notes.emplace_back("nvme_offload_dir has no effect: nvme_offload_fraction is 0");
  }
  return out;
}

}  // namespace tessera::interop
