// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/compressed/compressed_reduce.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <vector>

#include "support/shm_world.h"
#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera::parallel {
namespace {

using Numbers = std::vector<double>;

// fp32 vectors and errors against float64, over a few rounds.
constexpr double kTolerance = 2e-6;

/// A function of rank and round, between -1 and 1, with an element of each vector that is exactly
/// 0.
std::vector<float> input(int rank, int round, std::int64_t numel) {
  const Philox random{static_cast<std::uint64_t>(100 * rank + round)};
  std::vector<float> out;
  for (std::int64_t i = 0; i < numel; ++i)
    out.push_back(2.0F * uniform_float(random(static_cast<std::uint64_t>(i))[0]) - 1.0F);
  out.front() = 0.0F;
  return out;
}

/// The formula, rank after rank, of one vector.
class Reference {
 public:
  Reference(int ranks, std::int64_t padded)
      : worker(static_cast<std::size_t>(ranks), Numbers(static_cast<std::size_t>(padded), 0.0)),
        server(static_cast<std::size_t>(padded), 0.0) {}

  Numbers mean(const std::vector<std::vector<float>>& inputs) {
    const std::size_t n = worker.size(), len = server.size(), part = len / n;
    Numbers sum(len, 0.0);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < inputs[r].size(); ++i)
        worker[r][i] += inputs[r][i];
      const Numbers told = tell(worker[r], 0, len);
      for (std::size_t i = 0; i < len; ++i)
        sum[i] += told[i] / static_cast<double>(n);
    }
    Numbers out;
    for (std::size_t i = 0; i < len; ++i)
      server[i] += sum[i];
    for (std::size_t j = 0; j < n; ++j) {
      const Numbers told = tell(server, j * part, part);
      out.insert(out.end(), told.begin(), told.end());
    }
    return out;
  }

  std::vector<Numbers> worker;
  Numbers server;

 private:
  static Numbers tell(Numbers& y, std::size_t begin, std::size_t count) {
    double squares = 0.0;
    for (std::size_t i = begin; i < begin + count; ++i)
      squares += y[i] * y[i];
    const double scale = std::sqrt(squares / static_cast<double>(count));
    Numbers out;
    for (std::size_t i = begin; i < begin + count; ++i) {
      out.push_back(y[i] >= 0 ? scale : -scale);
      y[i] -= out.back();
    }
    return out;
  }
};

const std::vector<std::int64_t> kLengths = {32, 100, 1, 5000};

void expect_formula(int ranks, int rounds) {
  std::mutex one_at_a_time;
  comm::run_threads(ranks, [&](comm::World& world) {
    const comm::Group& group = world.everyone();
    CompressedReduce reduce(world, group, kLengths);
    std::vector<Reference> references;
    for (const auto& vector : reduce.vectors())
      references.emplace_back(ranks, vector.padded);

    for (int round = 0; round < rounds; ++round) {
      // The values in the padding must not count.
      std::vector<float> flat(static_cast<std::size_t>(reduce.numel()), 1e9F);
      std::vector<Numbers> expected;
      for (std::size_t v = 0; v < kLengths.size(); ++v) {
        std::vector<std::vector<float>> inputs;
        for (int r = 0; r < ranks; ++r)
          inputs.push_back(input(r, 10 * round + static_cast<int>(v), kLengths[v]));
        std::copy(inputs[static_cast<std::size_t>(world.rank())].begin(),
                  inputs[static_cast<std::size_t>(world.rank())].end(),
                  flat.begin() + reduce.vectors()[v].begin);
        expected.push_back(references[v].mean(inputs));
      }
      reduce.mean(flat.data());

      const std::lock_guard lock(one_at_a_time);
      for (std::size_t v = 0; v < kLengths.size(); ++v) {
        for (std::size_t i = 0; i < expected[v].size(); ++i) {
          const auto at = static_cast<std::size_t>(reduce.vectors()[v].begin) + i;
          ASSERT_NEAR(flat[at], expected[v][i], kTolerance) << "vector " << v << " element " << i;
        }
      }
    }

    const std::lock_guard lock(one_at_a_time);
    const auto rank = static_cast<std::size_t>(world.rank());
    for (std::size_t v = 0; v < kLengths.size(); ++v) {
      const auto worker = reduce.worker_error(v), server = reduce.server_error(v);
      for (std::size_t i = 0; i < worker.size(); ++i)
        ASSERT_NEAR(worker[i], references[v].worker[rank][i], kTolerance) << v << " " << i;
      for (std::size_t i = 0; i < server.size(); ++i)
        ASSERT_NEAR(server[i], references[v].server[rank * server.size() + i], kTolerance);
    }
  });
}

TEST(CompressedReduce, FollowsTheFormulaInFloat64) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_formula(ranks, 4);
  }
}

