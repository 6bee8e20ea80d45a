// SPDX-License-Identifier: Apache-2.0
// timeout: 300
// Every collective of every transport is compared bit by bit with a plain computation.
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "support/shm_world.h"
#include <gtest/gtest.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/world.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {
namespace {

using Rank = std::function<void(World&)>;

struct Case {
  std::string name;
  std::function<void(int, const Rank&)> run;
};

const std::vector<Case>& transports() {
  static const std::vector<Case> all = {
      {"threads", [](int n, const Rank& fn) { run_threads(n, fn); }},
      {"shm", [](int n, const Rank& fn) { test::run_shm_threads(n, fn); }},
  };
  return all;
}

/// Values of magnitudes from 2^-12 to 2^12, so that the order of a sum affects its bits. The period
/// has no common factor with powers of two, so that chunks and parts do not repeat.
constexpr std::size_t kPeriod = 3 * 25 * 101;

std::vector<double> make_values(int rank) {
  std::vector<double> values(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const double sign = (i + static_cast<std::size_t>(rank)) % 3 == 0 ? -1 : 1;
    const int exponent = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 25) - 12;
    values[i] = sign * std::ldexp(1.0 + static_cast<double>((i * 37) % 101) / 101.0, exponent);
  }
  return values;
}

/// Returns element i of the input of rank r.
double value(int rank, std::size_t i) {
  static const auto table = [] {
    std::vector<std::vector<double>> all;
    for (int r = 0; r < 8; ++r)
      all.push_back(make_values(r));
    return all;
  }();
  return table[static_cast<std::size_t>(rank)][i % kPeriod];
}

/// Elements of one dtype as a test writes and reads them.
struct Type {
  DType dtype;
  std::function<void(void*, std::size_t, double)> store;
  std::function<double(const void*, std::size_t)> load;
  bool floating;
};

template <class T>
Type plain(DType dtype, bool floating) {
  return {
      dtype,
      [](void* p, std::size_t i, double v) { static_cast<T*>(p)[i] = static_cast<T>(v); },
      [](const void* p, std::size_t i) { return static_cast<double>(static_cast<const T*>(p)[i]); },
      floating};
}

std::vector<Type> types() {
  return {plain<float>(DType::F32, true),
          plain<double>(DType::F64, true),
          {DType::BF16,
           [](void* p, std::size_t i, double v) {
             static_cast<std::uint16_t*>(p)[i] = to_bf16(static_cast<float>(v));
           },
           [](const void* p, std::size_t i) {
             return static_cast<double>(from_bf16(static_cast<const std::uint16_t*>(p)[i]));
           },
           true},
          plain<std::int64_t>(DType::I64, false),
          plain<std::int32_t>(DType::I32, false),
          plain<std::uint8_t>(DType::U8, false)};
}

/// Returns the input of rank r at i: small whole numbers for integers.
double input(const Type& type, int rank, std::size_t i) {
  return type.floating ? value(rank, i)
                       : static_cast<double>((i * 5 + static_cast<std::size_t>(rank)) % 23);
}

/// Returns the number rounded to the dtype.
double stored(const Type& type, double v) {
  double cell = 0;
  type.store(&cell, 0, v);
  return type.load(&cell, 0);
}

/// Computes ((start + in_0) + in_1) + ... in the arithmetic of the dtype.
double reduced(const Type& type, int ranks, std::size_t i, const double* start) {
  float narrow = start ? static_cast<float>(*start) : 0;
  double wide = start ? *start : 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double v = stored(type, input(type, rank, i));
    const bool first = rank == 0 && start == nullptr;
    narrow = first ? static_cast<float>(v) : narrow + static_cast<float>(v);
    wide = first ? v : wide + v;
  }
  const bool in_fp32 = type.dtype == DType::F32 || type.dtype == DType::BF16;
  return stored(type, in_fp32 ? static_cast<double>(narrow) : wide);
}

/// Memory for `count` elements, in a region of the transport or private.
struct Buffer {
  Buffer(World& world, const Type& type, std::size_t count, bool shared) {
    const std::size_t bytes = count * size_of(type.dtype);
    if (shared)
      region = world.transport().allocate(bytes, memory::Tag::Other);
    else
      memory.resize(bytes + 1);
    span = {shared ? region->data() : memory.data(), count, type.dtype, {}};
  }
  RegionPtr region;
  std::vector<std::byte> memory;
  Span span;
};

void fill(const Type& type, const Span& span, int rank, std::size_t from = 0) {
  for (std::size_t i = 0; i < span.count; ++i)
    type.store(span.data, i, input(type, rank, from + i));
}

