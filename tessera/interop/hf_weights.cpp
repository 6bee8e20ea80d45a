// SPDX-License-Identifier: Apache-2.0
// Weights out of a Hugging Face folder.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/interop/formats/foreign.h"
#include "tessera/interop/weights_of.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTable = "wte.weight", kPrefixed = "transformer.wte.weight";

/// What stands before the name of the token table under `key`; none where it is not there. The
/// shortest, should there be several.
std::optional<std::string> container_under(std::string_view key,
                                           const std::vector<Weight>& weights) {
  std::optional<std::string> out;
  for (const Weight& weight : weights) {
    if (!weight.name.starts_with(key)) continue;
    const std::string plain = unwrapped(weight.name.substr(key.size()));
    if (plain != kTable && plain != kPrefixed) continue;
    std::string container = weight.name.substr(0, weight.name.size() - plain.size());
    if (!out || container.size() < out->size()) out = std::move(container);
  }
  return out;
}

/// What stands before every name; empty where the file is the state_dict, or of another family.
std::string container_of(const std::vector<Weight>& weights) {
  for (const std::string_view key : {"", "state_dict.", "model_state_dict.", "model.", "net."}) {
    if (auto container = container_under(key, weights)) return *container;
  }
  return "";
}

/// A tied head in the storage of the table need not be compared with it.
void drop_shared_head(std::vector<Weight>& weights, const nn::Model& model) {
  constexpr std::string_view kHead = "lm_head.weight";
  for (const auto& info : nn::parameters_of(model)) {
    if (info->name == kHead) return;
  }
  const auto table = std::find_if(weights.begin(), weights.end(), [](const Weight& weight) {
    return weight.name == kTable || weight.name == kPrefixed;
  });
  if (table == weights.end()) return;
  const Weight kept = *table;
  std::erase_if(weights, [&](const Weight& weight) {
    return weight.name == kHead && weight.same_storage(kept);
  });
}

}  // namespace

models::WeightSource weights_from_hf(const models::Family& family,
                                     const fs::path& path,
                                     const models::Resolved& resolved) {
  std::vector<Weight> weights = state_dict_of(open_weights(path));
  drop_shared_head(weights, resolved.model);
  std::vector<checkpoint::StreamedTensor> tensors;
  for (const Weight& weight : weights)
    tensors.push_back(stream(weight, weight.name));
  return weights_of(tensors, family, resolved, path.string());
}

std::vector<Weight> state_dict_of(std::vector<Weight> weights) {
  const std::string container = container_of(weights);
  std::erase_if(weights, [&](const Weight& weight) { return !weight.name.starts_with(container); });
  for (Weight& weight : weights)
    weight.name.erase(0, container.size());
  return weights;
}

}  // namespace tessera::interop
