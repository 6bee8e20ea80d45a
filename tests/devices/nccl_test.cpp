// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Trainings whose ranks exchange data by NCCL's functions have the bits of the host's transports,
// and every collective is in order with the kernels before and after it.
#include "tessera/transports/nccl.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/device_world.h"
#include "devices/fake_nccl.h"
#include "devices/simulated_gpu.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/message_channels.h"
#include "tessera/comm/watchdog.h"
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

// ---- messages

/// Opens channel 5 from rank 0 to rank 1, and channel 6 back.
void open_two_channels(comm::World& world) {
  auto* const channels = dynamic_cast<comm::MessageChannels*>(&world.transport());
  ASSERT_NE(channels, nullptr);
  const std::vector<comm::MessageChannel> both = {{0, 1, 5}, {1, 0, 6}};
  channels->open_channels(both, TESSERA_HERE("two channels"));
}

TEST(NcclMessages, PassAReceiveThatIsPostedAhead) {
  (void)take_violations();
  comm::run_threads(2, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    open_two_channels(*world);
    const comm::Traffic before = world->transport().messages();
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor sent = at::arange(4, at::kFloat).to(device),
                     received = at::zeros({4}).to(device);
    comm::Transport& transport = world->transport();
    const int mine = world->rank() == 0 ? 5 : 6, peers = world->rank() == 0 ? 6 : 5;

    const comm::WorkPtr coming =
        transport.recv(1 - world->rank(), peers, span_of(received), TESSERA_HERE("ahead"));
    for (int i = 0; i < 2; ++i)
      transport.send(1 - world->rank(), mine, span_of(sent), TESSERA_HERE("send"))->wait();
    sent.fill_(-1);  // a copy is sent
    coming->wait();
    EXPECT_TRUE((received + 1).cpu().equal(at::arange(1, 5, at::kFloat)));
    transport.recv(1 - world->rank(), peers, span_of(received), TESSERA_HERE("second"))->wait();

    EXPECT_TRUE(received.cpu().equal(at::arange(4, at::kFloat)));
    EXPECT_EQ(transport.messages() - before, (comm::Traffic{8, 32, 2}));
    host.barrier(TESSERA_HERE("end of a test"));
  });
  EXPECT_THAT(take_violations(), IsEmpty());
}

TEST(NcclMessages, GoThroughTheHostIfTheirChannelIsNotOpened) {
  comm::run_threads(2, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    open_two_channels(*world);
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor x = at::full({4}, world->rank() + 1.0).to(device);
    const std::int64_t calls = host.host_transport().messages().calls;
    if (world->rank() == 0) {
      world->transport().send(1, 7, span_of(x), TESSERA_HERE("send"))->wait();
      EXPECT_EQ(host.host_transport().messages().calls, calls + 1);
    } else {
      world->transport().recv(0, 7, span_of(x), TESSERA_HERE("receive"))->wait();
      EXPECT_EQ(x.cpu()[0].item<float>(), 1.0F);
    }
    host.barrier(TESSERA_HERE("end of a test"));
  });
}

TEST(NcclMessages, GoThroughTheHostIfTheDeviceHasTooFewQueues) {
  (void)take_violations();
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", /*overwrite=*/1);
  comm::run_threads(2, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    open_two_channels(*world);
    const at::Tensor x =
        at::full({4}, world->rank() + 1.0).to(to_torch(world->transport().device()));
    const std::int64_t calls = host.host_transport().messages().calls;
    if (world->rank() == 0) {
      world->transport().send(1, 5, span_of(x), TESSERA_HERE("send"))->wait();
      EXPECT_EQ(host.host_transport().messages().calls, calls + 1);
    } else {
      world->transport().recv(0, 5, span_of(x), TESSERA_HERE("receive"))->wait();
      EXPECT_EQ(x.cpu()[0].item<float>(), 1.0F);
    }
    host.barrier(TESSERA_HERE("end of a test"));
  });
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_THAT(take_violations(), IsEmpty());
}

// ---- what a program can forget

std::vector<std::string> violations_without(Forgotten what, const TinyRun& run, Trace& trace) {
  (void)take_violations();
  {
    const ScopedForgotten forgotten(what);
    trace = run.train({.ranks = 2, .accumulation = 2, .stage = 2}, 1);
  }
  return take_violations();
}

TEST(NcclMutants, AreFoundOutAlthoughTheBitsAreTheSame) {
  const TinyRun run = with_nccl(TinyRun());
  const Trace expected = run.train({.ranks = 2, .accumulation = 2, .stage = 2}, 1);
  Trace trace;

  const std::vector<std::string> found = violations_without(Forgotten::WaitsOfOthers, run, trace);

  expect_same_bits(trace, expected);
  EXPECT_THAT(found, testing::Contains(testing::HasSubstr("nccl")));
}

TEST(NcclMutants, AreFoundOutIfAMessageIsUsedBeforeItArrives) {
  (void)take_violations();
  comm::run_threads(2, [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    open_two_channels(*world);
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor x = at::ones({4}).to(device);
    if (world->rank() == 0) {
      world->transport().send(1, 5, span_of(x), TESSERA_HERE("send"))->wait();
    } else {
      const comm::WorkPtr work = world->transport().recv(0, 5, span_of(x), TESSERA_HERE("receive"));
      (void)(x + 1);  // too early
      work->wait();
    }
    host.barrier(TESSERA_HERE("end of a test"));
  });
  EXPECT_THAT(take_violations(), testing::Contains(testing::HasSubstr("reads what ncclRecv")));
}