class Collectives : public ::testing::TestWithParam<std::tuple<std::size_t, int>> {
 protected:
  void run(const Rank& fn) const {
    const auto& [transport, ranks] = GetParam();
    transports()[transport].run(ranks, fn);
  }
  /// Calls fn for every dtype, size and kind of memory; `count` is that of a part.
  void each(const std::function<void(World&, const Type&, std::size_t, bool)>& fn) const {
    run([&](World& world) {
      for (const Type& type : types())
        for (const std::size_t count : {0U, 1U, 3U, 511U, 1024U, 5001U})
          for (const bool shared : {true, false})
            fn(world, type, count, shared);
      // One large size, for which all-reduce uses several chunks.
      for (const bool shared : {true, false})
        fn(world, types()[0], (std::size_t{1} << 17) + 3, shared);
    });
  }
};

// The thread sanitizer takes minutes for eight ranks on two cores, and the races are the same with
// four.
#ifdef __SANITIZE_THREAD__
const auto kRanks = ::testing::Values(1, 2, 3, 4);
#else
const auto kRanks = ::testing::Values(1, 2, 3, 4, 8);
#endif
INSTANTIATE_TEST_SUITE_P(Transports,
                         Collectives,
                         ::testing::Combine(::testing::Values(0U, 1U), kRanks),
                         [](const auto& info) {
                           return transports()[std::get<0>(info.param)].name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

void expect(const Type& type,
            const Span& span,
            const char* what,
            const std::function<double(std::size_t)>& expected) {
  const std::size_t step = span.count > 100000 ? 61 : 1;
  for (std::size_t i = 0; i < span.count; i += step) {
    const double got = type.load(span.data, i);
    const double want = expected(i);
    if (got == want) continue;
    ADD_FAILURE() << what << " of " << span.count << " " << name(type.dtype) << ": element " << i
                  << " is " << got << ", not " << want;
    return;
  }
}

TEST_P(Collectives, AllReduceAddsInRankOrder) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    Buffer data(world, type, count, shared);
    fill(type, data.span, world.rank());

    world.transport().all_reduce(world.everyone(), data.span, Op::Sum, TESSERA_HERE("sum"))->wait();

    expect(type, data.span, "all_reduce", [&](std::size_t i) {
      return reduced(type, world.size(), i, nullptr);
    });
  });
}

TEST_P(Collectives, AllReduceOfMegabytes) {
  run([](World& world) {
    const Type type = types()[0];
    Buffer data(world, type, (std::size_t{1} << 20) + 5, true);
    for (int round = 0; round < 3; ++round) {
      fill(type, data.span, world.rank());

      const auto work =
          world.transport().all_reduce(world.everyone(), data.span, Op::Sum, TESSERA_HERE("sum"));
      work->wait();
      expect(type, data.span, "all_reduce", [&](std::size_t i) {
        return reduced(type, world.size(), i, nullptr);
      });
      work->wait_reusable();
    }
  });
}

TEST_P(Collectives, ReduceScatterStoresOrAccumulates) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    const auto ranks = static_cast<std::size_t>(world.size());
    Buffer in(world, type, count * ranks, shared);
    Buffer out(world, type, count, shared);
    fill(type, in.span, world.rank());
    const std::size_t first = count * static_cast<std::size_t>(world.rank());

    auto work = world.transport().reduce_scatter(
        world.everyone(), in.span, out.span, Op::Sum, Write::Store, TESSERA_HERE("store"));
    work->wait();
    expect(type, out.span, "reduce_scatter", [&](std::size_t i) {
      return reduced(type, world.size(), first + i, nullptr);
    });

    const double start = stored(type, type.floating ? 1000.1 : 7);
    for (std::size_t i = 0; i < count; ++i)
      type.store(out.span.data, i, start);
    work->wait_reusable();
    world.transport()
        .reduce_scatter(
            world.everyone(), in.span, out.span, Op::Sum, Write::Accumulate, TESSERA_HERE("add"))
        ->wait();
    expect(type, out.span, "reduce_scatter onto", [&](std::size_t i) {
      return reduced(type, world.size(), first + i, &start);
    });
  });
}

