// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which masters and states a rank owns, and what of them it saves and loads.
#include "tessera/parallel/shard_store.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/optim/rule.h"

namespace tessera::parallel {
namespace {

std::unique_ptr<optim::Rule> make_rule(const std::string& type) {
  config::Problems problems;
  config::Origins origins;
  return optim::rule_factory(type)(json::Value(), problems, origins);
}

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 1;
  shape.hidden_size = 24;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 48;
  shape.vocab_size = 50;
  shape.max_positions = 8;
  return shape;
}

/// Every element of a parameter gets its index.
void number(const ParamInfo& /*info*/, std::int64_t begin, std::int64_t end, float* out) {
  for (std::int64_t i = begin; i < end; ++i)
    *out++ = static_cast<float>(i);
}

float* values_of(const checkpoint::PieceBytes& piece) {
  return reinterpret_cast<float*>(piece.bytes.data());
}

TEST(ShardStore, SavesEveryElementOfTheJobOnOneRank) {
  const auto rule = make_rule("AdamW");
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    std::mutex mutex;
    // Ranks that wrote each element of each tensor.
    std::map<std::string, std::vector<int>> writers;
    std::size_t parameters = 0;
    comm::run_threads(3, [&](comm::World& world) {
      WeightOptions weights;
      if (stage == 3) weights.residency = Residency::Sharded;
      if (stage == 1 || stage == 2) weights.residency = Residency::Whole;
      ModelInstance model(models::gpt2(tiny()), weights, world);
      ShardStore store(world, model, *rule, {.stage = stage});
      store.fill(number);
      for (FlatGroup& group : model.groups())
        group.weights->settle();
      std::vector<checkpoint::PieceBytes> pieces;

      store.add_pieces(pieces, /*for_save=*/true);

      std::unique_lock lock(mutex);
      parameters = model.places().size();
      for (const checkpoint::PieceBytes& piece : pieces) {
        std::vector<int>& of = writers[piece.name];
        of.resize(static_cast<std::size_t>(piece.piece.box.numel()));
        for (std::int64_t i = piece.piece.begin; i < piece.piece.end; ++i) {
          ++of[static_cast<std::size_t>(i)];
          if (piece.name.starts_with("optimizer.")) continue;
          EXPECT_EQ(values_of(piece)[i - piece.piece.begin], static_cast<float>(i)) << piece.name;
        }
      }
      lock.unlock();
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
    });
    EXPECT_EQ(writers.size(), 3 * parameters) << "weights and two moments";
    for (const auto& [name, counts] : writers)
      EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), std::ssize(counts)) << name;
  }
}

TEST(ShardStore, LoadsWhatARankOwnsAndRoundsWhatItKeepsIn16Bits) {
  const auto rule = make_rule("AdamW");
  comm::run_threads(1, [&](comm::World& world) {
    WeightOptions weights;
    weights.working = DType::BF16;
    ModelInstance model(models::gpt2(tiny()), weights, world);
    ShardStore store(
        world, model, *rule, {.kept = {.masters = DType::BF16, .states = DType::BF16}});
    std::vector<checkpoint::PieceBytes> pieces;

    store.add_pieces(pieces, /*for_save=*/false);
    for (const checkpoint::PieceBytes& piece : pieces)
      std::fill_n(values_of(piece), piece.piece.end - piece.piece.begin, 1.001F);
    store.publish();
    for (FlatGroup& group : model.groups())
      group.weights->settle();

    // The nearest bf16 of 1.001 is 1: its last bit is worth 1/128.
    for (std::size_t g = 0; g < store.num_groups(); ++g) {
      for (const ParamShard& shard : store.shards(g)) {
        const at::Tensor own = model.groups()[g].weights->own().narrow(0, shard.at, shard.numel);
        EXPECT_TRUE((own == 1).all().item<bool>()) << shard.facts.name;
        ASSERT_EQ(shard.states.size(), 2U);
        for (const ShardState& state : shard.states) {
          EXPECT_EQ(state.kept.stored().scalar_type(), at::kBFloat16);
          EXPECT_TRUE((state.kept.stored() == 1).all().item<bool>()) << state.name;
        }
      }
    }
  });
}

TEST(ShardStore, LeavesStatesOutThatAStrategySavesOrLoadsItself) {
  const auto rule = make_rule("AdamW");
  comm::run_threads(1, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), {}, world);
    ShardStore::Options options;
    options.make_state = [](const ParamShard& shard, std::size_t index, const std::string& name) {
      const at::Tensor zeros = at::zeros({shard.numel});
      return ShardState{name, KeptState::over(zeros), index != 0, index != 1};
    };
    ShardStore store(world, model, *rule, std::move(options));
    const auto states = [&](bool for_save) {
      std::vector<checkpoint::PieceBytes> pieces;
      store.add_pieces(pieces, for_save);
      std::map<std::string, int> out;
      for (const checkpoint::PieceBytes& piece : pieces) {
        for (const std::string state : {"exp_avg", "exp_avg_sq"})
          out[state] += piece.name.starts_with("optimizer." + state + ".") ? 1 : 0;
      }
      return out;
    };

    EXPECT_EQ(states(true)["exp_avg"], 0);
    EXPECT_GT(states(true)["exp_avg_sq"], 0);
    EXPECT_GT(states(false)["exp_avg"], 0);
    EXPECT_EQ(states(false)["exp_avg_sq"], 0);
  });
}

TEST(ShardStore, FindsTheShardOfAParameterAndNoneOfAnotherRank) {
  const auto rule = make_rule("AdamW");
  comm::run_threads(2, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), {.residency = Residency::Sharded}, world);
    ShardStore store(world, model, *rule, {.stage = 3});

    for (int g = 0; g < static_cast<int>(store.num_groups()); ++g) {
      const FlatLayout& layout = model.groups()[static_cast<std::size_t>(g)].layout;
      const std::int64_t begin = layout.shard_begin(world.rank());
      for (int s = 0; s < static_cast<int>(layout.segments().size()); ++s) {
        const Segment& segment = layout.segments()[static_cast<std::size_t>(s)];
        const Segment range = segment.within(begin, begin + layout.shard_numel());
        const ParamShard* const found = store.find(g, s);
        ASSERT_EQ(found != nullptr, range.numel > 0) << segment.info->name;
        if (found == nullptr) continue;
        EXPECT_EQ(found->facts.name, segment.info->name);
        EXPECT_EQ(found->numel, range.numel);
      }
    }
  });
}

}  // namespace
}  // namespace tessera::parallel
