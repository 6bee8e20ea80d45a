// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Trainings whose ranks exchange data by NCCL's functions have the bits of the host's transports,
// and every collective is in order with the kernels before and after it.
#include "tessera/transports/nccl.h"

#include <string>
#include <vector>

#include "devices/device_world.h"
#include "devices/fake_nccl.h"
#include "devices/simulated_gpu.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/span.h"

namespace tessera::test {
namespace {

using comm::Op;
using comm::Write;
using testing::IsEmpty;

TinyRun with_nccl(TinyRun run) {
  return run.use_world([](comm::World& host) { return world_with_nccl(host, fake_nccl()); });
}

struct NcclCase {
  const char* name;
  Layout layout;
  const char* precision = "fp32";
  const char *key = "gradient_clipping", *value = "1.0";
};

class NcclTraining : public ::testing::TestWithParam<NcclCase> {};

TEST_P(NcclTraining, HasTheBitsOfTheTransportThroughTheHost) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set(GetParam().key, GetParam().value);
  if (std::string(GetParam().precision) == "bf16") run.set("bf16.enabled", "true");
  (void)take_violations();
  TinyRun through_host = run;
  through_host.use_world(world_on_gpu);

  const Trace by_nccl = with_nccl(run).train(GetParam().layout, 2),
              expected = through_host.train(GetParam().layout, 2);

  expect_same_bits(by_nccl, expected);
  EXPECT_THAT(take_violations(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    NcclTraining,
    ::testing::Values(NcclCase{"Stage0", {.ranks = 2, .stage = 0}},
                      NcclCase{"Stage1", {.ranks = 2, .accumulation = 2, .stage = 1}},
                      NcclCase{"Stage2", {.ranks = 4, .accumulation = 2, .stage = 2}, "bf16"},
                      NcclCase{"Stage3", {.ranks = 4, .accumulation = 2, .stage = 3}, "bf16"},
                      NcclCase{"Hpz",
                               {.ranks = 4, .stage = 3},
                               "fp32",
                               "zero_optimization.zero_hpz_partition_size",
                               "2"},
                      NcclCase{"Tensor", {.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 2}},
                      NcclCase{"Ring", {.ranks = 2, .context = 2}},
                      NcclCase{"Pipeline",
                               {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"}}),
    [](const auto& info) { return std::string(info.param.name); });

/// The values of rank `rank`: [6], so that sums depend on their order.
at::Tensor values_of(int rank) {
  return (at::arange(6, at::kFloat) + 1) *
         (rank == 1 ? 1e8 : 0.37F * static_cast<float>(rank + 1)) * (rank == 2 ? -1.0 : 1.0);
}

TEST(Nccl, AddsInRankOrder) {
  (void)take_violations();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Write write : {Write::Store, Write::Accumulate}) {
      comm::run_threads(3, [&](comm::World& host) {
        const auto world = world_with_nccl(host, fake_nccl());
        const at::Device device = to_torch(world->transport().device());
        const at::Tensor mine = values_of(world->rank()).to(dtype);
        at::Tensor sums = at::full({2}, 5.0, at::dtype(dtype));
        at::Tensor wanted = sums.clone();
        comm::Transport& of_host = host.host_transport();
        of_host
            .reduce_scatter(host.everyone(),
                            span_of(mine),
                            span_of(wanted),
                            Op::Sum,
                            write,
                            TESSERA_HERE("expected"))
            ->wait();

        const at::Tensor there = mine.to(device), out = sums.to(device);
        world->transport()
            .reduce_scatter(world->everyone(),
                            span_of(there),
                            span_of(out),
                            Op::Sum,
                            write,
                            TESSERA_HERE("by NCCL"))
            ->wait();

        EXPECT_TRUE(out.cpu().equal(wanted)) << out.cpu() << wanted;
        host.barrier(TESSERA_HERE("end of a test"));
      });
    }
  }
  EXPECT_THAT(take_violations(), IsEmpty());
}

// The purpose of the checker: without the events the bits are the same.
TEST(Nccl, IsFoundOutWhereNobodyWaitsForIt) {
  (void)take_violations();
  comm::run_threads(2, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor in = at::ones({4}).to(device), out = at::zeros({8}).to(device);
    const comm::WorkPtr work = world->transport().all_gather(
        world->everyone(), span_of(in), span_of(out), TESSERA_HERE("gather"));
    (void)(out + 1);  // too early
    work->wait();
    (void)(out + 1);
    host.barrier(TESSERA_HERE("end of a test"));
  });
  const std::vector<std::string> found = take_violations();
  EXPECT_THAT(found, testing::Not(IsEmpty()));
  EXPECT_THAT(found, testing::Each(testing::HasSubstr("reads what ncclAllGather")));
}

TEST(Nccl, RefusesMemoryOfTheHost) {
  comm::run_threads(1, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    const at::Tensor x = at::ones({4});
    EXPECT_THROW((void)world->transport().all_reduce(
                     world->everyone(), span_of(x), Op::Sum, TESSERA_HERE("sum")),
                 Error);
  });
}

}  // namespace
}  // namespace tessera::test
