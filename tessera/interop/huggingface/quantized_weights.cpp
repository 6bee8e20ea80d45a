// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/quantized_weights.h"

#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/huggingface/bitsandbytes.h"
#include "tessera/interop/huggingface/mxfp4.h"

namespace tessera::interop {
namespace {

using Weights = std::map<std::string, const Weight*, std::less<>>;

constexpr std::string_view kScales = "_scales";

Weights by_name(const std::vector<Weight>& weights) {
  Weights out;
  for (const Weight& weight : weights)
    out.emplace(weight.name, &weight);
  return out;
}

const Weight* scales_of(const Weights& weights, const std::string& name) {
  const auto found = weights.find(name + std::string(kScales));
  return found == weights.end() ? nullptr : found->second;
}

/// True for the scales of blocks that are there.
bool is_scales(const Weights& weights, std::string_view name) {
  if (!name.ends_with(kScales)) return false;
  const auto blocks =
      std::string(name.substr(0, name.size() - kScales.size())) + std::string("_blocks");
  return weights.contains(blocks);
}

}  // namespace

std::vector<checkpoint::StreamedTensor> plain_weights(const std::vector<Weight>& weights) {
  const Weights names = by_name(weights);
  std::map<std::string, const Weight*, std::less<>> blocks;
  for (const Weight& weight : weights) {
    if (name_of_mxfp4(weight.name)) blocks.emplace(weight.name, &weight);
  }
  if (blocks.empty()) return with_bitsandbytes(weights);
  std::vector<checkpoint::StreamedTensor> out;
  for (checkpoint::StreamedTensor& tensor : with_bitsandbytes(weights)) {
    if (is_scales(names, tensor.name)) continue;
    const auto found = blocks.find(tensor.name);
    if (found == blocks.end()) {
      out.push_back(std::move(tensor));
      continue;
    }
    const std::string name = name_of_mxfp4(tensor.name).value();
    const Weight* const scales = scales_of(names, name);
    TESSERA_REQUIRE(
        scales != nullptr,
        Format,
        fmt::format("{}: {} has no {}{}", found->second->file.string(), tensor.name, name, kScales),
        "fetch the file again, with all its shards");
    out.push_back(decoded_mxfp4(*found->second, *scales));
  }
  return out;
}

std::vector<std::string> plain_names(const std::vector<Weight>& weights) {
  const Weights names = by_name(weights);
  std::vector<std::string> out;
  for (const Weight& weight : weights) {
    const bool described = is_bitsandbytes_part(weight.name) || is_scales(names, weight.name);
    out.push_back(described ? "" : name_of_mxfp4(weight.name).value_or(weight.name));
  }
  return out;
}

bool drop_quantization(json::Value& hf_config) {
  if (drop_bitsandbytes(hf_config)) return true;
  constexpr std::string_view kSection = "quantization_config";
  const json::Value* const said = hf_config.find(kSection);
  const json::Value* const method =
      said != nullptr && said->is_object() ? said->find("quant_method") : nullptr;
  if (method == nullptr || !method->is_string() || method->as_string() != "mxfp4") return false;
  std::erase_if(hf_config.members(),
                [&](const json::Value::Member& member) { return member.first == kSection; });
  return true;
}

}  // namespace tessera::interop
