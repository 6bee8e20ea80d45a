// SPDX-License-Identifier: Apache-2.0
// Every strategy for the weights of a flat buffer: what ranks hold, write, gather and lend.
#include "tessera/parallel/working_weights.h"

#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/memory/tiers/tier.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/parallel/flat_group_plan.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kNumel = 5000;

std::shared_ptr<const ParamInfo> info() {
  ParamInfo info;
  info.name = "w";
  info.shape = info.matrix_shape = {kNumel};
  info.axes = {LogicalAxis::None};
  return std::make_shared<const ParamInfo>(std::move(info));
}

at::Tensor values(DType dtype) {
  return at::randn({8 * kChunk}, at::make_generator<at::CPUGeneratorImpl>(7), at::kFloat)
      .to(dtype == DType::BF16 ? at::kBFloat16 : at::kFloat);
}

/// What every rank should compute with: the values after a round trip through 8 bits.
at::Tensor rounded(const at::Tensor& whole) {
  return ops::from_int8(ops::to_int8(whole.view({-1, 256})), whole.scalar_type()).view({-1});
}

/// Calls fn on `ranks` ranks, in groups of `shards` that hold all parts.
void on_ranks(int ranks, int shards, const std::function<void(comm::World&)>& fn) {
  comm::run_threads(mesh::Mesh({.dp_rep = ranks / shards, .dp_shard = shards}),
                    [&](comm::World& world) {
                      at::set_num_threads(1);
                      fn(world);
                    });
}

std::unique_ptr<WorkingWeights> make(const std::string& strategy,
                                     comm::World& world,
                                     const FlatLayout& layout,
                                     DType dtype) {
  return weight_strategies().get(strategy).make(
      {world, ranks_of(world, dense_axes()), layout, dtype, {.packing = Packing::Int8}});
}

/// The part of `all` that the rank of that index writes.
at::Tensor part_of(const at::Tensor& all,
                   const WorkingWeights& weights,
                   const FlatLayout& layout,
                   int index) {
  const bool part = weights.own().numel() < layout.numel();
  return all.narrow(0, part ? layout.shard_begin(index) : 0, weights.own().numel());
}

void write(WorkingWeights& weights, const FlatLayout& layout, int index, const at::Tensor& from) {
  weights.begin_write();
  weights.own().copy_(part_of(from, weights, layout, index));
  weights.written();
  weights.settle();
}

class GatherForms : public ::testing::TestWithParam<DType> {};

