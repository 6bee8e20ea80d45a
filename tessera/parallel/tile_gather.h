// SPDX-License-Identifier: Apache-2.0
// Brings tiles of weights into memory while a layer computes with them, also where ranks gather
// them for each other and some ranks use a layer less often than others, or not at all.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/parallel/working_weights.h"

namespace tessera::parallel {

/// A rank whose micro-batch has no samples runs no layer, and one with fewer samples runs the head
/// less often, so that the order of the gathers is not known before the step. The ranks therefore
/// agree on each gather: before a rank uses a tile that others hold parts of, all ranks exchange
/// which tile each of them needs next, or that it has run the block. Each then takes part in the
/// gathers of all these tiles, in the order of their numbers, and keeps only its own. finish()
/// goes on until no rank needs a tile. Cost: a message of one number for each use of such a tile
/// and each run of a block. Used only on the rank's own thread.
class TileGather {
 public:
  explicit TileGather(comm::World& world) : world_(world) {}

  /// Adds the weights of a tile, which must outlive this; returns its number. The ranks add the
  /// same tiles in the same order. `ranks` gather them for each other, in memory or from their
  /// tiers; nullptr: the rank has or reads all of it by itself. All tiles that are gathered have
  /// the same ranks.
  std::size_t add(WorkingWeights& weights, const comm::Group* ranks);

  /// Waits until the tile is in memory. At most one tile is in use at a time if ranks gather them.
  /// `next`: the tile after it, of which this rank reads its part ahead if that rests in a tier.
  void fetch(std::size_t tile, std::size_t next);
  void release(std::size_t tile);
  /// Takes part in the gathers of ranks that still run the block; returns when all have run it.
  /// Collective over the ranks of the tiles, in each run of a block that uses such tiles.
  void finish();
  /// Returns whether finish() is collective: ranks gather the tile for each other.
  [[nodiscard]] bool gathers(std::size_t tile) const { return tiles_.at(tile).gathered; }

 private:
  struct Tile {
    WorkingWeights* weights = nullptr;
    bool gathered = false;  ///< by ranks for each other
  };
  [[nodiscard]] std::vector<std::size_t> exchange(std::optional<std::size_t> mine);
  void gather(const std::vector<std::size_t>& asked, std::optional<std::size_t> mine);

  comm::World& world_;
  const comm::Group* ranks_ = nullptr;
  std::vector<Tile> tiles_;
  std::optional<std::size_t> in_use_;
};

}  // namespace tessera::parallel
