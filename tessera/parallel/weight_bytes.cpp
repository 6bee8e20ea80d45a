// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weight_bytes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

// The buffers that come and go.
struct Coming {
  GroupsOfBlocks blocks;
  std::vector<std::int64_t> numel;
  std::vector<std::int64_t> on_disk;  // PlannedBuffer::on_disk
};

struct Gathers {
  std::int64_t most_live = 0;  // elements
  std::int64_t read = 0;       // bytes from the disk
};

Gathers run_step(const Coming& coming, const GatherOptions& options, std::int64_t micros) {
  const auto count = static_cast<int>(coming.blocks.size());
  std::vector<int> trace;
  for (std::int64_t micro = 0; micro < micros; ++micro) {
    for (int block = 0; block < count; ++block)
      trace.push_back(block);
    for (int block = count - 1; block >= 0; --block)
      trace.push_back(block);
  }
  GatherOrder order(coming.blocks, coming.numel, options);
  order.begin(std::move(trace));
  Gathers out;
  const auto gather = [&](const std::vector<int>& buffers) {
    for (const int b : buffers)
      out.read += coming.on_disk[static_cast<std::size_t>(b)];
  };
  while (order.next()) {
    gather(order.before());
    gather(order.ahead());
    order.after();
  }
  out.most_live = order.most_live();
  return out;
}

// All micro-batches after the second repeat it.
Gathers run_steps(const Coming& coming, const GatherOptions& options, std::int64_t micros) {
  const Gathers one = run_step(coming, options, 1);
  if (micros <= 1) return one;
  const Gathers two = run_step(coming, options, 2);
  return {two.most_live, two.read + (micros - 2) * (two.read - one.read)};
}

}  // namespace

WeightBytes weight_bytes(const PlannedStage& stage,
                         const GatherOptions& gather,
                         std::int64_t accumulation,
                         const PackingOptions& packing) {
  WeightBytes out;
  Coming coming{.blocks = GroupsOfBlocks(static_cast<std::size_t>(stage.blocks))};
  std::vector<const WeightStrategy*> strategies;
  std::int64_t parts = 0, largest = 0, sent = 0;  // of those on a disk
  std::int64_t tile = 0, tiles_read = 0;          // gathered by layers, one at a time
  for (const PlannedBuffer& buffer : stage.buffers) {
    const WeightStrategy& strategy = weight_strategies().get(buffer.strategy);
    out.resting += strategy.bytes({.layout = buffer.layout,
                                   .inner = buffer.ranks.inner,
                                   .dtype = stage.working,
                                   .packing = packing});
    if (buffer.group.residency == Residency::OnHost) {
      out.on_host += pinned_bytes(buffer.layout.shard_numel() *
                                  static_cast<std::int64_t>(size_of(stage.working)));
    }
    if (buffer.on_disk > 0) {
      out.disk += buffer.on_disk;
      if (buffer.group.trainable) out.updated += buffer.on_disk;
      ++parts;
      largest = std::max(largest, buffer.on_disk);
      // A rank's message is copied to memory that the others read.
      if (buffer.ranks.fold > 1) sent = std::max(sent, buffer.on_disk);
    }
    if (strategy.gathered_bytes(1, stage.working) == 0) continue;
    if (buffer.group.tile) {
      tile = std::max(tile, strategy.gathered_bytes(buffer.layout.numel(), stage.working));
      // Forward and backward read it, each micro-batch, in every block that uses it.
      tiles_read += 2 * accumulation * buffer.uses() * buffer.on_disk;
      continue;
    }
    for (const int block : buffer.blocks) {
      coming.blocks[static_cast<std::size_t>(block)].push_back(
          static_cast<int>(coming.numel.size()));
    }
    coming.numel.push_back(buffer.layout.numel());
    coming.on_disk.push_back(buffer.on_disk);
    strategies.push_back(&strategy);
  }
  out.buffers = std::min<std::int64_t>(stage.parts_in_memory, parts) * largest;
  out.resting += out.buffers + sent;
  if (parts > 0) out.staged = pinned_bytes(largest);
  const Gathers gathers = run_steps(coming, gather, accumulation);
  out.elements = gathers.most_live;
  out.read = gathers.read;
  // The strategies of a stage may differ; all of the elements may be those of the largest one.
  for (const WeightStrategy* strategy : strategies)
    out.gathered = std::max(out.gathered, strategy->gathered_bytes(out.elements, stage.working));
  out.gathered += tile;
  out.read += tiles_read;
  return out;
}

}  // namespace tessera::parallel
