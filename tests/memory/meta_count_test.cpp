// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/meta_count.h"

#include <optional>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera::memory {
namespace {

at::Tensor floats(std::int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
}

TEST(MetaCounts, FollowTensorsAndKeepThePeak) {
  const MetaCount count;
  EXPECT_EQ(count.current(), 0);
  const at::Tensor kept = floats(10);
  {
    const at::Tensor sum = kept + floats(10);
    EXPECT_EQ(count.current(), 80);  // the second term is gone
  }
  EXPECT_EQ(count.current(), 40);
  EXPECT_EQ(count.peak(), 120);
}

TEST(MetaCounts, ViewsShareMemory) {
  const MetaCount count;
  const at::Tensor all = floats(12);
  const at::Tensor view = all.view({3, 4}).transpose(0, 1);
  EXPECT_EQ(count.current(), 48);
  const at::Tensor copy = view.contiguous();
  EXPECT_EQ(count.current(), 96);
}

TEST(MetaCounts, StartAgainAtResetPeak) {
  MetaCount count;
  { const at::Tensor moment = floats(100); }
  const at::Tensor kept = floats(1);
  count.reset_peak();
  EXPECT_EQ(count.peak(), 4);
}

TEST(MetaCounts, LeaveOutWhatIsNotCounted) {
  const MetaCount count;
  at::Tensor weights;
  {
    const NotCounted uncounted;
    weights = floats(1000);
  }
  const at::Tensor counted = floats(1);
  weights.reset();
  EXPECT_EQ(count.current(), 4);
  EXPECT_EQ(count.peak(), 4);
}

TEST(MetaCounts, TensorsMayOutliveThem) {
  std::optional<at::Tensor> survivor;
  {
    const MetaCount count;
    survivor = floats(5);
  }
  const MetaCount next;
  survivor.reset();
  EXPECT_EQ(next.current(), 0);
}

}  // namespace
}  // namespace tessera::memory
