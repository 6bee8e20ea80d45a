// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/flat_buffer.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera {
namespace {

std::vector<std::shared_ptr<const ParamInfo>> parameters(const std::vector<Shape>& shapes) {
  std::vector<std::shared_ptr<const ParamInfo>> out;
  for (const Shape& shape : shapes) {
    ParamInfo info;
    info.name = std::string(1, static_cast<char>('a' + out.size()));
    info.shape = shape;
    out.push_back(std::make_shared<const ParamInfo>(info));
  }
  return out;
}

class PlainRegion final : public comm::Region {
 public:
  PlainRegion(std::size_t size, bool* freed) : memory_(size), freed_(freed) {}
  ~PlainRegion() override { *freed_ = true; }
  [[nodiscard]] void* data() const override { return const_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::size_t bytes() const override { return memory_.size(); }

 private:
  std::vector<std::byte> memory_;
  bool* freed_;
};

TEST(FlatLayout, StartsEveryParameterAtAChunk) {
  const FlatLayout layout("h.0", parameters({{3, 5}, {1024}, {1025}, {2, 2}}), 1);

  std::vector<std::int64_t> begins;
  for (const Segment& segment : layout.segments())
    begins.push_back(segment.begin);

  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 1024, 2048, 4096}));
  EXPECT_EQ(layout.numel(), 5120);
}

TEST(FlatLayout, PadsForTheShardsWithoutMovingAnything) {
  const auto params = parameters({{3000}, {10}});
  const FlatLayout alone("h.0", params, 1);

  for (int shards = 1; shards <= 7; ++shards) {
    const FlatLayout layout("h.0", params, shards);

    EXPECT_EQ(layout.numel() % (kChunk * shards), 0);
    EXPECT_EQ(layout.shard_begin(shards), layout.numel());
    EXPECT_EQ(layout.shard_numel() % kChunk, 0);
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_EQ(layout.segments()[i].begin, alone.segments()[i].begin);
    }
  }
}

TEST(TensorOver, KeepsItsRegionAlive) {
  bool freed = false;
  auto region = std::make_shared<PlainRegion>(4096, &freed);
  at::Tensor tensor = tensor_over(region, 1024, DType::F32);
  tensor.fill_(3.0);

  region.reset();
  EXPECT_FALSE(freed);
  EXPECT_EQ(tensor.sum().item<float>(), 3072.0F);

  tensor.reset();
  EXPECT_TRUE(freed);
}

TEST(TensorOver, HasTheWorkingDtype) {
  bool freed = false;
  const auto region = std::make_shared<PlainRegion>(2048, &freed);
  for (const auto& [dtype, expected] :
       {std::pair(DType::F16, at::kHalf), std::pair(DType::BF16, at::kBFloat16)}) {
    const at::Tensor tensor = tensor_over(region, 1024, dtype);

    EXPECT_EQ(tensor.scalar_type(), expected);
    EXPECT_EQ(tensor.data_ptr(), region->data());
    EXPECT_EQ(tensor.nbytes(), region->bytes());
  }
}

/// Five matrices of 3 x 500, of which a rank has `count` from `first` on; others may have three.
std::shared_ptr<const ParamInfo> stacked(std::int64_t first, std::int64_t count) {
  ParamInfo info;
  info.name = "experts";
  info.shape = {5, 3, 500};
  info.axes = {LogicalAxis::Expert, LogicalAxis::Ffn, LogicalAxis::Embed};
  info.box = {{first, 0, 0}, {first + count, 3, 500}};
  info.room = 3 * 1500;
  info.room_matrices = 3;
  return std::make_shared<const ParamInfo>(std::move(info));
}

TEST(FlatLayout, GivesEachMatrixOfAStackedParameterASegment) {
  const auto before = parameters({{7}}).front(), after = parameters({{9}}).front();
  const FlatLayout three("experts", {before, stacked(0, 3), after}, 2);
  const FlatLayout two("experts", {before, stacked(3, 2), after}, 2);

  ASSERT_EQ(three.segments().size(), 5U);
  ASSERT_EQ(two.segments().size(), 4U);
  // 1500 elements take two chunks.
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(three.segments()[1 + i].begin, 1024 + 2048 * static_cast<std::int64_t>(i));
    EXPECT_EQ(three.segments()[1 + i].numel, 1500);
  }
  EXPECT_EQ(two.segments()[2].begin, 1024 + 2048);
  EXPECT_EQ(two.segments()[2].matrix, 4);
  EXPECT_EQ(two.segments()[2].name(), "experts[4]");
  EXPECT_EQ(two.segments()[2].box(), (mesh::Box{{4, 0, 0}, {5, 3, 500}}));
  EXPECT_EQ(two.segments()[3].begin, three.segments()[4].begin)
      << "what follows is at the same place on every rank";
  EXPECT_EQ(two.numel(), three.numel());
  ASSERT_EQ(two.params().size(), 3U);
  EXPECT_EQ(two.segments_of(two.params()[1]).size(), 2U);
  EXPECT_EQ(two.params()[2].first, 3U);
}

TEST(ViewOf, LeavesOutTheGapsBetweenTheMatricesOfAStackedParameter) {
  const FlatLayout layout("experts", {stacked(3, 2)}, 1);
  const at::Tensor flat = at::zeros({layout.numel()});

  const at::Tensor view = view_of(flat, layout.params().front());
  view.fill_(1.0);

  EXPECT_EQ(view.sizes(), (std::vector<std::int64_t>{2, 3, 500}));
  EXPECT_TRUE(view[1].is_contiguous());
  EXPECT_EQ(flat.sum().item<float>(), 3000.0F);
  EXPECT_EQ(flat.narrow(0, 2048, 1500).sum().item<float>(), 1500.0F);
}

TEST(ViewOf, SharesTheMemoryOfItsSegment) {
  const FlatLayout layout("h.0", parameters({{7}, {2, 3}}), 1);
  const at::Tensor flat = at::zeros({layout.numel()});

  view_of(flat, layout.params()[1]).fill_(1.0);

  EXPECT_EQ(view_of(flat, layout.params()[1]).sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(at::equal(flat.narrow(0, 1024, 6), at::ones({6})));
  EXPECT_EQ(flat.sum().item<float>(), 6.0F);
}

}  // namespace
}  // namespace tessera
