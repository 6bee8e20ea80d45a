// SPDX-License-Identifier: Apache-2.0
// Guarantees of the pull protocol besides values: no blocking, no deadlock, reusable buffers, and
// errors that name the ranks and calls involved.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/shm_world.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/comm/transports/ring.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Rank = std::function<void(World&)>;

/// Far longer than a wait that is woken takes, far shorter than a stall limit.
constexpr double kPromptly = 20;

class Protocol : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(int ranks, const Rank& fn) {
    if (GetParam() == "threads")
      run_threads(ranks, fn);
    else
      test::run_shm_threads(ranks, fn);
  }
};
INSTANTIATE_TEST_SUITE_P(Transports,
                         Protocol,
                         ::testing::Values("threads", "shm"),
                         [](const auto& info) { return info.param; });

Span floats(const RegionPtr& region) {
  return {region->data(), region->bytes() / 4, DType::F32, {}};
}
float* data(const RegionPtr& region) {
  return static_cast<float*>(region->data());
}

void nap(int microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

TEST_P(Protocol, PostingNeverBlocks) {
  std::atomic<bool> posted{false};
  run(2, [&](World& world) {
    const RegionPtr region = world.transport().allocate(4 << 20, memory::Tag::Other);
    std::vector<WorkPtr> works;
    // Rank 1 starts only once rank 0 has posted everything.
    while (world.rank() == 1 && !posted.load())
      nap(100);
    for (std::size_t i = 0; i < kSlots; ++i) {
      const Span part = floats(region).part(i * 16384, 16384);
      works.push_back(
          world.transport().all_reduce(world.everyone(), part, Op::Sum, TESSERA_HERE("x")));
    }
    if (world.rank() == 0) posted = true;

    for (const WorkPtr& work : works)
      work->wait();
  });
}

TEST_P(Protocol, AFullRingWaitsForRoom) {
  run(3, [](World& world) {
    std::vector<WorkPtr> works;
    std::array<double, 3 * kSlots> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 50 == 0) nap(world.rank() * 500);
      values[i] = static_cast<double>(i) + world.rank();
      works.push_back(world.transport().all_reduce(
          world.everyone(), {&values[i], 1, DType::F64, {}}, Op::Sum, TESSERA_HERE("x")));
    }
    for (std::size_t i = values.size(); i-- > 0;)
      works[i]->wait();

    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(values[i], 3.0 * static_cast<double>(i) + 3.0);
  });
}

TEST_P(Protocol, WaitsInAnyOrderOverTwoGroupsDoNotDeadlock) {
  run(4, [](World& world) {
    const Group& all = world.everyone();
    const Group& dp = world.group(mesh::AxisSet::dp());
    ASSERT_NE(all.id, dp.id);
    for (int round = 0; round < 20; ++round) {
      const RegionPtr a = world.transport().allocate(256 << 10, memory::Tag::Other);
      const RegionPtr b = world.transport().allocate(256 << 10, memory::Tag::Other);
      data(a)[7] = 1;
      data(b)[9] = 2;
      const bool odd = (world.rank() + round) % 2 == 1;
      WorkPtr first, second;
      // The order of posting differs as well: it only has to agree within a group.
      const auto post_a = [&] {
        first = world.transport().all_reduce(all, floats(a), Op::Sum, TESSERA_HERE("a"));
      };
      const auto post_b = [&] {
        second = world.transport().all_reduce(dp, floats(b), Op::Sum, TESSERA_HERE("b"));
      };
      if (odd) post_b();
      post_a();
      if (!odd) post_b();

      (odd ? first : second)->wait();
      (odd ? second : first)->wait();

      EXPECT_EQ(data(a)[7], 4);
      EXPECT_EQ(data(b)[9], 8);
    }
  });
}

TEST_P(Protocol, ABufferMayBeRewrittenWhenItIsReusable) {
  run(3, [](World& world) {
    constexpr std::size_t kPart = 4000;
    const RegionPtr in = world.transport().allocate(3 * kPart * 4, memory::Tag::Other);
    const RegionPtr out = world.transport().allocate(kPart * 4, memory::Tag::Other);
    std::uint64_t state = 88172645463325252U + static_cast<std::uint64_t>(world.rank());
    const auto random = [&] {
      state ^= state << 13;
      state ^= state >> 7;
      return state ^= state << 17;
    };
    for (int round = 0; round < 60; ++round) {
      for (std::size_t i = 0; i < 3 * kPart; ++i)
        data(in)[i] = static_cast<float>(round * 10 + world.rank());
      const auto work = world.transport().reduce_scatter(
          world.everyone(), floats(in), floats(out), Op::Sum, Write::Store, TESSERA_HERE("stress"));
      if (random() % 2 == 0) nap(static_cast<int>(random() % 500));
      if (random() % 3 == 0) world.transport().progress();
      work->wait();
      EXPECT_EQ(data(out)[0], static_cast<float>(30 * round + 3));
      EXPECT_EQ(data(out)[kPart - 1], static_cast<float>(30 * round + 3));
      work->wait_reusable();
    }
  });
}