TEST(CompressedReduce, PadsToWholeBytesOfEveryRank) {
  EXPECT_EQ(CompressedReduce::padded_length(1, 2), 16);
  EXPECT_EQ(CompressedReduce::padded_length(32, 2), 32);
  EXPECT_EQ(CompressedReduce::padded_length(5, 3), 72);
  EXPECT_EQ(CompressedReduce::padded_length(33, 4), 64);
  EXPECT_EQ(CompressedReduce::padded_length(65, 8), 128);
}

TEST(CompressedReduce, WhatIsNotReducedStaysInTheErrors) {
  constexpr int kRanks = 3, kRounds = 6;
  constexpr std::int64_t kNumel = 700;
  std::mutex one_at_a_time;
  Numbers wanted(kNumel, 0.0), left(kNumel, 0.0);
  comm::run_threads(kRanks, [&](comm::World& world) {
    CompressedReduce reduce(world, world.everyone(), {kNumel});
    Numbers told(kNumel, 0.0), given(kNumel, 0.0);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> flat = input(world.rank(), round, kNumel);
      for (std::size_t i = 0; i < given.size(); ++i)
        given[i] += flat[i];
      flat.resize(static_cast<std::size_t>(reduce.numel()));
      reduce.mean(flat.data());
      for (std::size_t i = 0; i < told.size(); ++i)
        told[i] += flat[i];
    }

    const std::lock_guard lock(one_at_a_time);
    const auto worker = reduce.worker_error(0), server = reduce.server_error(0);
    const std::size_t begin = static_cast<std::size_t>(world.rank()) * server.size();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      wanted[i] += given[i] / kRanks;
      left[i] += worker[i] / kRanks;
      if (world.rank() == 0) left[i] += told[i];
      if (i >= begin && i < begin + server.size()) left[i] += server[i - begin];
    }
  });

  for (std::size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(left[i], wanted[i], kRounds * kTolerance) << i;
}

TEST(CompressedReduce, ForgetsItsErrors) {
  comm::run_threads(2, [](comm::World& world) {
    CompressedReduce used(world, world.everyone(), {64}), fresh(world, world.everyone(), {64});
    std::vector<float> first = input(world.rank(), 0, 64), second = input(world.rank(), 1, 64);
    std::vector<float> same = second;

    used.mean(first.data());
    used.forget();
    used.mean(second.data());
    fresh.mean(same.data());

    EXPECT_EQ(second, same);
  });
}

/// Every rank's result after a few rounds, followed by its errors.
std::vector<std::vector<float>> left_by(
    int ranks, const std::function<void(int, const std::function<void(comm::World&)>&)>& run) {
  std::vector<std::vector<float>> out(static_cast<std::size_t>(ranks));
  run(ranks, [&](comm::World& world) {
    CompressedReduce reduce(world, world.everyone(), {700, 40});
    std::vector<float>& mine = out[static_cast<std::size_t>(world.rank())];
    for (int round = 0; round < 5; ++round) {
      mine = input(world.rank(), round, reduce.numel());
      reduce.mean(mine.data());
    }
    for (const std::size_t vector : {0, 1}) {
      const auto worker = reduce.worker_error(vector), server = reduce.server_error(vector);
      mine.insert(mine.end(), worker.begin(), worker.end());
      mine.insert(mine.end(), server.begin(), server.end());
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
  });
  return out;
}

TEST(CompressedReduce, GivesTheSameBitsOverSharedMemoryAndOnEveryRank) {
  const auto threads = left_by(3, [](int ranks, const auto& fn) { comm::run_threads(ranks, fn); });
  const auto shared =
      left_by(3, [](int ranks, const auto& fn) { test::run_shm_threads(ranks, fn); });

  EXPECT_EQ(threads, shared);
  const auto mean = [&](std::size_t rank) {
    return std::vector<float>(threads[rank].begin(), threads[rank].begin() + 700);
  };
  EXPECT_EQ(mean(0), mean(1));
  EXPECT_EQ(mean(0), mean(2));
}

TEST(CompressedReduce, MovesTwoBitsAnElement) {
  constexpr std::int64_t kNumel = 1 << 16;
  comm::run_threads(4, [](comm::World& world) {
    CompressedReduce reduce(world, world.everyone(), {kNumel, kNumel});
    std::vector<float> flat(2 * kNumel, 1.0F);
    const comm::Traffic before = world.transport().traffic();
    reduce.mean(flat.data());
    const std::int64_t bytes = world.transport().traffic().bytes - before.bytes;

    // To the owners and back; a scale for each vector and rank both times.
    EXPECT_EQ(bytes, 2 * (2 * kNumel / 8 + 2 * 4 * 4));
  });
}

}  // namespace
}  // namespace tessera::parallel
