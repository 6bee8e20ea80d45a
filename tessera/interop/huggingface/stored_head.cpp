// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/stored_head.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/huggingface/quantized_weights.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

using checkpoint::StreamedTensor;

const StreamedTensor* find(const std::vector<StreamedTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const StreamedTensor& tensor) {
    return unwrapped(tensor.name) == name;
  });
  return at == tensors.end() ? nullptr : &*at;
}

/// The table under any of its names; nullptr if the files do not have it.
const StreamedTensor* find_table(const std::vector<StreamedTensor>& tensors,
                                 const std::vector<models::Tie>& ties) {
  for (const models::Tie& tie : ties) {
    if (const StreamedTensor* table = find(tensors, tie.of)) return table;
    if (tie.alias == models::kEncoderDecoderHead) continue;
    if (const StreamedTensor* table = find(tensors, tie.alias)) return table;
  }
  return nullptr;
}

/// Head and table with what describes their formats, as streams.
std::vector<StreamedTensor> tensors_of(const std::vector<models::Tie>& ties,
                                       std::vector<Weight> weights) {
  std::erase_if(weights, [&](const Weight& weight) {
    const std::string name = unwrapped(weight.name);
    return std::none_of(ties.begin(), ties.end(), [&](const models::Tie& tie) {
      return name.starts_with(tie.alias) || name.starts_with(tie.of);
    });
  });
  return plain_weights(weights);
}

/// True if the tensors have a head apart from the table: with other values, or, if `said_apart`,
/// under its own name.
bool has_own_head(const std::vector<StreamedTensor>& tensors,
                  const std::vector<models::Tie>& ties,
                  bool said_apart) {
  const StreamedTensor* head = find(tensors, models::kEncoderDecoderHead);
  if (head == nullptr || said_apart) return head != nullptr;
  const StreamedTensor* table = find_table(tensors, ties);
  return table != nullptr && !same_values(*head, *table);
}

}  // namespace

void settle_stored_head(const fs::path& path,
                        const json::Value& hf_config,
                        models::ModelOptions& options) {
  auto* const stacks = dynamic_cast<models::EncoderDecoderOptions*>(&*options);
  if (stacks == nullptr || (fs::is_directory(path) && weight_files(path).empty())) return;
  const std::vector<Weight> weights = state_dict_of(open_weights(path));
  const json::Value* const said = hf_config.find("tie_word_embeddings");
  const bool apart = said != nullptr && said->is_bool() && !said->as_bool();
  const auto& ties = models::families().get(options.family()).weight_map.ties;
  const bool own = has_own_head(tensors_of(ties, weights), ties, apart);
  const std::string warning = models::settle_head(hf_config, own, *stacks);
  if (!warning.empty()) log::warn(fmt::format("{}: {}", path.string(), warning));
}

}  // namespace tessera::interop