TEST_P(Protocol, APrivateBufferMayBeRewrittenAtOnce) {
  run(2, [](World& world) {
    std::vector<float> message(20000, static_cast<float>(world.rank() + 1));
    std::vector<float> received(20000);
    const int peer = 1 - world.rank();

    const auto send = world.transport().send(
        peer, 0, {message.data(), message.size(), DType::F32, {}}, TESSERA_HERE("send"));
    send->wait_reusable();  // does not need the peer
    std::fill(message.begin(), message.end(), -1.0F);
    world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
    world.transport()
        .recv(peer, 0, {received.data(), received.size(), DType::F32, {}}, TESSERA_HERE("recv"))
        ->wait();

    EXPECT_EQ(received.back(), static_cast<float>(peer + 1));
  });
}

TEST_P(Protocol, AnInputOutlivesItsWork) {
  run(2, [](World& world) {
    {
      const RegionPtr region = world.transport().allocate(1 << 20, memory::Tag::Other);
      data(region)[1000] = 42;
      if (world.rank() == 0)
        world.transport().broadcast(world.everyone(), floats(region), 0, TESSERA_HERE("x"))->wait();
    }
    // Rank 0 has released the region, and gets and fills other memory.
    const RegionPtr other = world.transport().allocate(1 << 20, memory::Tag::Other);
    data(other)[1000] = -1;
    if (world.rank() == 1) {
      nap(2000);
      world.transport().broadcast(world.everyone(), floats(other), 0, TESSERA_HERE("x"))->wait();
      EXPECT_EQ(data(other)[1000], 42);
    }
  });
}

TEST_P(Protocol, AMessageOutlivesItsRank) {
  run(2, [](World& world) {
    std::vector<float> message(50000, 3.0F);
    const Span span{message.data(), message.size(), DType::F32, {}};
    if (world.rank() == 0) {
      world.transport().send(1, 0, span, TESSERA_HERE("last words"))->wait();
      return;
    }
    nap(20000);
    std::fill(message.begin(), message.end(), 0.0F);
    world.transport().recv(0, 0, span, TESSERA_HERE("from the dead"))->wait();

    EXPECT_EQ(message.front(), 3.0F);
    EXPECT_EQ(message.back(), 3.0F);
  });
}

TEST_P(Protocol, ProgressMovesWhatIsReady) {
  run(2, [](World& world) {
    const RegionPtr region = world.transport().allocate(1 << 20, memory::Tag::Other);
    data(region)[5] = static_cast<float>(world.rank() + 1);
    const auto work =
        world.transport().all_reduce(world.everyone(), floats(region), Op::Sum, TESSERA_HERE("x"));

    const double limit = now_s() + kPromptly;
    while (!work->done() && now_s() < limit) {
      world.transport().progress();
      std::this_thread::yield();
    }

    EXPECT_TRUE(work->done());
    EXPECT_EQ(data(region)[5], 3);
    work->wait();
  });
}

TEST_P(Protocol, MoreRanksThanCoresDoNotHang) {
  run(12, [](World& world) {
    for (int round = 0; round < 30; ++round) {
      const auto sum = world.all_reduce(world.everyone(), {1.0}, Op::Sum, TESSERA_HERE("count"));
      ASSERT_EQ(sum[0], 12);
    }
  });
}

TEST_P(Protocol, CommunicationTimeIsTakenOnce) {
  run(2, [](World& world) {
    world.transport().take_comm_seconds();
    if (world.rank() == 1) nap(30000);
    world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();

    const double seconds = world.transport().take_comm_seconds();
    if (world.rank() == 0) {
      EXPECT_GT(seconds, 0.01);
    }
    EXPECT_EQ(world.transport().take_comm_seconds(), 0);
  });
}

