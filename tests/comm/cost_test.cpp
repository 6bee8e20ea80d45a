// SPDX-License-Identifier: Apache-2.0
// Predicted costs of collectives against the counters of transports, and closed forms.
#include "tessera/comm/cost.h"

#include <functional>
#include <string>
#include <vector>

#include "support/host_world.h"
#include <gtest/gtest.h>

#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

using mesh::Axis;
using mesh::Mesh;

constexpr double kMiB = 1 << 20;

/// Memory for a rank's vectors; none in a world of shapes.
class Vectors {
 public:
  explicit Vectors(bool in_memory) : in_memory_(in_memory) {}
  Span operator()(std::size_t count) {
    if (!in_memory_) return {nullptr, count, DType::F32, {}};
    floats_.emplace_back(count);
    return {floats_.back().data(), count, DType::F32, {}};
  }

 private:
  bool in_memory_;
  std::vector<std::vector<float>> floats_;
};

void finish(const WorkPtr& work) {
  work->wait();
  work->wait_reusable();
}

/// Posts every kind of operation, some of them twice, over two groups.
void post_everything(World& world, bool in_memory) {
  Vectors of(in_memory);
  Transport& all = world.transport();
  for (const mesh::AxisSet axes : {mesh::AxisSet::all(), mesh::AxisSet{Axis::TpCol}}) {
    const Group& group = world.group(axes);
    const auto n = static_cast<std::size_t>(group.size());
    for (int call = 0; call < 2; ++call) {
      finish(all.reduce_scatter(
          group, of(8 * n), of(8), Op::Sum, Write::Store, TESSERA_HERE("scatter")));
      finish(all.all_gather(group, of(5), of(5 * n), TESSERA_HERE("gather")));
    }
    finish(all.reduce_scatter(
        group, of(8 * n), of(8), Op::Sum, Write::Accumulate, TESSERA_HERE("scatter")));
    finish(all.all_reduce(group, of(7000), Op::Sum, TESSERA_HERE("reduce")));
    finish(all.broadcast(group, of(6), 0, TESSERA_HERE("broadcast")));
    finish(all.all_to_all(group, of(3 * n), of(3 * n), TESSERA_HERE("exchange")));
    const std::vector<std::int64_t> counts(n * n, 3);
    finish(all.all_to_all_v(group, of(3 * n), of(3 * n), counts, TESSERA_HERE("unequal")));
    finish(all.barrier(group, TESSERA_HERE("meet")));
  }
  const int next = (world.rank() + 1) % world.size(),
            previous = (world.rank() + world.size() - 1) % world.size();
  const WorkPtr sent = all.send(next, 1, of(9), TESSERA_HERE("message")),
                received = all.recv(previous, 1, of(9), TESSERA_HERE("message"));
  finish(received);
  finish(sent);
}

TEST(CommCost, OfAWorldOfShapesIsTheTrafficOfARealOne) {
  const Mesh mesh({.dp_shard = 2, .tp_col = 2});
  run_threads(mesh, [&](World& world) {
    const auto shapes = shape_world(mesh, world.rank());

    post_everything(world, /*in_memory=*/true);
    post_everything(*shapes, /*in_memory=*/false);

    EXPECT_EQ(shapes->transport().traffic(), world.transport().traffic());
    const std::vector<Posted> posted = take_posted(*shapes);
    EXPECT_EQ(traffic_of(posted), world.transport().traffic());
    EXPECT_EQ(posted.size(), 2U * 8 + 1) << "equal operations are one entry";
    EXPECT_TRUE(take_posted(*shapes).empty());
    double elements = 0;
    for (const Posted& one : posted)
      elements += sent(one, /*host_ranks=*/0).elements;
    EXPECT_EQ(elements, static_cast<double>(world.transport().traffic().elements));
  });
}

/// Posts one operation on a vector of `bytes` over all ranks.
void post(World& world, Kind kind, double bytes) {
  Vectors of(/*in_memory=*/true);
  const Group& group = world.everyone();
  const auto count = static_cast<std::size_t>(bytes / 4), part = count / group.ranks.size();
  Transport& all = world.transport();
  switch (kind) {
    case Kind::ReduceScatter:
      return finish(all.reduce_scatter(
          group, of(count), of(part), Op::Sum, Write::Store, TESSERA_HERE("scatter")));
    case Kind::AllGather:
      return finish(all.all_gather(group, of(part), of(count), TESSERA_HERE("gather")));
    case Kind::AllToAll:
      return finish(all.all_to_all(group, of(count), of(count), TESSERA_HERE("exchange")));
    default:
      return finish(all.all_reduce(group, of(count), Op::Sum, TESSERA_HERE("reduce")));
  }
}

