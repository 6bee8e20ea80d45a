// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Micro-batches travel to a device beside its computation, and in order with it.
#include "tessera/parallel/batch_uploads.h"

#include <string>
#include <vector>

#include "devices/device_world.h"
#include "devices/simulated_gpu.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

using test::simulated_gpu;
using test::simulated_work;
using test::take_violations;
using testing::HasSubstr;
using testing::IsEmpty;

nn::Batch batch_of(std::int64_t first) {
  nn::Batch out;
  out.set("input_ids", at::arange(first, first + 8).view({2, 4}));
  out.sample_ids = {first, first + 1};
  return out;
}

TEST(BatchUploads, ArriveWithoutAWaitOfTheHostAndInOrderWithTheComputation) {
  (void)take_violations();
  BatchUploads uploads(simulated_gpu());
  const std::int64_t waits = simulated_work().host_waits;
  for (int micro = 0; micro < 3; ++micro) {
    uploads.post(micro + 1, batch_of(10 * (micro + 1)));
    const nn::Batch there = uploads.take(micro, batch_of(10 * micro));

    EXPECT_TRUE(
        host_values(there.tensor("input_ids")).equal(batch_of(10 * micro).tensor("input_ids")));
    EXPECT_EQ(there.sample_ids, batch_of(10 * micro).sample_ids);
    (void)(there.tensor("input_ids") + 1);
  }
  EXPECT_EQ(simulated_work().host_waits, waits);
  EXPECT_THAT(take_violations(), IsEmpty());
}

TEST(BatchUploads, KeepTheFirstOfTwoPostsAndForgetThemAfterAnError) {
  BatchUploads uploads(simulated_gpu());
  uploads.post(0, batch_of(0));
  uploads.post(0, batch_of(20));
  EXPECT_EQ(uploads.take(0, batch_of(0)).sample_ids.front(), 0);

  uploads.post(0, batch_of(30));
  uploads.clear();
  EXPECT_EQ(uploads.take(0, batch_of(40)).sample_ids.front(), 40);
}

// ---- what the mechanism cannot do without

/// The violations of a training, whose bits are the same in spite of them.
std::vector<std::string> violations_without(test::Forgotten what) {
  test::TinyRun run;
  run.use_world(test::world_on_gpu);
  const test::Layout layout = {.accumulation = 3};
  const test::Trace expected = run.train(layout, 1);
  EXPECT_THAT(take_violations(), IsEmpty());
  const test::ScopedForgotten forgotten(what);
  test::expect_same_bits(run.train(layout, 1), expected);
  return take_violations();
}

TEST(BatchUploads, AreFoundOutWithoutTheirEvent) {
  EXPECT_THAT(violations_without(test::Forgotten::WaitsOfComputation),
              testing::Contains(HasSubstr("reads what a copy to the device on")));
}

TEST(BatchUploads, AreFoundOutIfTheirMemoryIsGivenBackTooEarly) {
  EXPECT_THAT(violations_without(test::Forgotten::UseByStreams),
              testing::Contains(HasSubstr("gives back what")));
}

TEST(BatchUploads, LeaveABatchOfTheCpuWhereItIs) {
  BatchUploads uploads(at::kCPU);
  const nn::Batch batch = batch_of(0);
  uploads.post(0, batch);
  EXPECT_TRUE(uploads.take(0, batch).tensor("input_ids").is_same(batch.tensor("input_ids")));
}

}  // namespace
}  // namespace tessera::parallel