/// Returns the error that run() throws, which must be of `kind`.
std::string failure(const std::function<void()>& run, Error::Kind kind) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST_P(Protocol, AnotherOperationIsNamedWithBothCalls) {
  const std::string what = failure(
      [] {
        run(2, [](World& world) {
          std::vector<float> out(8);
          const Span whole{out.data(), 8, DType::F32, {}};
          if (world.rank() == 0) {
            world.transport()
                .all_reduce(world.everyone(), whole, Op::Sum, TESSERA_HERE("sum of h.3"))
                ->wait();
          } else {
            world.transport()
                .all_gather(
                    world.everyone(), whole.part(0, 4), whole, TESSERA_HERE("weights of h.4"))
                ->wait();
          }
        });
      },
      Error::Kind::Comm);

  EXPECT_THAT(what, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("sum of h.3")));
  EXPECT_THAT(what, AllOf(HasSubstr("weights of h.4"), HasSubstr("protocol_test.cpp:")));
  EXPECT_THAT(what, AllOf(HasSubstr("all_reduce sum of 8 F32"), HasSubstr("all_gather of 4 F32")));
}

TEST_P(Protocol, AnotherCountTypeOrReductionIsAMismatch) {
  const auto differ = [](const std::function<Span(int, std::vector<double>&)>& span,
                         const std::function<Op(int)>& op) {
    return failure(
        [&] {
          run(3, [&](World& world) {
            std::vector<double> values(10);
            world.transport()
                .all_reduce(world.everyone(),
                            span(world.rank(), values),
                            op(world.rank()),
                            TESSERA_HERE("x"))
                ->wait();
          });
        },
        Error::Kind::Comm);
  };
  const auto same = [](int, std::vector<double>& v) { return Span{v.data(), 10, DType::F64, {}}; };
  const auto sum = [](int) { return Op::Sum; };

  EXPECT_THAT(differ(
                  [](int rank, std::vector<double>& v) {
                    return Span{v.data(), rank == 2 ? 9U : 10U, DType::F64, {}};
                  },
                  sum),
              AllOf(HasSubstr("of 9 F64"), HasSubstr("of 10 F64"), HasSubstr("rank 2")));
  EXPECT_THAT(differ(
                  [](int rank, std::vector<double>& v) {
                    return Span{v.data(), 10, rank == 1 ? DType::F32 : DType::F64, {}};
                  },
                  sum),
              AllOf(HasSubstr("of 10 F32"), HasSubstr("of 10 F64"), HasSubstr("rank 1")));
  EXPECT_THAT(differ(same, [](int rank) { return rank == 0 ? Op::Max : Op::Sum; }),
              AllOf(HasSubstr("all_reduce max"), HasSubstr("all_reduce sum"), HasSubstr("rank 0")));
}

// As many elements altogether, and for each rank the right number of its own.
TEST_P(Protocol, OtherSizesOfPartsAreAMismatch) {
  const std::string what = failure(
      [&] {
        run(2, [&](World& world) {
          std::vector<float> in(4), out(4);
          const std::vector<std::int64_t> equal = {2, 2, 2, 2}, crossed = {0, 4, 4, 0};
          world.transport()
              .all_to_all_v(world.everyone(),
                            {in.data(), 4},
                            {out.data(), 4},
                            world.rank() == 0 ? equal : crossed,
                            TESSERA_HERE("tokens of h.3"))
              ->wait();
        });
      },
      Error::Kind::Comm);

  EXPECT_THAT(what, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("tokens of h.3")));
  EXPECT_THAT(what, HasSubstr("all_to_all_v of 8 F32 (sizes of the parts: "));
}

TEST_P(Protocol, AMessageOfAnotherSizeIsAMismatch) {
  const std::string what = failure(
      [] {
        run(2, [](World& world) {
          std::vector<float> values(10);
          Transport& transport = world.transport();
          if (world.rank() == 0)
            transport.send(1, 3, {values.data(), 10, DType::F32, {}}, TESSERA_HERE("ten"))->wait();
          else
            transport.recv(0, 3, {values.data(), 9, DType::F32, {}}, TESSERA_HERE("nine"))->wait();
        });
      },
      Error::Kind::Comm);

  EXPECT_THAT(what, AllOf(HasSubstr("of 10 F32"), HasSubstr("of 9 F32")));
  EXPECT_THAT(what, AllOf(HasSubstr("ten at"), HasSubstr("nine at")));
}

