// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weight_bytes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/parallel/working_weights.h"

namespace tessera::parallel {
namespace {

// The gathers of a step with two micro-batches: later ones repeat the second.
GatherOrder run_step(GroupsOfBlocks blocks,
                     std::vector<std::int64_t> numel,
                     const GatherOptions& options,
                     std::int64_t micros) {
  const auto count = static_cast<int>(blocks.size());
  std::vector<int> trace;
  for (std::int64_t micro = 0; micro < std::min<std::int64_t>(micros, 2); ++micro) {
    for (int block = 0; block < count; ++block)
      trace.push_back(block);
    for (int block = count - 1; block >= 0; --block)
      trace.push_back(block);
  }
  GatherOrder order(std::move(blocks), std::move(numel), options);
  order.begin(std::move(trace));
  while (order.next()) {
    order.before();
    order.ahead();
    order.after();
  }
  return order;
}

}  // namespace

WeightBytes weight_bytes(const PlannedStage& stage,
                         const GatherOptions& gather,
                         std::int64_t accumulation,
                         const PackingOptions& packing) {
  WeightBytes out;
  GroupsOfBlocks blocks(static_cast<std::size_t>(stage.blocks));
  std::vector<std::int64_t> numel;
  std::vector<const WeightStrategy*> coming;
  for (const PlannedBuffer& buffer : stage.buffers) {
    const WeightStrategy& strategy = weight_strategies().get(buffer.strategy);
    out.resting += strategy.bytes({.layout = buffer.layout,
                                   .inner = buffer.ranks.inner,
                                   .dtype = stage.working,
                                   .packing = packing});
    if (strategy.gathered_bytes(1, stage.working) == 0) continue;
    for (const int block : buffer.blocks)
      blocks[static_cast<std::size_t>(block)].push_back(static_cast<int>(numel.size()));
    numel.push_back(buffer.layout.numel());
    coming.push_back(&strategy);
  }
  out.elements = run_step(std::move(blocks), std::move(numel), gather, accumulation).most_live();
  // The strategies of a stage may differ; all of the elements may be those of the largest one.
  for (const WeightStrategy* strategy : coming)
    out.gathered = std::max(out.gathered, strategy->gathered_bytes(out.elements, stage.working));
  return out;
}

}  // namespace tessera::parallel