TEST_P(GatherForms, OfInt8GivesEveryRankTheSameRoundedValues) {
  for (const auto& [ranks, shards] : {std::pair(2, 2), std::pair(4, 4), std::pair(4, 2)}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, groups of " + std::to_string(shards));
    on_ranks(ranks, shards, [&](comm::World& world) {
      const comm::Group& group = world.group(mesh::AxisSet::dp());
      const FlatLayout layout("test", {info()}, group.size());
      const at::Tensor all = values(GetParam()).narrow(0, 0, layout.numel());
      const auto owner = make("sharded_codes", world, layout, GetParam());
      WorkingWeights& weights = *owner;

      for (const double factor : {1.0, -3.0}) {
        const at::Tensor wanted = all * factor;
        write(weights, layout, group.index, wanted);
        for (int use = 0; use < 2; ++use) {
          weights.post();
          weights.wait();
          EXPECT_TRUE(at::equal(weights.whole(), rounded(wanted)));
          weights.release();
        }
        EXPECT_TRUE(
            at::equal(weights.own(),
                      wanted.narrow(0, layout.shard_begin(group.index), layout.shard_numel())));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         GatherForms,
                         ::testing::Values(DType::F32, DType::BF16),
                         [](const auto& param) {
                           return param.param == DType::F32 ? "fp32" : "bf16";
                         });

/// The guarantees of every strategy.
struct Strategy {
  std::string name;
  bool comes_and_goes, writes_all, sends_codes;
};
void PrintTo(const Strategy& strategy, std::ostream* out) {
  *out << strategy.name;
}

class Strategies : public ::testing::TestWithParam<Strategy> {};

TEST_P(Strategies, GiveEveryRankWhatTheRanksWrote) {
  for (const auto& [ranks, shards] : {std::pair(1, 1), std::pair(2, 2), std::pair(4, 2)}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, groups of " + std::to_string(shards));
    on_ranks(ranks, shards, [&](comm::World& world) {
      const comm::Group& group = world.group(mesh::AxisSet::dp());
      const FlatLayout layout("test", {info()}, group.size());
      const at::Tensor all = values(DType::BF16).narrow(0, 0, layout.numel());
      const auto weights = make(GetParam().name, world, layout, DType::BF16);
      EXPECT_EQ(weights->dtype(), DType::BF16);
      EXPECT_EQ(weights->comes_and_goes(), GetParam().comes_and_goes);
      EXPECT_EQ(weights->own().numel(),
                GetParam().writes_all ? layout.numel() : layout.shard_numel());
      EXPECT_EQ(weights->packed(), nullptr);
      // A view, as a block has it, is made once and read after each gather.
      const at::Tensor view = weights->whole().narrow(0, 100, 200);

      for (const double factor : {1.0, -3.0}) {
        const at::Tensor written = all * factor;
        const at::Tensor wanted = GetParam().sends_codes ? rounded(written) : written;
        write(*weights, layout, group.index, written);
        for (int use = 0; use < 2; ++use) {
          weights->wait();
          EXPECT_TRUE(weights->gathered());
          EXPECT_TRUE(at::equal(weights->whole(), wanted));
          EXPECT_TRUE(at::equal(view, wanted.narrow(0, 100, 200)));
          weights->release();
          EXPECT_EQ(weights->gathered(), !GetParam().comes_and_goes);
          EXPECT_EQ(weights->whole().storage().data() == nullptr, GetParam().comes_and_goes);
        }
        EXPECT_TRUE(at::equal(weights->own(), part_of(written, *weights, layout, group.index)));
      }
      weights->begin_write();
    });
  }
}

TEST_P(Strategies, LendTheirMemoryToWeightsThatOutliveThem) {
  on_ranks(2, 2, [&](comm::World& world) {
    const comm::Group& group = world.group(mesh::AxisSet::dp());
    const FlatLayout layout("test", {info()}, group.size());
    const at::Tensor all = values(DType::F32).narrow(0, 0, layout.numel());
    auto lender = make(GetParam().name, world, layout, DType::F32);
    write(*lender, layout, group.index, all);
    lender->wait();
    const void* const own = lender->own().data_ptr();

    const auto borrowed = lender->borrowed();
    EXPECT_EQ(borrowed->own().data_ptr(), own);
    EXPECT_EQ(borrowed->gathered(), !GetParam().comes_and_goes);
    if (GetParam().comes_and_goes) {
      EXPECT_EQ(borrowed->whole().storage().data(), nullptr);
    } else {
      EXPECT_EQ(borrowed->whole().data_ptr(), lender->whole().data_ptr());
    }
    lender->begin_write();  // ends the collective operations under way
    lender.reset();

    borrowed->wait();
    EXPECT_TRUE(at::equal(borrowed->whole(), GetParam().sends_codes ? rounded(all) : all));
    borrowed->release();
    borrowed->begin_write();
  });
}

INSTANTIATE_TEST_SUITE_P(All,
                         Strategies,
                         ::testing::Values(Strategy{"replicated", false, true, false},
                                           Strategy{"whole", false, false, false},
                                           Strategy{"sharded", true, false, false},
                                           Strategy{"sharded_codes", true, false, true}),
                         [](const auto& param) { return param.param.name; });

// Weights on the host of a device: tests/devices/device_training_test.cpp.
TEST(WeightStrategies, AreTheseAndPackedAndRestingAndOnHost) {
  const std::vector<std::string> wanted = {
      "on_host", "packed", "replicated", "resting", "sharded", "sharded_codes", "whole"};
  EXPECT_EQ(weight_strategies().names(), wanted);
}

TEST(WeightStrategies, LetWeightsRestWithoutMemory) {
  for (const int ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, ranks, [&](comm::World& world) {
      const int index = world.group(mesh::AxisSet::dp()).index;
      const FlatLayout layout("test", {info()}, ranks);
      const auto tier = memory::tiers().get("host")({.block_bytes = 4096});
      const auto weights = weight_strategies().get("resting").make(
          {world,
           ranks_of(world, dense_axes()),
           layout,
           DType::F32,
           {},
           {std::make_shared<UnitBuffers>(*tier, 1, memory::Tag::Parameters), 0}});
      const auto has_memory = [](const at::Tensor& tensor) {
        return tensor.storage().data() != nullptr;
      };
      for (const double factor : {1.0, -3.0}) {
        const at::Tensor all = at::arange(layout.numel(), at::kFloat) * factor;
        weights->begin_write();
        EXPECT_FALSE(has_memory(weights->own()));
        {
          const HeldPart held(*weights, /*changed=*/true), again(*weights, /*changed=*/false);
          weights->own().copy_(all.narrow(0, layout.shard_begin(index), layout.shard_numel()));
        }
        weights->written();
        EXPECT_FALSE(has_memory(weights->own()) || has_memory(weights->whole()));
        for (int use = 0; use < 2; ++use) {
          weights->post();
          weights->wait();
          EXPECT_TRUE(at::equal(weights->whole(), all));
          weights->release();
        }
        EXPECT_FALSE(has_memory(weights->own()) || has_memory(weights->whole()));
      }
    });
  }
}

TEST(WeightStrategies, UnpackPackedWeightsWhileTheyAreUsed) {
  on_ranks(1, 1, [&](comm::World& world) {
    const FlatLayout layout("test", {info()}, 1);
    const auto weights = make("packed", world, layout, DType::F32);
    const at::Tensor all = at::arange(kNumel, at::kFloat);
    ASSERT_NE(weights->packed(), nullptr);
    EXPECT_FALSE(weights->own().defined());

    weights->packed()->pack(0, all, nullptr);
    weights->written();
    weights->wait();

    // One row shares a scale: its largest magnitude / 127.
    const at::Tensor error = (weights->whole().narrow(0, 0, kNumel) - all).abs().max();
    EXPECT_LE(error.item<float>(), 0.5F * static_cast<float>(kNumel - 1) / 127.0F * 1.001F);
    weights->release();
    EXPECT_EQ(weights->whole().storage().data(), nullptr);
  });
}

TEST(WeightStrategies, FollowFromResidencyFormAndRanks) {
  const auto name = [](Residency residency, GatherForm form, int ranks) {
    return std::string(weight_strategy(residency, form, ranks));
  };
  for (const GatherForm form : {GatherForm::Values, GatherForm::Int8}) {
    for (const Residency residency : {Residency::Replicated, Residency::Whole, Residency::Sharded})
      EXPECT_EQ(name(residency, form, 1), "replicated") << "nothing is gathered";
    for (const int ranks : {1, 2}) {
      EXPECT_EQ(name(Residency::Packed, form, ranks), "packed");
      EXPECT_EQ(name(Residency::Resting, form, ranks), "resting");
      EXPECT_EQ(name(Residency::OnHost, form, ranks), "on_host");
    }
    EXPECT_EQ(name(Residency::Replicated, form, 2), "replicated");
    EXPECT_EQ(name(Residency::Whole, form, 2), "whole");
  }
  EXPECT_EQ(name(Residency::Sharded, GatherForm::Values, 2), "sharded");
  EXPECT_EQ(name(Residency::Sharded, GatherForm::Int8, 2), "sharded_codes");
}

}  // namespace
}  // namespace tessera::parallel