TEST_P(Protocol, AbortWakesEveryoneWithItsError) {
  std::atomic<int> woken{0};
  const double begin = now_s();
  const std::string what = failure(
      [&] {
        run(4, [&](World& world) {
          if (world.rank() == 2) {
            nap(50000);
            throw Error(Error::Kind::Numeric, "the loss is not a number", "lower lr");
          }
          try {
            world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), Error::Kind::Numeric);
            EXPECT_STREQ(error.what(), "the loss is not a number");
            EXPECT_EQ(error.fix(), "lower lr");
            ++woken;
            throw;
          }
        });
      },
      Error::Kind::Numeric);

  EXPECT_EQ(what, "the loss is not a number");
  EXPECT_EQ(woken.load(), 3);
  EXPECT_LT(now_s() - begin, kPromptly);
}

TEST_P(Protocol, NothingWorksInABrokenWorld) {
  failure(
      [] {
        run(2, [](World& world) {
          const auto work = world.transport().barrier(world.everyone(), TESSERA_HERE("meet"));
          work->wait();
          world.transport().abort(Error(Error::Kind::Comm, "broken on purpose"));

          EXPECT_THROW(work->wait(), Error);
          EXPECT_THROW(work->done(), Error);
          EXPECT_THROW(work->wait_reusable(), Error);
          EXPECT_THROW(world.transport().barrier(world.everyone(), TESSERA_HERE("x")), Error);
          world.transport().progress();
        });
      },
      Error::Kind::Comm);
}

TEST_P(Protocol, ADroppedOperationIsReported) {
  const std::string what = failure(
      [] {
        run(2, [](World& world) {
          if (world.rank() == 0) {
            world.transport().barrier(world.everyone(), TESSERA_HERE("forgotten"));
            return;
          }
          nap(20000);
          world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();
          world.transport().barrier(world.everyone(), TESSERA_HERE("again"))->wait();
        });
      },
      Error::Kind::Bug);

  EXPECT_THAT(what, HasSubstr("forgotten"));
}

TEST(Stall, NamesWhoIsMissingAndItsLastCall) {
  const std::string what = failure(
      [] {
        run_threads(3, [](World& world) {
          world.set_step(7);
          world.transport().set_stall_limit(0.3);
          world.transport().barrier(world.everyone(), TESSERA_HERE("all are here"))->wait();
          if (world.rank() == 1) {
            nap(700000);
            return;
          }
          world.transport().barrier(world.everyone(), TESSERA_HERE("end of step"))->wait();
        });
      },
      Error::Kind::Comm);

  EXPECT_THAT(
      what, AllOf(StartsWith("rank 1 hangs: "), HasSubstr("has waited"), HasSubstr("end of step")));
  EXPECT_THAT(what, AllOf(HasSubstr("for rank 1 (step 7"), HasSubstr("all are here")));
}

TEST(Stall, IsReportedThoughARankThatBeganToBreakTheWorldDied) {
  const std::string what = failure(
      [] {
        run_threads(2, [](World& world) {
          world.transport().set_stall_limit(0.3);
          if (world.rank() == 1) {
            world.control().abort_claim = 1;
            const double limit = now_s() + kPromptly;
            while (world.control().aborted == 0 && now_s() < limit)
              nap(1000);
          }
          world.transport().barrier(world.everyone(), TESSERA_HERE("end of step"))->wait();
        });
      },
      Error::Kind::Comm);

  EXPECT_THAT(what, StartsWith("rank 1 hangs: "));
}

TEST(Stall, IsNotASlowRankThatShowsLife) {
  for (const bool steps : {true, false}) {
    run_threads(2, [steps](World& world) {
      world.transport().set_stall_limit(1.0);
      if (world.rank() == 1) {
        for (int step = 0; step < 7; ++step) {
          steps ? world.set_step(step) : world.show_life();
          nap(200000);
        }
      }
      EXPECT_NO_THROW(world.transport().barrier(world.everyone(), TESSERA_HERE("end"))->wait());
    });
  }
}

// This is what happens when a whole job is stopped and continued.
TEST(Stall, ExcludesTimeInWhichTheWaitingRankWasStopped) {
  std::vector<char> memory(ControlPage::bytes(2) + alignof(ControlPage));
  void* place = memory.data();
  std::size_t room = memory.size();
  std::align(alignof(ControlPage), ControlPage::bytes(2), place, room);
  ControlPage* const control = ControlPage::format(place, 2);
  Watchdog watchdog(*control, 1.1);
  const std::vector<int> missing{1};

  EXPECT_FALSE(watchdog.stalled(missing));
  nap(1300000);
  EXPECT_FALSE(watchdog.stalled(missing)) << "one long gap";
  nap(300000);
  EXPECT_TRUE(watchdog.stalled(missing)) << "and time of its own";
}

}  // namespace
}  // namespace tessera::comm
