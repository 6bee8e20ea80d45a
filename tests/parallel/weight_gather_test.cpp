// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What ZeRO stage 3 gathers and keeps, counted: limits really limit.
#include "tessera/parallel/weight_gather.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"

namespace tessera::parallel {
namespace {

constexpr int kLayers = 4;
constexpr std::int64_t kEverything = std::numeric_limits<std::int64_t>::max();

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = kLayers;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  shape.tie_embeddings = false;
  return shape;
}

/// Counts on rank 0, in elements.
struct Seen {
  std::vector<std::int64_t> sizes;  ///< sharded, of each block
  std::int64_t most_live = 0;
  std::int64_t live_after = 0;
  /// Elements that the step's gathers received, counted by the transport.
  std::int64_t gathered = 0;
  std::int64_t kept = 0;  ///< parameters that stay whole
  std::int64_t largest_kept = 0, smallest_sharded = kEverything;

  [[nodiscard]] std::int64_t all() const {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  }
  [[nodiscard]] std::int64_t largest() const {
    return *std::max_element(sizes.begin(), sizes.end());
  }
  [[nodiscard]] std::int64_t layer() const { return sizes.at(1); }
};

void look_at(ModelInstance& model, Seen& seen) {
  for (int b = 0; b < model.num_blocks(); ++b) {
    std::int64_t size = 0;
    for (const int g : model.groups_of(b)) {
      const FlatGroup& group = model.groups()[static_cast<std::size_t>(g)];
      if (group.weights->comes_and_goes()) size += group.layout.numel();
      for (const Segment& segment : group.layout.segments()) {
        if (group.weights->comes_and_goes()) {
          seen.smallest_sharded = std::min(seen.smallest_sharded, segment.numel);
        } else {
          seen.kept += segment.numel;
          seen.largest_kept = std::max(seen.largest_kept, segment.numel);
        }
      }
    }
    seen.sizes.push_back(size);
  }
}

/// Every block's run of a step, without the blocks.
void run_blocks(ModelInstance& model, WeightGather& gather, int micros) {
  const std::vector<Action> actions = accumulation_schedule(micros);
  gather.begin(actions);
  for (const Action& action : actions) {
    if (!reads_weights(action.kind)) continue;
    for (int i = 0; i < model.num_blocks(); ++i) {
      const int b = action.kind == ActionKind::Forward ? i : model.num_blocks() - 1 - i;
      gather.before(action, {b, action.micro, micros});
      gather.after(action, {b, action.micro, micros});
    }
  }
  gather.end();
}

Seen step(const GatherOptions& options, int micros = 1, WeightOptions weights = {}) {
  weights.residency = Residency::Sharded;
  Seen seen;
  comm::run_threads(2, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), weights, world);
    WeightGather gather(model, options);
    const std::int64_t before = world.transport().traffic().elements;
    run_blocks(model, gather, micros);
    if (world.is_leader()) {
      look_at(model, seen);
      seen.most_live = gather.most_live();
      seen.live_after = gather.live();
      seen.gathered = world.transport().traffic().elements - before;
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  return seen;
}

TEST(WeightGather, HasTheBlockThatRunsAndTheNextOne) {
  const Seen seen = step({});

  EXPECT_EQ(seen.most_live, 2 * seen.layer());
  EXPECT_EQ(seen.live_after, 0);
}

TEST(WeightGather, HasOneBlockWhereNothingIsPrefetched) {
  const Seen seen = step({.prefetch = 0});

  EXPECT_EQ(seen.most_live, seen.largest());
}

TEST(WeightGather, PrefetchesAsManyElementsAsTheBucketHolds) {
  const std::int64_t layer = step({}).layer(), head = step({}).sizes.back();

  EXPECT_EQ(step({.prefetch = 2 * layer}).most_live, 3 * layer);
  // Two layers are too many; with the last one there is room for the head.
  EXPECT_EQ(step({.prefetch = 2 * layer - 1}).most_live, 2 * layer + head);
  EXPECT_EQ(step({.prefetch = kEverything}).most_live, step({}).all());
}

TEST(WeightGather, StaysBelowTheLimitOfLiveWeightsButForOneBlock) {
  const Seen unlimited = step({.prefetch = kEverything}),
             one = step({.prefetch = kEverything, .max_live = 1});
  EXPECT_EQ(one.most_live, one.largest());

  for (const std::int64_t layers : {2, 3}) {
    const std::int64_t limit = layers * unlimited.layer();
    const Seen seen = step({.prefetch = kEverything, .max_live = limit});
    EXPECT_LE(seen.most_live, limit + seen.largest());
    EXPECT_GE(seen.most_live, limit);
    EXPECT_LT(seen.most_live, unlimited.most_live);
  }
}

TEST(WeightGather, GathersAgainWhatIsNotUsedWithinTheReuseDistance) {
  for (const int micros : {1, 3}) {
    const Seen none = step({}, micros);
    const std::int64_t first = none.sizes.front(), last = none.sizes.back();
    const std::int64_t each = 2 * none.all() - last;
    // The last block turns around, the first one begins the next micro-batch.
    EXPECT_EQ(none.gathered, micros * each - (micros - 1) * first);

    // Between two runs of the last layer the head runs twice; of the first one, the embedding does.
    const Seen near = step({.max_reuse_distance = 2 * last}, micros);
    ASSERT_EQ(first, last);
    EXPECT_EQ(near.gathered, none.gathered - (2 * micros - 1) * none.layer());

    const Seen far = step({.max_reuse_distance = kEverything}, micros);
    EXPECT_EQ(far.gathered, far.all());
    EXPECT_EQ(far.most_live, far.all());
  }
}

TEST(WeightGather, LimitsLiveWeightsBeforeItKeepsThemForReuse) {
  const Seen seen = step({.max_live = 1, .max_reuse_distance = kEverything});

  EXPECT_EQ(seen.most_live, seen.largest());
  EXPECT_EQ(seen.gathered, 2 * seen.all() - seen.sizes.back());
}

TEST(WeightGather, ReadsPartsThatRestOnceForEachGather) {
  for (const int buffers : {1, 2, 3, 8}) {
    for (const bool prefetches : {true, false}) {
      SCOPED_TRACE(std::to_string(buffers) + (prefetches ? " buffers, ahead" : " buffers"));
      comm::run_threads(2, [&](comm::World& world) {
        const auto tier = memory::tiers().get("host")({.block_bytes = 4096});
        ModelInstance model(
            models::gpt2(tiny()),
            {.residency = Residency::Resting, .tier = tier.get(), .tier_buffers = buffers},
            world);
        GatherOptions options;
        if (!prefetches) options.prefetch = 0;
        WeightGather gather(model, options);
        const std::int64_t before = world.transport().traffic().elements;
        run_blocks(model, gather, /*micros=*/2);
        // Parts are whole chunks of 1024 elements, here fp32, and therefore whole blocks.
        const std::int64_t gathered = world.transport().traffic().elements - before;
        EXPECT_GT(gathered, 0);
        EXPECT_EQ(tier->use().read_bytes * world.size(), gathered * 4);
        world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
      });
    }
  }
}

TEST(GatherOrder, NamesWhatIsNeededAfterWhatIsGathered) {
  GatherOrder order({{0}, {1}, {2, 0}, {3}}, {10, 10, 10, 10}, {});
  order.begin({0, 1, 2, 3, 3, 2, 1, 0});
  EXPECT_EQ(order.before(), std::vector{0});
  EXPECT_EQ(order.ahead(), std::vector{1});

  EXPECT_EQ(order.upcoming(1), std::vector{2});
  EXPECT_EQ(order.upcoming(9), (std::vector{2, 3}));
  (void)order.after();
  EXPECT_EQ(order.upcoming(9), (std::vector{2, 0, 3}));
}

TEST(Persistence, KeepsParametersBelowTheThresholdAndGathersNoneOfThem) {
  const Seen all = step({}), seen = step({}, 1, {.persistence_threshold = 1024});

  EXPECT_EQ(all.kept, 0);
  EXPECT_GT(seen.kept, 0);
  EXPECT_LT(seen.largest_kept, 1024);
  EXPECT_GE(seen.smallest_sharded, 1024);
  EXPECT_EQ(seen.gathered, 2 * seen.all() - seen.sizes.back());
  EXPECT_LT(seen.gathered, all.gathered);
}

TEST(Persistence, StopsAtTheLimitOfTheModel) {
  const std::int64_t all = step({}, 1, {.persistence_threshold = 1024}).kept;
  const Seen seen = step({}, 1, {.persistence_threshold = 1024, .persistent = 300});

  EXPECT_GT(all, 300);
  EXPECT_GT(seen.kept, 0);
  EXPECT_LE(seen.kept, 300);
  EXPECT_LT(seen.smallest_sharded, 1024);
}

}  // namespace
}  // namespace tessera::parallel
