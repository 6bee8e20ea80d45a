// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Several hosts give the same bits as one host.
#include "tessera/comm/transports/host_bridge.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/host_world.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"

namespace tessera::comm {
namespace {

using mesh::Axis;
using mesh::AxisSet;
using mesh::Mesh;
using testing::HasSubstr;

Span span_of(std::vector<float>& values) {
  return {values.data(), values.size(), DType::F32, {}};
}

/// Numbers whose sum depends on the order in which they are added.
std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = 12345U + static_cast<std::uint32_t>(rank);
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = (static_cast<float>(state >> 8) / 16777216.0F - 0.5F) * (state % 7 == 0 ? 1e6F : 1.0F);
  }
  return values;
}

/// Each rank's result at the end, by rank.
using Results = std::map<int, std::vector<float>>;
using Program = std::function<std::vector<float>(World&)>;

Results on_one_host(const Mesh& mesh, const Program& program) {
  Results results;
  std::mutex mutex;
  run_threads(mesh, [&](World& world) {
    std::vector<float> mine = program(world);
    const std::lock_guard lock(mutex);
    results[world.rank()] = std::move(mine);
  });
  return results;
}
Results on_hosts(const std::vector<int>& per_host, const Mesh& mesh, const Program& program) {
  Results results;
  std::mutex mutex;
  test::run_hosts(per_host, mesh, [&](World& world) {
    std::vector<float> mine = program(world);
    const std::lock_guard lock(mutex);
    results[world.rank()] = std::move(mine);
  });
  return results;
}
void expect_same_bits(const Results& a, const Results& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [rank, values] : a) {
    const std::vector<float>& others = b.at(rank);
    ASSERT_EQ(values.size(), others.size());
    EXPECT_EQ(std::memcmp(values.data(), others.data(), values.size() * sizeof(float)), 0)
        << "rank " << rank;
  }
}

/// Every collective, over one group.
std::vector<float> every_collective(World& world, const Group& group, std::size_t part) {
  const auto size = static_cast<std::size_t>(group.size());
  Transport& transport = world.transport();
  std::vector<float> all;
  const auto keep = [&all](const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  std::vector<float> in = numbers(world.rank(), part * size), out = numbers(world.rank(), part);
  transport
      .reduce_scatter(
          group, span_of(in), span_of(out), Op::Sum, Write::Accumulate, TESSERA_HERE("add"))
      ->wait();
  keep(out);
  transport
      .reduce_scatter(group, span_of(in), span_of(out), Op::Sum, Write::Store, TESSERA_HERE("sum"))
      ->wait();
  keep(out);
  std::vector<float> gathered(part * size);
  transport.all_gather(group, span_of(out), span_of(gathered), TESSERA_HERE("gather"))->wait();
  keep(gathered);
  transport.all_reduce(group, span_of(in), Op::Sum, TESSERA_HERE("reduce"))->wait();
  keep(in);
  std::vector<float> exchanged(part * size), mine = numbers(world.rank() + 100, part * size);
  transport.all_to_all(group, span_of(mine), span_of(exchanged), TESSERA_HERE("exchange"))->wait();
  keep(exchanged);
  // Member 0 sends nothing, and member 1 gets nothing.
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j)
      counts.push_back(i == 0 || j == 1 ? 0 : static_cast<std::int64_t>(part * (i + j) / 2));
  }
  const auto index = static_cast<std::size_t>(group.index);
  std::int64_t sent = 0, received = 0;
  for (std::size_t other = 0; other < size; ++other) {
    sent += counts[index * size + other];
    received += counts[other * size + index];
  }
  std::vector<float> some = numbers(world.rank() + 300, static_cast<std::size_t>(sent)),
                     arrived(static_cast<std::size_t>(received));
  transport
      .all_to_all_v(group, span_of(some), span_of(arrived), counts, TESSERA_HERE("exchange some"))
      ->wait();
  keep(arrived);
  for (int root = 0; root < group.size(); ++root) {
    std::vector<float> told = numbers(world.rank() + 200, part);
    transport.broadcast(group, span_of(told), root, TESSERA_HERE("tell"))->wait();
    keep(told);
  }
  transport.barrier(group, TESSERA_HERE("end"))->wait();
  return all;
}

