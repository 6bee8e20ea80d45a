// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/tile_gather.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

constexpr double kNoTile = -1.0;

}  // namespace

std::size_t TileGather::add(WorkingWeights& weights, const comm::Group* ranks) {
  if (ranks != nullptr) {
    TESSERA_ASSERT(ranks_ == nullptr || ranks_ == ranks);
    ranks_ = ranks;
  }
  tiles_.push_back({&weights, ranks != nullptr});
  return tiles_.size() - 1;
}

void TileGather::fetch(std::size_t tile, std::size_t next) {
  if (tiles_.at(tile).gathered) {
    TESSERA_ASSERT(!in_use_);
    gather(exchange(tile), tile);
    in_use_ = tile;
  } else {
    tiles_.at(tile).weights->wait();
  }
  tiles_.at(next).weights->fetch();
}

void TileGather::release(std::size_t tile) {
  if (in_use_ == tile) in_use_.reset();
  tiles_.at(tile).weights->release();
}

void TileGather::finish() {
  while (true) {
    const std::vector<std::size_t> asked = exchange(std::nullopt);
    if (asked.empty()) return;
    gather(asked, std::nullopt);
  }
}

/// Returns the tiles that ranks need next, ascending.
std::vector<std::size_t> TileGather::exchange(std::optional<std::size_t> mine) {
  std::vector<double> all =
      world_.all_gather(*ranks_,
                        {mine ? static_cast<double>(*mine) : kNoTile},
                        TESSERA_HERE("which tiles of weights ranks need next"));
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::vector<std::size_t> out;
  for (const double tile : all) {
    if (tile != kNoTile) out.push_back(static_cast<std::size_t>(tile));
  }
  return out;
}

void TileGather::gather(const std::vector<std::size_t>& asked, std::optional<std::size_t> mine) {
  for (const std::size_t tile : asked) {
    WorkingWeights& weights = *tiles_.at(tile).weights;
    weights.wait();
    if (tile != mine) weights.release();
  }
}

}  // namespace tessera::parallel