TEST_P(Collectives, ReduceScatterIntoTheOwnPartOfTheInput) {
  run([](World& world) {
    const Type type = types()[0];
    const std::size_t count = 3000;
    Buffer in(world, type, count * static_cast<std::size_t>(world.size()), true);
    fill(type, in.span, world.rank());
    const std::size_t first = count * static_cast<std::size_t>(world.rank());
    const Span own = in.span.part(first, count);

    world.transport()
        .reduce_scatter(
            world.everyone(), in.span, own, Op::Sum, Write::Store, TESSERA_HERE("in place"))
        ->wait();

    expect(type, own, "in place", [&](std::size_t i) {
      return reduced(type, world.size(), first + i, nullptr);
    });
  });
}

TEST_P(Collectives, AllGatherOrdersPartsByRank) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    const auto ranks = static_cast<std::size_t>(world.size());
    for (const bool in_place : {true, false}) {
      Buffer out(world, type, count * ranks, shared);
      Buffer apart(world, type, count, shared);
      const Span in = in_place
                          ? out.span.part(count * static_cast<std::size_t>(world.rank()), count)
                          : apart.span;
      fill(type, in, world.rank());

      world.transport().all_gather(world.everyone(), in, out.span, TESSERA_HERE("gather"))->wait();

      expect(type, out.span, "all_gather", [&](std::size_t i) {
        return stored(type, input(type, static_cast<int>(i / count), i % count));
      });
    }
  });
}

TEST_P(Collectives, BroadcastCopiesTheRoot) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    for (const int root : {0, world.size() - 1}) {
      Buffer data(world, type, count, shared);
      fill(type, data.span, world.rank());

      const auto work =
          world.transport().broadcast(world.everyone(), data.span, root, TESSERA_HERE("root"));
      work->wait();
      work->wait_reusable();

      expect(type, data.span, "broadcast", [&](std::size_t i) {
        return stored(type, input(type, root, i));
      });
    }
  });
}

TEST_P(Collectives, AllToAllTransposesParts) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    const auto ranks = static_cast<std::size_t>(world.size());
    Buffer in(world, type, count * ranks, shared);
    Buffer out(world, type, count * ranks, shared);
    fill(type, in.span, world.rank());
    const std::size_t first = count * static_cast<std::size_t>(world.rank());
    const auto expected = [&](std::size_t i) {
      return stored(type, input(type, static_cast<int>(i / count), first + i % count));
    };

    world.transport().all_to_all(world.everyone(), in.span, out.span, TESSERA_HERE("turn"))->wait();
    expect(type, out.span, "all_to_all", expected);

    const auto same =
        world.transport().all_to_all(world.everyone(), in.span, in.span, TESSERA_HERE("own"));
    same->wait();
    expect(type, in.span, "all_to_all in place", expected);
  });
}

/// Elements of the part from member i to member j: some are empty, as are all of a member.
std::int64_t unequal(std::size_t count, int i, int j) {
  if (i == 1) return 0;
  return static_cast<std::int64_t>(count) * ((i * 5 + j * 3) % 4) / 2;
}

TEST_P(Collectives, AllToAllVMovesPartsOfAnySize) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    const int ranks = world.size();
    for (const bool one_owner : {false, true}) {
      std::vector<std::int64_t> counts;
      for (int i = 0; i < ranks; ++i) {
        for (int j = 0; j < ranks; ++j) {
          const std::int64_t all = j + 1 == ranks ? static_cast<std::int64_t>(count) : 0;
          counts.push_back(one_owner ? all : unequal(count, i, j));
        }
      }
      const auto part = [&](int i, int j) {
        return counts[static_cast<std::size_t>(i * ranks + j)];
      };
      const auto before = [&](int i, int j) {  // elements of i's input before its part for j
        std::int64_t sum = 0;
        for (int other = 0; other < j; ++other)
          sum += part(i, other);
        return static_cast<std::size_t>(sum);
      };
      std::vector<double> expected;
      for (int i = 0; i < ranks; ++i) {
        for (std::int64_t k = 0; k < part(i, world.rank()); ++k)
          expected.push_back(
              stored(type, input(type, i, before(i, world.rank()) + static_cast<std::size_t>(k))));
      }
      Buffer in(world, type, before(world.rank(), ranks), shared);
      Buffer out(world, type, expected.size(), shared);
      fill(type, in.span, world.rank());

      const auto work = world.transport().all_to_all_v(
          world.everyone(), in.span, out.span, counts, TESSERA_HERE("exchange"));
      counts.assign(counts.size(), 0);  // it was copied
      work->wait();

      expect(type, out.span, "all_to_all_v", [&](std::size_t i) { return expected[i]; });
      work->wait_reusable();
    }
  });
}

