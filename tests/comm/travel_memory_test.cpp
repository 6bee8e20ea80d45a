// SPDX-License-Identifier: Apache-2.0
// The memory that is predicted for what travels between hosts is what the transport allocates.
#include "tessera/comm/transports/travel_memory.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "support/host_world.h"
#include <gtest/gtest.h>

#include "tessera/comm/transports/ring.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {
namespace {

/// Memory that peers can read directly, so that it is not copied.
struct Vector {
  Vector(World& world, std::size_t count)
      : region(world.transport().allocate(count * sizeof(float), memory::Tag::Other)),
        span{static_cast<float*>(region->data()), count} {
    std::fill_n(static_cast<float*>(region->data()), count, 1.0F);
  }
  RegionPtr region;
  Span span;
};

using Operation = std::function<void(World&, std::size_t count)>;

/// The highest peak of a rank that runs one operation after a barrier, without its own ring.
std::int64_t measured(GroupPlace place, std::size_t count, const Operation& operation) {
  std::int64_t most = 0;
  std::mutex mutex;
  const int ranks = place.hosts * place.locals;
  const test::TestHosts hosts(
      std::vector<int>(static_cast<std::size_t>(place.hosts), place.locals));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      memory::Ledger ledger;
      const memory::ScopedLedger scoped(ledger);
      const auto world = hosts.world_of(rank, mesh::Mesh::data_parallel(ranks));
      world->transport().barrier(world->everyone(), TESSERA_HERE("begin"))->wait();
      operation(*world, count);
      world->transport().barrier(world->everyone(), TESSERA_HERE("end"))->wait();
      const std::int64_t peak =
          ledger.usage().peak[static_cast<std::size_t>(memory::Tag::Communication)];
      const std::lock_guard lock(mutex);
      most = std::max(most, peak - static_cast<std::int64_t>(sizeof(Ring)));
    });
  }
  threads.clear();
  return most;
}

Operation reduce_scatter(Write write) {
  return [write](World& world, std::size_t count) {
    const Vector in(world, count), out(world, count / static_cast<std::size_t>(world.size()));
    world.transport()
        .reduce_scatter(world.everyone(), in.span, out.span, Op::Sum, write, TESSERA_HERE("reduce"))
        ->wait();
  };
}
void all_gather(World& world, std::size_t count) {
  const Vector in(world, count / static_cast<std::size_t>(world.size())), out(world, count);
  world.transport().all_gather(world.everyone(), in.span, out.span, TESSERA_HERE("gather"))->wait();
}
void all_to_all(World& world, std::size_t count) {
  const Vector in(world, count), out(world, count);
  world.transport()
      .all_to_all(world.everyone(), in.span, out.span, TESSERA_HERE("exchange"))
      ->wait();
}

/// Every rank sends all it has to the first one.
void all_to_one(World& world, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> counts(ranks * ranks, 0);
  for (std::size_t i = 0; i < ranks; ++i)
    counts[i * ranks] = static_cast<std::int64_t>(count);
  const Vector in(world, count), out(world, world.rank() == 0 ? count * ranks : 0);
  world.transport()
      .all_to_all_v(world.everyone(), in.span, out.span, counts, TESSERA_HERE("exchange"))
      ->wait();
}

TEST(TravelMemory, IsWhatTheTransportAllocates) {
  // Below the size of a chain, and above it; numbers that all these groups divide.
  for (const std::size_t count : {std::size_t{24} << 10, std::size_t{768} << 10}) {
    for (const GroupPlace place : {GroupPlace{2, 1}, GroupPlace{2, 2}, GroupPlace{3, 2}}) {
      SCOPED_TRACE(std::to_string(count) + " floats, " + std::to_string(place.hosts) +
                   " hosts of " + std::to_string(place.locals));
      const std::size_t bytes = count * sizeof(float), posts = memory_of_posts(place);
      const auto expect = [&](const Operation& operation, std::size_t predicted) {
        const std::int64_t peak = measured(place, count, operation);
        const auto expected = static_cast<double>(posts + predicted);
        EXPECT_LE(static_cast<double>(peak), 1.02 * expected);
        EXPECT_GE(static_cast<double>(peak), 0.98 * expected);
      };
      for (const Write write : {Write::Store, Write::Accumulate})
        expect(reduce_scatter(write), memory_of_reduce_scatter(place, DType::F32, bytes, write));
      expect(all_gather, memory_of_all_gather(place, bytes));
      expect(all_to_all, memory_of_all_to_all(place, bytes));
      expect(all_to_one, memory_of_all_to_all_v(place, bytes));
    }
  }
}

TEST(TravelMemory, IsNothingOnOneHost) {
  const GroupPlace place{1, 4};
  constexpr std::size_t kBytes = std::size_t{1} << 20;

  EXPECT_EQ(memory_of_reduce_scatter(place, DType::F32, kBytes, Write::Accumulate), 0U);
  EXPECT_EQ(memory_of_all_gather(place, kBytes), 0U);
  EXPECT_EQ(memory_of_all_to_all(place, kBytes), 0U);
  EXPECT_EQ(memory_of_all_to_all_v(place, kBytes), 0U);
  EXPECT_EQ(memory_of_posts(place), 0U);
}

}  // namespace
}  // namespace tessera::comm