struct Shape {
  std::vector<int> per_host;
  Mesh mesh;
};
const std::vector<Shape>& shapes() {
  // pp, dp.rep, dp.shard, cp, tp.depth, tp.row, tp.col
  static const std::vector<Shape> kShapes = {{{2, 2}, Mesh::data_parallel(4)},
                                             {{1, 1, 1}, Mesh::data_parallel(3)},
                                             {{3, 1}, Mesh::data_parallel(4)},
                                             {{2, 2}, Mesh({.dp_shard = 2, .tp_col = 2})},
                                             {{2, 2}, Mesh({.pp = 2, .dp_shard = 2})}};
  return kShapes;
}

// Parts of 8 floats are sent with the head of a message and arrive in a mailbox; parts of 2000 are
// sent with it and arrive in a region; parts of 50,000 are messages of their own.
TEST(HostBridge, GivesTheBitsOfOneHost) {
  for (const Shape& shape : shapes()) {
    for (const std::size_t part : {std::size_t{8}, std::size_t{2000}, std::size_t{50000}}) {
      for (const AxisSet axes : {AxisSet::all(), AxisSet::dp(), AxisSet::tp(), AxisSet{Axis::Pp}}) {
        const Program program = [&](World& world) {
          return every_collective(world, world.group(axes), part);
        };
        expect_same_bits(on_one_host(shape.mesh, program),
                         on_hosts(shape.per_host, shape.mesh, program));
      }
    }
  }
}

// The sum of three numbers whose order matters, computed here.
TEST(HostBridge, AddsInRankOrder) {
  const std::vector<float> values = {1e8F, 1.0F, -1e8F, 1.0F};
  const float expected = ((values[0] + values[1]) + values[2]) + values[3];
  ASSERT_NE(expected, values[0] + (values[1] + (values[2] + values[3])));

  const Results results = on_hosts({2, 2}, Mesh::data_parallel(4), [&](World& world) {
    std::vector<float> mine = {values[static_cast<std::size_t>(world.rank())]};
    world.transport()
        .all_reduce(world.everyone(), span_of(mine), Op::Sum, TESSERA_HERE("sum"))
        ->wait();
    return mine;
  });

  for (const auto& [rank, sum] : results)
    EXPECT_EQ(sum[0], expected) << rank;
}

TEST(HostBridge, CarriesMessagesInOrder) {
  constexpr int kMessages = 200;
  const Results results = on_hosts({2, 2}, Mesh::data_parallel(4), [&](World& world) {
    const int peer = (world.rank() + 2) % 4;
    std::vector<std::vector<float>> out, in;
    std::vector<WorkPtr> sent, received;
    std::vector<float> all;
    for (int i = 0; i < kMessages; ++i) {
      // Small and large ones alternate.
      const std::size_t count = i % 3 == 0 ? 2000 : 3;
      out.push_back(numbers(1000 * world.rank() + i, count));
      in.emplace_back(count);
      sent.push_back(world.transport().send(peer, 7, span_of(out.back()), TESSERA_HERE("send")));
      world.transport().recv(peer, 7, span_of(in.back()), TESSERA_HERE("receive"))->wait();
      all.insert(all.end(), in.back().begin(), in.back().end());
    }
    for (const WorkPtr& work : sent)
      work->wait_reusable();
    return all;
  });

  for (const auto& [rank, all] : results) {
    std::vector<float> expected;
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<float> one = numbers(1000 * ((rank + 2) % 4) + i, i % 3 == 0 ? 2000 : 3);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT_EQ(all, expected);
  }
}

