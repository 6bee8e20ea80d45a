// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/bucket_notes.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/nn/block.h"

namespace tessera::parallel {
namespace {

constexpr const char* kSection = "zero_optimization";

// The largest parameter, or one of those; nullptr if there is none.
std::shared_ptr<const ParamInfo> largest_parameter(const nn::Model& model, bool trained) {
  std::shared_ptr<const ParamInfo> largest;
  for (const auto& info : nn::parameters_of(model)) {
    if (trained && !info->trainable) continue;
    if (largest == nullptr || info->numel() > largest->numel()) largest = info;
  }
  return largest;
}

}  // namespace

std::vector<std::string> bucket_notes(const ZeroOptions& zero,
                                      const BucketLayout& layout,
                                      const nn::Model& model,
                                      const config::Origins& origins) {
  std::vector<std::string> out;
  const auto look = [&](const char* key,
                        const std::optional<std::int64_t>& limit,
                        bool trained,
                        const char* then) {
    const std::string path = json::join_path(kSection, key);
    if (!limit || !origins.given(path)) return;
    const auto largest = largest_parameter(model, trained);
    // Tensor-parallel ranks hold at least this share of it.
    const std::int64_t tensor = std::max<std::int64_t>(1, layout.tensor_ranks);
    if (largest == nullptr || *limit >= largest->numel() / tensor) return;
    out.push_back(fmt::format("{} {} is below the {} elements of {}: {}",
                              path,
                              text::with_commas(*limit),
                              text::with_commas(largest->numel()),
                              largest->name,
                              then));
  };
  if (layout.data_ranks > 1) {
    look("reduce_bucket_size",
         zero.reduce_bucket_size,
         /*trained=*/true,
         "a block's gradients are reduced together all the same, one block of a size at a time");
  }
  if (!layout.gathers_weights) return out;
  // Weights that every rank keeps are never gathered.
  const auto largest = largest_parameter(model, /*trained=*/false);
  const bool kept = largest != nullptr && largest->numel() < layout.persistence_threshold &&
                    largest->numel() <= layout.persistent;
  const char* const stays = "every rank keeps it whole, as stage3_param_persistence_threshold says";
  // 0 disables prefetching.
  if (zero.stage3_prefetch_bucket_size.value_or(0) > 0) {
    look("stage3_prefetch_bucket_size",
         zero.stage3_prefetch_bucket_size,
         /*trained=*/false,
         kept ? stays : "its block is gathered when it is needed, never ahead");
  }
  look(
      "stage3_max_live_parameters",
      zero.stage3_max_live_parameters,
      /*trained=*/false,
      kept ? stays : "the block that runs is gathered all the same, and no other at the same time");
  return out;
}

}  // namespace tessera::parallel
