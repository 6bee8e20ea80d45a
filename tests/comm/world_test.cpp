// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/world.h"

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/solo.h"

namespace tessera::comm {
namespace {

using mesh::Axis;
using mesh::AxisSet;

TEST(World, GroupsFollowTheMesh) {
  // pp 2 x dp.shard 3 x tp.col 2
  const mesh::Mesh mesh({.pp = 2, .dp_shard = 3, .tp_col = 2});

  run_threads(mesh, [&](World& world) {
    for (const AxisSet axes : {AxisSet{Axis::Pp}, AxisSet::dp(), AxisSet::tp(), AxisSet::all()}) {
      const Group& group = world.group(axes);

      EXPECT_EQ(group.ranks, mesh.group(world.rank(), axes));
      EXPECT_EQ(group.ranks[static_cast<std::size_t>(group.index)], world.rank());
      const auto sum = world.all_reduce(
          group, {static_cast<double>(world.rank())}, Op::Sum, TESSERA_HERE("sum"));
      double expected = 0;
      for (const int rank : group.ranks)
        expected += rank;
      EXPECT_EQ(sum[0], expected);
    }
  });
}

TEST(World, GroupIdsDoNotDependOnTheOrderOfUse) {
  std::array<int, 2> ids{};
  run_threads(2, [&](World& world) {
    if (world.rank() == 0) world.group(AxisSet::tp());
    ids[static_cast<std::size_t>(world.rank())] = world.group(AxisSet::dp()).id;
  });

  EXPECT_EQ(ids[0], ids[1]);
}

TEST(World, ReducesValues) {
  for (const int ranks : {1, 2, 5}) {
    run_threads(ranks, [&](World& world) {
      const double me = world.rank();
      const Group& all = world.everyone();

      EXPECT_EQ(world.all_reduce(all, {me, 1}, Op::Sum, TESSERA_HERE("sum")),
                (std::vector<double>{ranks * (ranks - 1) / 2.0, static_cast<double>(ranks)}));
      EXPECT_EQ(world.all_reduce(all, {me}, Op::Max, TESSERA_HERE("max"))[0], ranks - 1);
      EXPECT_EQ(world.all_reduce(
                    all, {world.rank() == ranks - 1 ? 8.0 : 1.0}, Op::BitOr, TESSERA_HERE("or"))[0],
                ranks == 1 ? 8 : 9);
      EXPECT_TRUE(world.all_reduce(all, {}, Op::Sum, TESSERA_HERE("nothing")).empty());
    });
  }
}

TEST(World, ReducesManyValues) {
  run_threads(3, [](World& world) {
    std::vector<double> values(5000, world.rank() + 0.5);

    values = world.all_reduce(world.everyone(), values, Op::Sum, TESSERA_HERE("many"));

    EXPECT_EQ(values, std::vector<double>(5000, 4.5));
  });
}

TEST(World, GathersValuesInGroupOrder) {
  run_threads(3, [](World& world) {
    const double me = world.rank();

    const auto all = world.all_gather(world.everyone(), {me, -me}, TESSERA_HERE("gather"));

    EXPECT_EQ(all, (std::vector<double>{0, 0, 1, -1, 2, -2}));
  });
}

// Ranks 0 and 1, ranks 2 and 3, and ranks 1 to 3 exchange at the same time, each in its own order.
TEST(World, PartsUseOneTransport) {
  run_threads(4, [](World& world) {
    const int rank = world.rank();
    const auto pair = world.part(rank / 2 * 2, mesh::Mesh::data_parallel(2), 1 + rank / 2);
    const auto last = rank == 0 ? nullptr : world.part(1, mesh::Mesh::data_parallel(3), 3);

    EXPECT_EQ(pair->rank(), rank % 2);
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->is_leader(), rank % 2 == 0);
    for (int round = 0; round < 3; ++round) {
      const double me = 10 * round + rank;
      const auto in_pair = pair->all_gather(pair->everyone(), {me}, TESSERA_HERE("a pair"));
      const double first = 10 * round + rank / 2 * 2;
      EXPECT_EQ(in_pair, (std::vector<double>{first, first + 1}));
      if (last != nullptr) {
        EXPECT_EQ(last->rank(), rank - 1);
        const auto in_last = last->all_gather(last->everyone(), {me}, TESSERA_HERE("the last"));
        EXPECT_EQ(in_last,
                  (std::vector<double>{10.0 * round + 1, 10.0 * round + 2, 10.0 * round + 3}));
      }
    }
    pair->set_step(20 + rank);
    const auto sum =
        world.all_reduce(world.everyone(), {1.0}, Op::Sum, TESSERA_HERE("the whole job"));
    EXPECT_EQ(sum, std::vector<double>{4});
    EXPECT_EQ(world.control().line(3 - rank).step.load(), 23 - rank);
    world.transport().barrier(world.everyone(), TESSERA_HERE("end"))->wait();
  });
}

// Ranks 1 to 3 have another mesh besides, and ranks 2 and 3 are a part of theirs.
TEST(World, PartsHavePartsAndOtherMeshes) {
  run_threads(5, [](World& world) {
    const int rank = world.rank();
    if (rank > 0) {
      const auto part = world.part(1, mesh::Mesh::data_parallel(4), 1);
      const auto pairs = part->part(0, mesh::Mesh({.dp_shard = 2, .tp_col = 2}), 2);
      const auto last = rank < 3 ? nullptr : part->part(2, mesh::Mesh::data_parallel(2), 3);
      const std::vector<double> me = {static_cast<double>(rank)};
      const auto of = [&](World& in, mesh::AxisSet axes) {
        return in.all_gather(in.group(axes), me, TESSERA_HERE("a group of a part"));
      };

      EXPECT_EQ(of(*part, mesh::AxisSet::dp()), (std::vector<double>{1, 2, 3, 4}));
      const double first = rank < 3 ? 1 : 3;
      EXPECT_EQ(of(*pairs, mesh::AxisSet::tp()), (std::vector<double>{first, first + 1}));
      const double like = rank % 2 == 1 ? 1 : 2;
      EXPECT_EQ(of(*pairs, mesh::AxisSet::dp()), (std::vector<double>{like, like + 2}));
      if (last != nullptr) {
        EXPECT_EQ(last->rank(), rank - 3);
        EXPECT_EQ(of(*last, mesh::AxisSet::all()), (std::vector<double>{3, 4}));
        last->set_step(10 + rank);
      }
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end"))->wait();
    EXPECT_EQ(world.control().line(4).step.load(), 14);
    world.transport().barrier(world.everyone(), TESSERA_HERE("end"))->wait();
  });
}

TEST(World, WritesItsStepToTheControlPage) {
  run_threads(2, [](World& world) {
    world.set_step(12 + world.rank());
    world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();

    EXPECT_EQ(world.control().line(1 - world.rank()).step.load(), 13 - world.rank());
    EXPECT_EQ(world.control().line(world.rank()).state.load(),
              static_cast<std::uint32_t>(RankState::Running));
  });
}

TEST(SoloWorld, IsAloneAndComplete) {
  const auto world = solo_world();
  std::vector<float> in = {1, 2, 3};
  std::vector<float> out = {10, 20, 30};
  const Span from{in.data(), 3, DType::F32, {}};
  const Span to{out.data(), 3, DType::F32, {}};
  Transport& transport = world->transport();
  const Group& all = world->everyone();

  EXPECT_EQ(world->size(), 1);
  EXPECT_TRUE(world->is_leader());
  transport.reduce_scatter(all, from, to, Op::Sum, Write::Accumulate, TESSERA_HERE("add"))->wait();
  EXPECT_EQ(out, (std::vector<float>{11, 22, 33}));
  transport.reduce_scatter(all, from, to, Op::Sum, Write::Store, TESSERA_HERE("store"))->wait();
  EXPECT_EQ(out, in);
  out = {7, 8, 9};
  transport.all_gather(all, to, from, TESSERA_HERE("gather"))->wait();
  EXPECT_EQ(in, out);
  transport.all_reduce(all, from, Op::Sum, TESSERA_HERE("sum"))->wait();
  transport.barrier(all, TESSERA_HERE("meet"))->wait_reusable();
  EXPECT_EQ(in, out);
  EXPECT_THROW(transport.send(0, 0, from, TESSERA_HERE("to whom")), Error);
}

TEST(SoloWorld, AllocatesZeroedMemoryUnderItsTag) {
  memory::Ledger ledger;
  const memory::ScopedLedger scope(ledger);
  const auto world = solo_world();

  RegionPtr region = world->transport().allocate(5000, memory::Tag::Gradients);

  EXPECT_EQ(static_cast<const char*>(region->data())[4999], 0);
  EXPECT_EQ(ledger.usage().current[static_cast<std::size_t>(memory::Tag::Gradients)], 5000);
  region.reset();
  EXPECT_EQ(ledger.usage().total, 0);
  EXPECT_THROW(world->transport().allocate(std::size_t{1} << 60, memory::Tag::Other), Error);
}

TEST(RunThreads, RethrowsTheFirstErrorAndStopsTheOthers) {
  try {
    run_threads(3, [](World& world) {
      if (world.rank() == 1) throw Error(Error::Kind::Data, "no such file");
      world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_STREQ(error.what(), "no such file");
  }
}

TEST(World, MeetsAtBarriersOnTheTransportOfTheHost) {
  const auto host = private_control_page(1), device = private_control_page(1);
  World world(0,
              mesh::Mesh::data_parallel(1),
              make_solo_transport(host.get()),
              make_solo_transport(device.get()),
              host);

  world.transport().abort(Error(Error::Kind::Comm, "the device is gone", ""));
  EXPECT_NO_THROW(world.barrier(TESSERA_HERE("meet")));
  world.host_transport().abort(Error(Error::Kind::Comm, "the host is gone", ""));
  EXPECT_THROW(world.barrier(TESSERA_HERE("meet")), Error);
}

TEST(RunThreads, RethrowsForeignExceptions) {
  const auto run = [] {
    run_threads(2, [](World& world) {
      if (world.rank() == 0) throw std::runtime_error("foreign");
      world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
    });
  };

  EXPECT_THROW(run(), std::runtime_error);
}

TEST(RunThreads, EveryRankHasItsOwnLedger) {
  run_threads(2, [](World& world) {
    const auto bytes = static_cast<std::size_t>(world.rank() + 1) * 4096;

    const RegionPtr region = world.transport().allocate(bytes, memory::Tag::Optimizer);

    const auto usage = memory::current_ledger().usage();
    EXPECT_EQ(usage.current[static_cast<std::size_t>(memory::Tag::Optimizer)],
              static_cast<std::int64_t>(bytes));
  });
}

}  // namespace
}  // namespace tessera::comm
