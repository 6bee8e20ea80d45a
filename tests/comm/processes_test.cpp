// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
// The `shm` transport between real processes.
#include <cmath>
#include <cstring>
#include <vector>

#include "support/shm_world.h"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

/// A job must end within 2 s of the death of a rank; a loaded machine gets five times that.
constexpr double kSoon = 10;

/// Runs a few operations on uneven values and returns their concatenated results.
std::vector<float> results_of(World& world) {
  const std::size_t count = 30000;
  const auto ranks = static_cast<std::size_t>(world.size());
  const RegionPtr region = world.transport().allocate(count * ranks * 4, memory::Tag::Other);
  auto* const values = static_cast<float*>(region->data());
  for (std::size_t i = 0; i < count * ranks; ++i)
    values[i] =
        std::ldexp(1.0F + static_cast<float>(i % 91) / 91.0F,
                   static_cast<int>((i * 5 + static_cast<std::size_t>(world.rank()) * 11) % 21));
  const Span whole{values, count * ranks, DType::F32, {}};
  std::vector<float> part(count, 0.25F);
  const Span own{part.data(), count, DType::F32, {}};
  const Group& all = world.everyone();
  Transport& transport = world.transport();

  const auto reduction = transport.reduce_scatter(
      all, whole, own, Op::Sum, Write::Accumulate, TESSERA_HERE("reduction"));
  reduction->wait();
  reduction->wait_reusable();
  const auto reduce = transport.all_reduce(all, whole, Op::Sum, TESSERA_HERE("sum"));
  reduce->wait();
  reduce->wait_reusable();
  std::vector<float> out(values, values + whole.count);
  transport.all_gather(all, own, whole, TESSERA_HERE("gather"))->wait();
  out.insert(out.end(), values, values + whole.count);
  return out;
}

TEST(Processes, GiveTheBitsOfThreads) {
  for (const int ranks : {2, 3, 4}) {
    std::vector<float> threads;
    run_threads(ranks, [&](World& world) {
      const auto mine = results_of(world);
      if (world.rank() == 0) threads = mine;
    });

    test::run_processes(ranks, [&](World& world) {
      const auto mine = results_of(world);
      EXPECT_EQ(std::memcmp(mine.data(), threads.data(), threads.size() * 4), 0);
    });
  }
}

TEST(Processes, ExchangeManyOperations) {
  test::run_processes(4, [](World& world) {
    for (int round = 0; round < 300; ++round) {
      const auto sum = world.all_reduce(world.everyone(),
                                        {static_cast<double>(round + world.rank())},
                                        Op::Sum,
                                        TESSERA_HERE("x"));
      ASSERT_EQ(sum[0], 4 * round + 6);
    }
  });
}

TEST(Processes, AnErrorOfOneEndsAllWithItsMessage) {
  test::Processes processes(3, [](World& world) {
    if (world.rank() == 1) throw Error(Error::Kind::Data, "train.txt is empty");
    world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
  });

  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(processes.join(rank), exit_code(Error::Kind::Data));
  EXPECT_EQ(processes.control().abort_message(), "train.txt is empty");
}

TEST(Processes, DeathOfOneWakesTheOthersOnceItIsReported) {
  test::Processes processes(3, [](World& world) {
    world.set_step(5);
    for (;;)
      world.transport().barrier(world.everyone(), TESSERA_HERE("for ever"))->wait();
  });
  while (processes.control().line(2).step.load() != 5)
    usleep(1000);

  kill(processes.pid(2), SIGKILL);
  EXPECT_EQ(processes.join(2), 128 + SIGKILL);
  const double begin = now_s();
  processes.control().abort(
      2, static_cast<std::uint32_t>(Error::Kind::Comm), "rank 2 was lost: signal 9 in step 5");

  EXPECT_EQ(processes.join(0), exit_code(Error::Kind::Comm));
  EXPECT_EQ(processes.join(1), exit_code(Error::Kind::Comm));
  EXPECT_LT(now_s() - begin, kSoon);
}

TEST(Processes, ShortageIsAnErrorAndNotASignal) {
  test::Processes processes(2, [](World& world) {
    if (world.rank() == 0)
      world.transport().allocate(2 * test::kTestArenaBytes, memory::Tag::Gradients);
    world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
  });

  EXPECT_EQ(processes.join(0), exit_code(Error::Kind::Memory));
  EXPECT_EQ(processes.join(1), exit_code(Error::Kind::Memory));
}

}  // namespace
}  // namespace tessera::comm