TEST_P(Collectives, MessagesGoRoundInOrder) {
  each([](World& world, const Type& type, std::size_t count, bool shared) {
    if (world.size() == 1) return;
    const int next = (world.rank() + 1) % world.size();
    const int before = (world.rank() + world.size() - 1) % world.size();
    Buffer first(world, type, count, shared), second(world, type, count, shared);
    Buffer one(world, type, count, shared), two(world, type, count, shared);
    fill(type, first.span, world.rank());
    fill(type, second.span, world.rank(), 5);
    Transport& transport = world.transport();

    const auto a = transport.send(next, 1, first.span, TESSERA_HERE("first"));
    const auto b = transport.send(next, 1, second.span, TESSERA_HERE("second"));
    const auto c = transport.recv(before, 1, one.span, TESSERA_HERE("one"));
    const auto d = transport.recv(before, 1, two.span, TESSERA_HERE("two"));
    d->wait();
    c->wait();
    a->wait_reusable();
    b->wait_reusable();

    expect(type, one.span, "first message", [&](std::size_t i) {
      return stored(type, input(type, before, i));
    });
    expect(type, two.span, "second message", [&](std::size_t i) {
      return stored(type, input(type, before, i + 5));
    });
  });
}

TEST_P(Collectives, MaxMinAndBitOr) {
  run([](World& world) {
    std::vector<std::int64_t> data = {world.rank(), -world.rank(), std::int64_t{1} << world.rank()};
    const auto reduce = [&](Op op) {
      std::vector<std::int64_t> copy = data;
      world.transport()
          .all_reduce(world.everyone(), {copy.data(), 3, DType::I64, {}}, op, TESSERA_HERE("op"))
          ->wait();
      return copy;
    };

    const std::int64_t last = world.size() - 1;
    EXPECT_EQ(reduce(Op::Max), (std::vector<std::int64_t>{last, 0, std::int64_t{1} << last}));
    EXPECT_EQ(reduce(Op::Min), (std::vector<std::int64_t>{0, -last, 1}));
    EXPECT_EQ(reduce(Op::BitOr)[2], (std::int64_t{1} << world.size()) - 1);
  });
}

/// Inputs in ordinary memory are copied into shared memory that the next call reuses.
TEST_P(Collectives, OfOrdinaryMemoryTakeNoMoreSharedMemoryFromCallToCall) {
  run([](World& world) {
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    const auto shared = [&] {
      return ledger.usage().peak[static_cast<std::size_t>(memory::Tag::Communication)];
    };
    std::vector<float> in(std::size_t{1} << 16),
        out(in.size() * static_cast<std::size_t>(world.size()));
    const auto gather = [&] {
      world.transport()
          .all_gather(world.everyone(),
                      {in.data(), in.size(), DType::F32, {}},
                      {out.data(), out.size(), DType::F32, {}},
                      TESSERA_HERE("gather"))
          ->wait();
    };
    for (int i = 0; i < 100; ++i)
      gather();

    // One buffer that peers read, and a few that they have not acknowledged yet.
    EXPECT_LE(shared(), static_cast<std::int64_t>(4 * in.size() * sizeof(float)));
    world.transport().barrier(world.everyone(), TESSERA_HERE("end"))->wait();
  });
}

TEST_P(Collectives, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> arrived{0};
  run([&](World& world) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      world.transport().barrier(world.everyone(), TESSERA_HERE("meet"))->wait();

      EXPECT_GE(arrived.load(), round * world.size());
    }
  });
}

TEST_P(Collectives, RefusesSizesThatDoNotFit) {
  run([](World& world) {
    std::vector<float> data(16);
    const Span five{data.data(), 5, DType::F32, {}};
    const Span whole{data.data() + 5, 11, DType::F32, {}};
    const Span doubles{data.data(), 2, DType::F64, {}};
    Transport& transport = world.transport();
    const Group& all = world.everyone();

    EXPECT_THROW(transport.all_gather(all, five, whole, TESSERA_HERE("x")), Error);
    EXPECT_THROW(transport.all_gather(all, five, doubles, TESSERA_HERE("x")), Error);
    EXPECT_THROW(transport.broadcast(all, five, world.size(), TESSERA_HERE("x")), Error);
    EXPECT_THROW(transport.all_reduce(all, five, Op::BitOr, TESSERA_HERE("x")), Error);
    EXPECT_THROW(transport.send(world.rank(), 0, five, TESSERA_HERE("x")), Error);
    EXPECT_THROW(
        transport.reduce_scatter(all, whole, five, Op::Sum, Write::Store, TESSERA_HERE("x")),
        Error);
  });
}

}  // namespace
}  // namespace tessera::comm