// ---- ranks that do not come

TEST(NcclTimeouts, NameBothRanksAndTheCallSite) {
  std::string text;
  const auto of_rank = [&](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor in = at::ones({4}).to(device), out = at::zeros({8}).to(device);
    const auto gather = [&] {
      world->transport()
          .all_gather(world->everyone(), span_of(in), span_of(out), TESSERA_HERE("gather h.3"))
          ->wait();
      return out.cpu();
    };
    (void)gather();
    if (world->rank() == 1) {  // does not come
      EXPECT_THROW(host.barrier(TESSERA_HERE("waits for the end")), Error);
      return;
    }
    world->transport().set_stall_limit(0.3);
    try {
      for (int i = 0; i < 2; ++i)
        (void)gather();
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Comm);
      text = error.what();
    }
  };
  EXPECT_THROW(comm::run_threads(2, of_rank), Error);
  EXPECT_THAT(text,
              testing::HasSubstr("rank 0 has waited 0.3 s on its device in NCCL's all_gather"));
  EXPECT_THAT(text, testing::HasSubstr("gather h.3"));
  EXPECT_THAT(text, testing::HasSubstr("nccl_test.cpp:"));
  EXPECT_THAT(text, testing::HasSubstr("for rank 1 ("));
}

TEST(NcclTimeouts, EndAtOnceIfAnotherRankFails) {
  const auto of_rank = [](comm::World& host) {
    const auto world = world_with_nccl(host, fake_nccl());
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor in = at::ones({4}).to(device), out = at::zeros({8}).to(device);
    const auto gather = [&] {
      world->transport()
          .all_gather(world->everyone(), span_of(in), span_of(out), TESSERA_HERE("gather"))
          ->wait();
      return out.cpu();
    };
    (void)gather();
    if (world->rank() == 1) {
      world->transport().abort(Error(Error::Kind::Data, "a sample of rank 1 is broken"));
      return;
    }
    try {
      for (int i = 0; i < 2; ++i)
        (void)gather();
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("a sample of rank 1 is broken"));
    }
  };
  EXPECT_THROW(comm::run_threads(2, of_rank), Error);
}

std::atomic<bool> in_call{false}, was_aborted{false}, aborted_in_call{false};
std::function<void()> during_call;

/// NCCL whose calls take long enough for another thread to end them.
transports::NcclApi slow_nccl() {
  in_call = was_aborted = aborted_in_call = false;
  transports::NcclApi out = fake_nccl();
  out.all_gather = [](const void* in, void* to, std::size_t count, int type, void* comm, void* on) {
    in_call = true;
    if (during_call) {
      std::exchange(during_call, nullptr)();
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
    }
    const int result = fake_nccl().all_gather(in, to, count, type, comm, on);
    in_call = false;
    return result;
  };
  out.comm_abort = [](void* comm) {
    aborted_in_call = aborted_in_call || in_call;
    was_aborted = true;
    return fake_nccl().comm_abort(comm);
  };
  return out;
}

TEST(NcclTimeouts, AbortNoCommunicatorThatACallUses) {
  const auto of_rank = [](comm::World& host) {
    const transports::NcclApi nccl = host.rank() == 0 ? slow_nccl() : fake_nccl();
    const auto world = world_with_nccl(host, nccl);
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor in = at::ones({4}).to(device), out = at::zeros({8}).to(device);
    const auto gather = [&] {
      return world->transport().all_gather(
          world->everyone(), span_of(in), span_of(out), TESSERA_HERE("gather"));
    };
    gather()->wait();
    (void)out.cpu();
    if (host.rank() == 1) {
      EXPECT_THROW(host.barrier(TESSERA_HERE("waits for the end")), Error);
      return;
    }
    during_call = [&] {
      comm::abort_world(host.control(), 0, Error(Error::Kind::Data, "a broken sample"));
    };
    comm::WorkPtr work = gather();
    EXPECT_FALSE(aborted_in_call);
    for (int i = 0; i < 500 && !was_aborted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(was_aborted);
    EXPECT_THROW((void)gather(), Error);
  };
  EXPECT_THROW(comm::run_threads(2, of_rank), Error);
}

TEST(NcclTimeouts, AbortACommunicatorThatIsMadeMeanwhile) {
  const auto of_rank = [](comm::World& host) {
    transports::NcclApi nccl = slow_nccl();
    nccl.comm_init_rank = [](void** comm, int ranks, transports::NcclId id, int rank) {
      in_call = true;
      std::exchange(during_call, nullptr)();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      const int result = fake_nccl().comm_init_rank(comm, ranks, id, rank);
      in_call = false;
      return result;
    };
    const auto world = world_with_nccl(host, nccl);
    const at::Device device = to_torch(world->transport().device());
    const at::Tensor in = at::ones({4}).to(device), out = at::zeros({4}).to(device);
    const auto gather = [&] {
      (void)world->transport().all_gather(
          world->everyone(), span_of(in), span_of(out), TESSERA_HERE("gather"));
    };
    during_call = [&] {
      comm::abort_world(host.control(), 0, Error(Error::Kind::Data, "a broken sample"));
    };

    EXPECT_THROW(gather(), Error);
    EXPECT_TRUE(was_aborted);
    EXPECT_FALSE(aborted_in_call);
    EXPECT_THROW(gather(), Error);  // makes no second communicator
  };
  EXPECT_THROW(comm::run_threads(1, of_rank), Error);
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
