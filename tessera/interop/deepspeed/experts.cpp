// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/experts.h"

#include <algorithm>
#include <cstdint>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop::deepspeed {
namespace {

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all files of its folder again";

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const std::size_t at = text.find(from); at != std::string::npos)
    text.replace(at, from.size(), to);
}

/// The number of experts of each layer: as the model states say, or those that have files.
std::map<int, std::int64_t> experts_of_layers(const ExpertFiles& files,
                                              const json::Value* num_experts) {
  std::map<int, std::int64_t> out;
  for (const auto& [place, path] : files) {
    std::int64_t& count = out[place.layer];
    count = std::max<std::int64_t>(count, place.expert + 1);
  }
  if (num_experts == nullptr || !num_experts->is_array()) return out;
  int layer = 0;
  for (const json::Value& count : num_experts->items()) {
    const auto number = count.is_number() ? count.as_integer() : std::nullopt;
    const int key = out.count(-1) > 0 ? -1 : layer++;
    if (number) out[key] = std::max(out[key], *number);
  }
  return out;
}

void require_whole(const std::filesystem::path& file, const std::string& tensor_rank) {
  TESSERA_REQUIRE(
      std::stoi(tensor_rank) == 0,
      Unsupported,
      fmt::format("{}: checkpoints that tensor parallelism cut are not read", file.string()),
      "make it a universal checkpoint with DeepSpeed's ds_to_universal.py; that is read");
}

using Tensors = std::vector<const checkpoint::StreamedTensor*>;

/// "h.0.mlp" and 3 of "h.0.mlp.experts.3.up_proj.weight".
std::optional<std::pair<std::string, std::int64_t>> expert_in(const std::string& name) {
  static const std::regex pattern("(.*)\\.experts\\.(\\d{1,6})\\..*");
  std::smatch match;
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  return std::pair(match[1].str(), std::int64_t{std::stoi(match[2].str())});
}

}  // namespace

std::optional<ExpertPlace> expert_place_of(const std::filesystem::path& file) {
  static const std::regex pattern(
      "(?:layer_(\\d{1,6})_)?expert_(\\d{1,6})_mp_rank_(\\d{1,6})_model_states\\.pt");
  std::smatch match;
  const std::string name = file.filename().string();
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  require_whole(file, match[3].str());
  return ExpertPlace{match[1].matched ? std::stoi(match[1].str()) : -1, std::stoi(match[2].str())};
}

std::optional<int> expert_optimizer_of(const std::filesystem::path& file) {
  static const std::regex pattern("expp_rank_(\\d{1,6})_mp_rank_(\\d{1,6})_optim_states\\.pt");
  std::smatch match;
  const std::string name = file.filename().string();
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  require_whole(file, match[2].str());
  return std::stoi(match[1].str());
}

std::string plain_expert_name(std::string name) {
  replace(name, ".deepspeed_moe.gate.wg.", ".gate.");
  replace(name, ".deepspeed_moe.experts.deepspeed_experts.", ".experts.");
  replace(name, ".deepspeed_moe.", ".");
  return name;
}

void add_experts(const ExpertFiles& files,
                 const json::Value* num_experts,
                 const std::filesystem::path& folder,
                 std::vector<checkpoint::StreamedTensor>& out) {
  for (const auto& [layer, count] : experts_of_layers(files, num_experts)) {
    // An array may claim any number: the first one that is missing ends the search.
    for (std::int64_t expert = 0; expert < count; ++expert) {
      TESSERA_REQUIRE(
          expert <= 999'999 && files.count({layer, static_cast<int>(expert)}) > 0,
          Format,
          fmt::format("{}: {}expert_{}_mp_rank_00_model_states.pt is missing: {} has {} experts",
                      folder.string(),
                      layer < 0 ? "" : fmt::format("layer_{}_", layer),
                      expert,
                      layer < 0 ? "every layer" : fmt::format("layer {}", layer),
                      count),
          kCopy);
    }
  }
  std::set<std::string> names;
  for (checkpoint::StreamedTensor& tensor : out) {
    tensor.name = plain_expert_name(std::move(tensor.name));
    names.insert(tensor.name);
  }
  for (const auto& [place, path] : files) {
    for (const Weight& weight : read_torch_file(path).tensors) {
      const std::string name = plain_expert_name(weight.name);
      TESSERA_REQUIRE(names.insert(name).second,
                      Format,
                      fmt::format("{}: {} occurs in another file too", path.string(), name),
                      kCopy);
      out.push_back(stream(weight, name));
    }
  }
}

Tensors parameters_of_rank(const Tensors& weights, int rank, int ranks, bool apart) {
  std::map<std::string, std::map<std::int64_t, Tensors>> layers;
  Tensors out, experts;
  for (const checkpoint::StreamedTensor* const tensor : weights) {
    if (const auto expert = expert_in(tensor->name))
      layers[expert->first][expert->second].push_back(tensor);
  }
  std::size_t placed = 0;
  for (const checkpoint::StreamedTensor* const tensor : weights) {
    if (expert_in(tensor->name)) continue;
    out.push_back(tensor);
    constexpr std::string_view kRouter = ".gate.weight";
    if (!tensor->name.ends_with(kRouter)) continue;
    const auto layer = layers.find(tensor->name.substr(0, tensor->name.size() - kRouter.size()));
    if (layer == layers.end()) continue;
    const auto count = static_cast<std::int64_t>(layer->second.size());
    if (count % ranks != 0) return {};
    Tensors& to = apart ? experts : out;
    for (std::int64_t e = rank * (count / ranks); e < (rank + 1) * (count / ranks); ++e) {
      const auto found = layer->second.find(e);
      if (found == layer->second.end()) return {};
      to.insert(to.end(), found->second.begin(), found->second.end());
    }
    ++placed;
  }
  if (placed != layers.size()) return {};
  out.insert(out.end(), experts.begin(), experts.end());
  return out;
}

}  // namespace tessera::interop::deepspeed