// More operations than slots, posted before any is waited for, of inputs that peers read in place.
TEST(HostBridge, LetsOperationsOverlap) {
  constexpr std::size_t kMany = 3 * kSlots, kCount = 4000;
  const Program program = [&](World& world) {
    const Group& group = world.everyone();
    std::vector<RegionPtr> inputs;
    std::vector<std::vector<float>> outputs(kMany);
    std::vector<WorkPtr> works;
    std::vector<float> all;
    for (std::size_t i = 0; i < kMany; ++i) {
      const std::vector<float> values = numbers(static_cast<int>(i) + world.rank(), kCount);
      inputs.push_back(
          world.transport().allocate(kCount * sizeof(float), memory::Tag::Communication));
      std::memcpy(inputs.back()->data(), values.data(), inputs.back()->bytes());
      outputs[i].resize(kCount / 4);
      const Span in{inputs.back()->data(), kCount, DType::F32, {}};
      works.push_back(world.transport().reduce_scatter(
          group, in, span_of(outputs[i]), Op::Sum, Write::Store, TESSERA_HERE("sum")));
      if (i >= kSlots / 2) works[i - kSlots / 2]->wait_reusable();
    }
    for (std::size_t i = 0; i < kMany; ++i) {
      works[i]->wait();
      all.insert(all.end(), outputs[i].begin(), outputs[i].end());
    }
    return all;
  };

  expect_same_bits(on_one_host(Mesh::data_parallel(4), program),
                   on_hosts({2, 2}, Mesh::data_parallel(4), program));
}