// The rest are heads and codes of messages.
constexpr double kTolerance = 0.03;

TEST(CommCost, BetweenHostsIsWhatTheirLinkCounts) {
  for (const std::vector<int>& per_host : std::vector<std::vector<int>>{{2, 2}, {1, 1, 1}}) {
    const GroupPlace place{static_cast<int>(per_host.size()), per_host[0]};
    const int ranks = place.hosts * place.locals;
    // Below the size from which sums go from host to host, every rank sends the same amount.
    const double bytes = 12 * 4096 * 24;
    for (const Kind kind :
         {Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll, Kind::AllReduce}) {
      SCOPED_TRACE(std::string(name(kind)) + " on " + std::to_string(place.hosts) + " hosts x " +
                   std::to_string(place.locals));
      const auto counted = static_cast<double>(test::run_hosts(
          per_host, Mesh::data_parallel(ranks), [&](World& world) { post(world, kind, bytes); }));

      const double expected = ranks * sent(kind, bytes, DType::F32, place).bytes_between;
      EXPECT_NEAR(counted, expected, kTolerance * expected);
    }
  }
}

TEST(CommCost, OfASumThatGoesFromHostToHostBoundsWhatItsLinkCounts) {
  const double bytes = 3 * kMiB;
  const GroupPlace place{2, 3};
  for (const Kind kind : {Kind::ReduceScatter, Kind::AllReduce}) {
    SCOPED_TRACE(name(kind));
    const auto counted = static_cast<double>(test::run_hosts(
        {3, 3}, Mesh::data_parallel(6), [&](World& world) { post(world, kind, bytes); }));

    // Of the rank that sends most; on the other host a rank may send less.
    const double busiest = sent(kind, bytes, DType::F32, place).bytes_between;
    EXPECT_LE(counted, (1 + kTolerance) * 6 * busiest);
    EXPECT_GE(counted, (1 - kTolerance) * 3 * busiest);
    EXPECT_EQ(busiest, bytes / 3);
  }
}

TEST(CommCost, InAHostIsTheClosedForm) {
  const double bytes = kMiB;
  for (const int n : {1, 2, 4, 7}) {
    const GroupPlace place{1, n};
    const double others = (n - 1.0) / n * bytes;
    const auto read = [&](Kind kind) { return sent(kind, bytes, DType::F32, place).bytes_in_host; };
    EXPECT_DOUBLE_EQ(read(Kind::ReduceScatter), others);
    EXPECT_DOUBLE_EQ(read(Kind::AllGather), others);
    EXPECT_DOUBLE_EQ(read(Kind::AllToAll), others);
    EXPECT_DOUBLE_EQ(read(Kind::AllReduce), 2 * others);
    EXPECT_DOUBLE_EQ(read(Kind::Broadcast), n == 1 ? 0 : bytes);
    EXPECT_EQ(sent(Kind::AllGather, bytes, DType::F32, place).bytes_between, 0);
  }
}

TEST(CommCost, PlacesAGroupOnItsHosts) {
  const auto place = [](const std::vector<int>& ranks, int host_ranks) {
    const GroupPlace out = place_of(ranks, host_ranks);
    return std::pair(out.hosts, out.locals);
  };
  EXPECT_EQ(place({0, 1, 2, 3}, 0), (std::pair{1, 4}));
  EXPECT_EQ(place({0, 1, 2, 3}, 2), (std::pair{2, 2}));
  EXPECT_EQ(place({1, 3, 5, 7}, 2), (std::pair{4, 1}));
  EXPECT_EQ(place({0, 1, 2}, 2), (std::pair{2, 2})) << "as if the second host had two as well";
}

TEST(CommCost, IsLatencyAndBytesOfBothChannels) {
  Machine machine;
  machine.in_host = {.latency_s = 1e-6, .bytes_per_s = 10e9};
  machine.between_hosts = {.latency_s = 50e-6, .bytes_per_s = 1e9};
  const Sent cost{
      .bytes_in_host = 20e6, .bytes_between = 5e6, .rounds_in_host = 3, .rounds_between = 2};

  EXPECT_DOUBLE_EQ(seconds(cost, machine), 3e-6 + 2e-3 + 100e-6 + 5e-3);
  EXPECT_DOUBLE_EQ(seconds(cost * 4, machine), 4 * seconds(cost, machine));
  EXPECT_EQ(seconds(cost, Machine()), 0) << "a machine without rates has no time";
}

}  // namespace
}  // namespace tessera::comm
