// SPDX-License-Identifier: Apache-2.0
// Weights of a flat buffer that ranks hold in parts, gathered as values and as 8-bit codes.
#include "tessera/parallel/working_weights.h"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/ops/int8_rows.h"

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

void write(WorkingWeights& weights, const FlatLayout& layout, int index, const at::Tensor& from) {
  weights.begin_write();
  weights.own().copy_(from.narrow(0, layout.shard_begin(index), layout.shard_numel()));
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
      WorkingWeights weights(world,
                             ranks_of(world, dense_axes()),
                             layout,
                             GetParam(),
                             Residency::Sharded,
                             {},
                             GatherForm::Int8);

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

TEST_P(GatherForms, OfValuesGivesTheValues) {
  on_ranks(2, 2, [&](comm::World& world) {
    const comm::Group& group = world.group(mesh::AxisSet::dp());
    const FlatLayout layout("test", {info()}, group.size());
    const at::Tensor all = values(GetParam()).narrow(0, 0, layout.numel());
    WorkingWeights weights(
        world, ranks_of(world, dense_axes()), layout, GetParam(), Residency::Sharded);

    write(weights, layout, group.index, all);
    weights.wait();

    EXPECT_TRUE(at::equal(weights.whole(), all));
    weights.release();
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         GatherForms,
                         ::testing::Values(DType::F32, DType::BF16),
                         [](const auto& param) {
                           return param.param == DType::F32 ? "fp32" : "bf16";
                         });

TEST(GatherForm, IsThatOfValuesWhereNothingIsGathered) {
  on_ranks(1, 1, [&](comm::World& world) {
    const FlatLayout layout("test", {info()}, 1);
    WorkingWeights weights(world,
                           ranks_of(world, dense_axes()),
                           layout,
                           DType::F32,
                           Residency::Sharded,
                           {},
                           GatherForm::Int8);
    const at::Tensor all = values(DType::F32).narrow(0, 0, layout.numel());

    write(weights, layout, 0, all);

    EXPECT_EQ(weights.residency(), Residency::Replicated);
    EXPECT_TRUE(at::equal(weights.whole(), all));
  });
}

}  // namespace
}  // namespace tessera::parallel