TEST(HostBridge, NamesARankOfAnotherHostThatPostsSomethingElse) {
  std::string text;
  try {
    on_hosts({1, 1}, Mesh::data_parallel(2), [](World& world) {
      std::vector<float> values(world.rank() == 0 ? 8 : 6);
      world.transport()
          .all_reduce(world.everyone(), span_of(values), Op::Sum, TESSERA_HERE("loss"))
          ->wait();
      return values;
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Comm);
    text = error.text();
  }

  EXPECT_THAT(text, HasSubstr("ranks disagree about operation 0 of ranks 0,1"));
  EXPECT_THAT(text, HasSubstr("of 8 F32"));
  EXPECT_THAT(text, HasSubstr("of 6 F32"));
  EXPECT_THAT(text, HasSubstr("loss at"));
}

TEST(HostBridge, EndsWhenARankOfAnotherHostFails) {
  EXPECT_THROW(on_hosts({1, 1},
                        Mesh::data_parallel(2),
                        [](World& world) -> std::vector<float> {
                          if (world.rank() == 1) throw Error(Error::Kind::Numeric, "nan");
                          world.transport().barrier(world.everyone(), TESSERA_HERE("wait"))->wait();
                          return {};
                        }),
               Error);
}

/// Bytes between hosts of a program, less those of as many barriers: what is left are inputs.
std::size_t input_bytes(const std::vector<int>& per_host,
                        int operations,
                        const std::function<void(World&)>& program) {
  int ranks = 0;
  for (const int local : per_host)
    ranks += local;
  const Mesh mesh = Mesh::data_parallel(ranks);
  const std::size_t heads = test::run_hosts(per_host, mesh, [&](World& world) {
    for (int i = 0; i < operations; ++i)
      world.transport().barrier(world.everyone(), TESSERA_HERE("heads"))->wait();
  });
  return test::run_hosts(per_host, mesh, program) - heads;
}

// 4 ranks on 2 hosts, parts of 1,000 floats: 4,000 bytes a part.
TEST(HostBridge, SendsInputsOnceToEachHost) {
  constexpr std::size_t kPart = 1000, kPartBytes = 4 * kPart;

  EXPECT_EQ(
      input_bytes({2, 2},
                  1,
                  [](World& world) {
                    std::vector<float> in(kPart), out(4 * kPart);
                    world.transport()
                        .all_gather(
                            world.everyone(), span_of(in), span_of(out), TESSERA_HERE("gather"))
                        ->wait();
                  }),
      4 * kPartBytes)
      << "every rank sends its part once";
  EXPECT_EQ(input_bytes({2, 2},
                        1,
                        [](World& world) {
                          std::vector<float> in(4 * kPart), out(kPart);
                          world.transport()
                              .reduce_scatter(world.everyone(),
                                              span_of(in),
                                              span_of(out),
                                              Op::Sum,
                                              Write::Store,
                                              TESSERA_HERE("sum"))
                              ->wait();
                        }),
            4 * 2 * kPartBytes)
      << "every rank sends the parts of the other host's two";
}

/// Bytes of one reduction of `count` floats on every rank, without the heads of its messages.
std::size_t reduction_bytes(const std::vector<int>& per_host,
                            std::size_t count,
                            bool all,
                            Write write) {
  return input_bytes(per_host, 1, [&](World& world) {
    std::vector<float> in(count), out(count / static_cast<std::size_t>(world.size()));
    Transport& transport = world.transport();
    (all ? transport.all_reduce(world.everyone(), span_of(in), Op::Sum, TESSERA_HERE("sum"))
         : transport.reduce_scatter(
               world.everyone(), span_of(in), span_of(out), Op::Sum, write, TESSERA_HERE("sum")))
        ->wait();
  });
}

// Pieces of a chain have heads, too: at most 1 KiB for a piece of at most 1 MiB.
TEST(HostBridge, SendsLargeSumsFromHostToHost) {
  constexpr std::size_t kCount = std::size_t{3} << 20, kBytes = 4 * kCount;
  constexpr double kHeads = 0.01 * static_cast<double>(kBytes);
  const auto expect_bytes =
      [&](const std::vector<int>& per_host, bool all, Write write, double of) {
        EXPECT_NEAR(static_cast<double>(reduction_bytes(per_host, kCount, all, write)),
                    of * static_cast<double>(kBytes),
                    kHeads)
            << per_host.size() << " hosts of " << per_host.front() << ", all: " << all;
      };

  // One sum for each other host, and once more the parts of all hosts but the last.
  expect_bytes({2, 2}, false, Write::Store, 1 + 0.5);
  expect_bytes({2, 2, 2}, false, Write::Store, 2 + 2.0 / 3);
  // Besides, what all hosts but the first add to.
  expect_bytes({2, 2, 2}, false, Write::Accumulate, 2 + 2 * 2.0 / 3);
  // Sums of two hosts of two would take as much.
  expect_bytes({2, 2}, false, Write::Accumulate, 2);
  // A single rank a host has no sum to send.
  expect_bytes({1, 1, 1}, false, Write::Store, 2);
  // There and back.
  expect_bytes({2, 2}, true, Write::Store, 2);
  expect_bytes({1, 1, 1}, true, Write::Store, 4);
  // Two ranks send each other their inputs; so do ranks of hosts that differ in size.
  expect_bytes({1, 1}, true, Write::Store, 2);
  expect_bytes({2, 1}, true, Write::Store, 3);
}

TEST(HostBridge, AddsLargeSumsInRankOrderOnEveryHost) {
  // The parts of the second size do not begin at cache lines, and have several pieces.
  for (const auto& [per_host, part] : std::vector<std::pair<std::vector<int>, std::size_t>>{
           {{2, 2}, 140'000}, {{3, 3}, 100'001}, {{2, 2, 2}, 300'001}}) {
    const int ranks = std::accumulate(per_host.begin(), per_host.end(), 0);
    const Program program = [&](World& world) {
      return every_collective(world, world.everyone(), part);
    };
    expect_same_bits(on_one_host(Mesh::data_parallel(ranks), program),
                     on_hosts(per_host, Mesh::data_parallel(ranks), program));
  }
}

// Ranks wait for the operations of two groups in different orders, while sums go over the hosts.
TEST(HostBridge, LetsLargeSumsOverlap) {
  constexpr std::size_t kPart = 400'000;
  const Program program = [](World& world) {
    const Group& all = world.everyone();
    const Group& data = world.group(AxisSet({Axis::DpShard}));
    Transport& transport = world.transport();
    std::vector<std::vector<float>> sums;
    std::vector<WorkPtr> works;
    std::vector<std::vector<float>> ins;
    for (int i = 0; i < 6; ++i) {
      ins.push_back(numbers(world.rank() + 10 * i, 4 * kPart));
      sums.push_back(numbers(world.rank(), kPart));
    }
    for (std::size_t i = 0; i < 6; ++i)
      works.push_back(transport.reduce_scatter(i % 2 == 0 ? all : data,
                                               span_of(ins[i]),
                                               span_of(sums[i]),
                                               Op::Sum,
                                               Write::Store,
                                               TESSERA_HERE("sum")));
    for (std::size_t i = 0; i < 6; ++i)
      works[world.rank() % 2 == 0 ? i : 5 - i]->wait();
    std::vector<float> out;
    for (const std::vector<float>& sum : sums)
      out.insert(out.end(), sum.begin(), sum.end());
    return out;
  };
  expect_same_bits(on_one_host(Mesh::data_parallel(4), program),
                   on_hosts({2, 2}, Mesh::data_parallel(4), program));
}

// Rank 2 fails after all have posted the sum, and takes no part in it.
TEST(HostBridge, EndsWhenARankFailsWithinALargeSum) {
  std::string text;
  try {
    on_hosts({2, 2}, Mesh::data_parallel(4), [](World& world) -> std::vector<float> {
      std::vector<float> in(std::size_t{4} << 20, 1.0F), out(std::size_t{1} << 20);
      const WorkPtr sum = world.transport().reduce_scatter(
          world.everyone(), span_of(in), span_of(out), Op::Sum, Write::Store, TESSERA_HERE("sum"));
      if (world.rank() == 2) throw Error(Error::Kind::Numeric, "nan in rank 2");
      sum->wait();
      return out;
    });
  } catch (const Error& error) {
    text = error.text();
  }

  EXPECT_THAT(text, HasSubstr("nan in rank 2"));
}

// A rank that computes does no work for the others; a rank that waits for it says so.
TEST(HostBridge, NamesTheRankThatALargeSumWaitsFor) {
  std::string text;
  try {
    on_hosts({2, 2}, Mesh::data_parallel(4), [](World& world) -> std::vector<float> {
      std::vector<float> in(std::size_t{4} << 20, 1.0F), out(std::size_t{1} << 20);
      // All ranks have their memory before the limit counts.
      world.transport().barrier(world.everyone(), TESSERA_HERE("memory"))->wait();
      world.transport().set_stall_limit(2.0);
      const WorkPtr sum = world.transport().reduce_scatter(
          world.everyone(), span_of(in), span_of(out), Op::Sum, Write::Store, TESSERA_HERE("sum"));
      for (const double until = now_s() + 20.0;
           world.rank() == 2 && world.control().aborted.load() == 0 && now_s() < until;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      sum->wait();
      return out;
    });
  } catch (const Error& error) {
    text = error.text();
  }

  EXPECT_THAT(text, HasSubstr("rank 2 hangs"));
  EXPECT_THAT(text, HasSubstr("in sum at"));
}

TEST(HostColumn, HasOneRankOfEveryHost) {
  const HostLayout layout{{0, 4, 8}};
  // The second of two data-parallel groups of two tensor-parallel ranks.
  const Group group{.ranks = {1, 3, 5, 7}, .index = 3};

  const std::optional<HostColumn> column = column_of(group, layout);

  ASSERT_TRUE(column.has_value());
  EXPECT_EQ(column->ranks, (std::vector<int>{3, 7}));
  EXPECT_EQ(column->host, 1);
  EXPECT_EQ(column->locals, 2);
  EXPECT_EQ(column->share, 1);
  EXPECT_EQ(column->first_local(), 2);
}

TEST(HostColumn, IsNoneWhereHostsDiffer) {
  const auto exists = [](std::vector<int> ranks, const HostLayout& layout) {
    return column_of({.ranks = std::move(ranks)}, layout).has_value();
  };

  EXPECT_TRUE(exists({0, 1, 2, 3}, {{0, 2, 4}}));
  EXPECT_FALSE(exists({0, 1, 2, 3}, {{0, 4}})) << "one host";
  EXPECT_FALSE(exists({0, 1, 2, 3}, {{0, 3, 4}})) << "hosts of three ranks and of one";
  EXPECT_FALSE(exists({0, 2, 5, 7}, {{0, 4, 8}})) << "other local numbers";
  EXPECT_FALSE(exists({0, 2, 1, 3}, {{0, 2, 4}})) << "another order of the ranks";
  EXPECT_FALSE(exists({0, 1, 4, 5}, {{0, 2, 4, 6}})) << "a host without members in between";
}

TEST(HostLayout, KnowsWhoReceivesForWhichHost) {
  const HostLayout layout{{0, 3, 4, 6}};

  EXPECT_EQ(layout.hosts(), 3);
  EXPECT_EQ(layout.host_of(0), 0);
  EXPECT_EQ(layout.host_of(3), 1);
  EXPECT_EQ(layout.host_of(5), 2);
  EXPECT_EQ(layout.size(0), 3);
  EXPECT_EQ(layout.receiver(2, 1), 3) << "the only rank of that host";
  EXPECT_EQ(layout.receiver(2, 2), 4) << "2 modulo 2";
  EXPECT_EQ(layout.receiver(5, 0), 1);
}

/// A link that sends large messages only as far as the test lets it.
class Gate {
 public:
  void open(int messages) {
    const std::lock_guard lock(mutex_);
    allowed_ += messages;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return allowed_ > 0; });
    --allowed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int allowed_ = 0;
};
class GatedLink final : public HostLink {
 public:
  GatedLink(std::unique_ptr<HostLink> link, Gate& gate) : link_(std::move(link)), gate_(gate) {}
  [[nodiscard]] std::string_view name() const override { return "gated"; }
  void send(int peer, std::span<const Bytes> messages) override {
    if (messages.size() > 1) gate_.pass();
    link_->send(peer, messages);
  }
  void receive(int peer, std::span<std::byte> message) override { link_->receive(peer, message); }
  void close() noexcept override { link_->close(); }

 private:
  std::unique_ptr<HostLink> link_;
  Gate& gate_;
};

TEST(HostBridge, SendsAFewNumbersBeforeTheLargeMessagesThatWait) {
  const Mesh mesh = Mesh::data_parallel(2);
  const test::TestHosts hosts({1, 1});
  std::array<Gate, 2> gates;
  std::atomic<int> overtaken{0};
  std::latch checked(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Gate& gate = gates[static_cast<std::size_t>(rank)];
      const auto world = hosts.world_of(
          rank, mesh, nullptr, std::make_unique<GatedLink>(hosts.link_of(rank), gate));
      // Two groups of the same ranks: the order of operations is that of each group.
      const Group& data = world->group(mesh::AxisSet({mesh::Axis::DpShard}));
      ASSERT_NE(data.id, world->everyone().id);
      std::vector<float> weights(200'000, 1.0F), all(400'000), others(400'000);
      const Span in{weights.data(), weights.size()};
      const WorkPtr first = world->transport().all_gather(
                        data, in, {all.data(), all.size()}, TESSERA_HERE("first")),
                    second = world->transport().all_gather(
                        data, in, {others.data(), others.size()}, TESSERA_HERE("second"));
      float number = 1.0F;
      const WorkPtr small = world->transport().all_reduce(
          world->everyone(), {&number, 1}, Op::Sum, TESSERA_HERE("small"));
      gate.open(1);  // the first message, which is on its way already
      for (const double until = now_s() + 20.0; !small->done() && now_s() < until;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (small->done() && !second->done()) ++overtaken;
      checked.arrive_and_wait();
      gate.open(1);
      small->wait();
      first->wait();
      second->wait();
      EXPECT_EQ(number, 2.0F);
      EXPECT_EQ(others.back(), 1.0F);
    });
  }
  threads.clear();

  EXPECT_EQ(overtaken, 2);
}

}  // namespace
}  // namespace tessera::comm
