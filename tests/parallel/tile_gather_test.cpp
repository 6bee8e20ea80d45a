// SPDX-License-Identifier: Apache-2.0
// Gathers of tiles by ranks that use them in other numbers and orders: every rank gets the values
// of the tiles that it asks for, and all ranks leave a block together.
#include "tessera/parallel/tile_gather.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/philox.h"
#include "tessera/mesh/mesh.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {
namespace {

constexpr std::size_t kTiles = 5;

std::shared_ptr<const ParamInfo> rows_of_tile(std::size_t tile) {
  ParamInfo info;
  info.name = "w" + std::to_string(tile);
  info.shape = info.matrix_shape = {kChunk + 8 * static_cast<std::int64_t>(tile)};
  info.axes = {LogicalAxis::None};
  return std::make_shared<const ParamInfo>(std::move(info));
}

float value_of(std::size_t tile) {
  return static_cast<float>(3 * tile + 1);
}

/// The tiles whose values a rank has, and those of them that it gathers with others.
struct Tiles {
  std::vector<FlatLayout> layouts;
  std::vector<std::unique_ptr<WorkingWeights>> weights;
  TileGather gather;

  /// The last tile is whole on every rank.
  explicit Tiles(comm::World& world) : gather(world) {
    const GroupRanks ranks = ranks_of(world, dense_axes());
    for (std::size_t t = 0; t < kTiles; ++t)
      layouts.emplace_back("tile", nn_params(t), ranks.fold->size());
    for (std::size_t t = 0; t < kTiles; ++t) {
      const bool shared = t + 1 < kTiles;
      weights.push_back(weight_strategies()
                            .get(shared ? "sharded" : "replicated")
                            .make({world, ranks, layouts[t], DType::F32}));
      weights[t]->begin_write();
      weights[t]->own().fill_(value_of(t));
      weights[t]->written();
      weights[t]->settle();
      EXPECT_EQ(gather.add(*weights[t], shared ? ranks.inner : nullptr), t);
      EXPECT_EQ(gather.gathers(t), shared);
    }
  }
  static std::vector<std::shared_ptr<const ParamInfo>> nn_params(std::size_t tile) {
    return {rows_of_tile(tile)};
  }

  void use(std::size_t tile) {
    gather.fetch(tile, (tile + 1) % kTiles);
    EXPECT_TRUE(weights[tile]->gathered());
    EXPECT_TRUE(at::equal(weights[tile]->whole(),
                          at::full({layouts[tile].numel()}, value_of(tile), at::kFloat)));
    gather.release(tile);
    for (std::size_t t = 0; t + 1 < kTiles; ++t)
      EXPECT_FALSE(weights[t]->gathered()) << t;
  }
};

// As many as a head that runs for a few samples at a time, and none, as without samples.
TEST(TileGather, ServesRanksThatUseALayerUnequallyOften) {
  comm::run_threads(mesh::Mesh({.dp_shard = 4}), [](comm::World& world) {
    at::set_num_threads(1);
    Tiles tiles(world);
    for (int pass = 0; pass < 3; ++pass) {
      const int uses = (world.rank() + pass) % 4;
      for (int use = 0; use < uses; ++use) {
        for (std::size_t t = 0; t < kTiles; ++t)
          tiles.use(t);
      }
      tiles.gather.finish();
    }
    world.barrier(TESSERA_HERE("end of the test"));
  });
}

// The ranks agree on each gather, so that no order of uses can block them or mix their tiles.
TEST(TileGather, ServesAnyOrderOfUses) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    comm::run_threads(mesh::Mesh({.dp_rep = 2, .dp_shard = 3}), [seed](comm::World& world) {
      at::set_num_threads(1);
      Tiles tiles(world);
      const Philox random{seed};
      for (std::uint64_t block = 0; block < 4; ++block) {
        const auto words = [&](std::uint64_t i) {
          return random(16 * block + i, static_cast<std::uint64_t>(world.rank()));
        };
        const std::uint32_t uses = words(0)[0] % 7;
        for (std::uint32_t use = 0; use < uses; ++use)
          tiles.use(words(1 + use)[0] % kTiles);
        tiles.gather.finish();
      }
      world.barrier(TESSERA_HERE("end of the test"));
    });
  }
}

// An error of a rank within a layer ends the others, which wait for it, and no destructor throws.
TEST(TileGather, EndsWithTheErrorOfARank) {
  EXPECT_THROW(comm::run_threads(mesh::Mesh({.dp_shard = 2}),
                                 [](comm::World& world) {
                                   Tiles tiles(world);
                                   if (world.rank() == 1) throw Error(Error::Kind::Memory, "x", "");
                                   tiles.use(0);
                                   tiles.gather.finish();
                                 }),
               Error);
}

}  // namespace
}  // namespace tessera::parallel
