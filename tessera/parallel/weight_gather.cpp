// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weight_gather.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

std::vector<int> gathered_groups(ModelInstance& model) {
  std::vector<int> out;
  for (std::size_t g = 0; g < model.groups().size(); ++g) {
    const FlatGroup& group = model.groups()[g];
    if (!group.tile && group.weights->comes_and_goes()) out.push_back(static_cast<int>(g));
  }
  return out;
}

GatherOrder order_of(ModelInstance& model,
                     const std::vector<int>& sharded,
                     const GatherOptions& options) {
  std::vector<std::int64_t> numel;
  for (const int g : sharded)
    numel.push_back(model.groups()[static_cast<std::size_t>(g)].layout.numel());
  GroupsOfBlocks blocks;
  for (int b = 0; b < model.num_blocks(); ++b) {
    std::vector<int>& of_block = blocks.emplace_back();
    for (const int g : model.groups_of(b)) {
      const auto at = std::lower_bound(sharded.begin(), sharded.end(), g);
      if (at != sharded.end() && *at == g)
        of_block.push_back(static_cast<int>(at - sharded.begin()));
    }
  }
  return {std::move(blocks), std::move(numel), options};
}

}  // namespace

WeightGather::WeightGather(ModelInstance& model, GatherOptions options)
    : model_(model), sharded_(gathered_groups(model)), order_(order_of(model, sharded_, options)) {}

void WeightGather::begin(std::span<const Action> actions) {
  std::vector<int> trace;
  for (const Action& action : actions) {
    if (!reads_weights(action.kind)) continue;
    const auto [first, last] = model_.blocks_of(action.chunk);
    for (int i = 0; i < last - first; ++i)
      trace.push_back(action.kind == ActionKind::Forward ? first + i : last - 1 - i);
  }
  order_.begin(std::move(trace));
}

void WeightGather::before(const Action& action, const BlockRun& run) {
  if (!reads_weights(action.kind)) return;
  TESSERA_ASSERT(order_.next() == run.block);
  post(order_.before());
  for (const int g : model_.groups_of(run.block)) {
    if (!model_.groups()[static_cast<std::size_t>(g)].tile) weights(g).wait();
  }
  post(order_.ahead());
  fetch();
}

void WeightGather::after(const Action& action, const BlockRun& run) {
  if (!reads_weights(action.kind)) return;
  model_.finish_tiles(run.block);
  release(order_.after());
}

void WeightGather::end() {
  release(order_.end());
}

/// Starts to read weights that rest in a tier and are needed after those that are gathered.
void WeightGather::fetch() {
  if (model_.weight_options().tier == nullptr) return;
  for (const int g : order_.upcoming(model_.weight_options().tier_buffers)) {
    if (RestingPart* const part = weights(sharded_[static_cast<std::size_t>(g)]).resting())
      part->fetch();
  }
}

void WeightGather::post(const std::vector<int>& sharded) {
  for (const int g : sharded)
    weights(sharded_[static_cast<std::size_t>(g)]).post();
}

void WeightGather::release(const std::vector<int>& sharded) {
  for (const int g : sharded)
    weights(sharded_[static_cast<std::size_t>(g)]).release();
}

}  // namespace tessera::parallel
