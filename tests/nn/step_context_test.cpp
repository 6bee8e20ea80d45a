// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/step_context.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/ops/dropout.h"

namespace tessera::nn {
namespace {

Batch samples(std::vector<std::int64_t> ids) {
  Batch batch;
  batch.sample_ids = std::move(ids);
  return batch;
}

at::Tensor mask(std::vector<std::int64_t> ids,
                std::uint64_t seed,
                const std::string& block,
                const std::string& site) {
  const Batch batch = samples(std::move(ids));
  StepContext context(Mode::Train, seed);
  context.batch = &batch;
  context.block_name = block;
  return ops::dropout(at::ones({batch.size(), 64}), context.dropout(site, 0.5));
}

TEST(DropoutSite, BelongsToTheSampleAndNotToItsPlaceInABatch) {
  const at::Tensor together = mask({7, 8, 9, 10}, 1, "h.0", "attention");

  const at::Tensor apart = at::cat({mask({7, 8}, 1, "h.0", "attention"),
                                    mask({9}, 1, "h.0", "attention"),
                                    mask({10}, 1, "h.0", "attention")});

  EXPECT_TRUE(at::equal(together, apart));
}

TEST(DropoutSite, DiffersBySeedBlockSiteAndSample) {
  const at::Tensor base = mask({7}, 1, "h.0", "attention");

  EXPECT_FALSE(at::equal(base, mask({7}, 2, "h.0", "attention")));
  EXPECT_FALSE(at::equal(base, mask({7}, 1, "h.1", "attention")));
  EXPECT_FALSE(at::equal(base, mask({7}, 1, "h.0", "mlp_output")));
  EXPECT_FALSE(at::equal(base, mask({8}, 1, "h.0", "attention")));
}

TEST(DropoutSite, IsOffOutsideOfTraining) {
  for (const Mode mode : {Mode::Eval, Mode::Prefill, Mode::Decode}) {
    EXPECT_FALSE(StepContext(mode, 1).dropout("attention", 0.5).active());
  }
}

class Nothing final : public Block {
  void declare(Params&) override {}
  Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
};

TEST(StepState, IsKeptForEachBlockAndType) {
  StepContext context(Mode::Decode, 1);
  const Nothing first, second;

  context.state<int>(first) = 3;

  EXPECT_EQ(context.state<int>(first), 3);
  EXPECT_EQ(context.state<int>(second), 0);
  EXPECT_EQ(context.state<double>(first), 0.0);
}

TEST(Deferred, RunsOnceAndInOrder) {
  StepContext context(Mode::Train, 1);
  std::vector<int> order;
  context.defer([&] { order.push_back(1); });
  context.defer([&] { order.push_back(2); });

  context.run_deferred();
  context.run_deferred();

  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace tessera::nn
