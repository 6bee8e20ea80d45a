// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Reducing rows, compared with the dense reduction of the same gradients.
#include "tessera/parallel/row_exchange.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/philox.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kWidth = 48;  // shards split rows
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kNumel = kRows * kWidth;

TablePlace table_of(int ranks) {
  return {0, kWidth, kNumel / ranks, ranks};
}

/// A gradient with few rows.
RowSum sparse(int rank, std::uint64_t seed) {
  const Philox random{seed};
  std::vector<std::int64_t> rows = {127, 0, 3, 85};  // every rank has them
  for (std::uint64_t i = 0; i < 8; ++i)
    rows.push_back(random(100 + i + 16 * static_cast<std::uint64_t>(rank))[0] % kRows);
  RowSum sum(kWidth);
  for (const std::int64_t row : rows) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      const auto element = static_cast<std::uint64_t>(row * kWidth + c + kNumel * rank);
      sum.row(row)[c] += static_cast<float>(random(element)[1] % 100'000) * 1e-3F - 50.0F;
    }
  }
  return sum;
}

at::Tensor dense(const RowSum& sum) {
  const at::Tensor flat = at::zeros({kNumel});
  sum.add_to(flat, 0);
  return flat;
}

RowExchange::Sum into(RowSum& sum) {
  return [&sum](std::int64_t element) { return sum.at(element); };
}

void expect_same_bits(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.numel(), b.numel());
  EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<std::size_t>(a.numel()) * 4), 0);
}

comm::Span span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), DType::F32, {}};
}

TEST(RowExchange, LeavesTheBitsOfTheDenseReduction) {
  for (const int ranks : {2, 3, 4}) {
    comm::run_threads(ranks, [&](comm::World& world) {
      const comm::Group& group = world.everyone();
      const TablePlace table = table_of(ranks);
      RowExchange rows(world, group);
      const at::Tensor reduced = at::zeros({table.shard});
      RowSum sum(kWidth);
      for (const int seed : {1, 2, 3}) {
        const RowSum gradient = sparse(world.rank(), static_cast<std::uint64_t>(seed));
        const at::Tensor flat = dense(gradient);
        const comm::WorkPtr work = world.transport().reduce_scatter(group,
                                                                    span_of(flat),
                                                                    span_of(reduced),
                                                                    comm::Op::Sum,
                                                                    comm::Write::Accumulate,
                                                                    TESSERA_HERE("dense"));
        work->wait();
        EXPECT_EQ(rows.reduce(&gradient, table, into(sum), "test"), RowExchange::Outcome::Done);
        expect_same_bits(dense(sum).narrow(0, world.rank() * table.shard, table.shard), reduced);
        work->wait_reusable();
      }
      EXPECT_GT(reduced.abs().sum().item<float>(), 0.0F);
      world.transport().barrier(group, TESSERA_HERE("end"))->wait();
    });
  }
}

TEST(RowExchange, IsRefusedByAllRanksWhereOneIsDenseOrHasTooMuch) {
  comm::run_threads(2, [&](comm::World& world) {
    const comm::Group& group = world.everyone();
    RowExchange rows(world, group);
    const RowSum gradient = sparse(world.rank(), 1);
    RowSum all(kWidth), sum(kWidth);
    for (std::int64_t row = 0; row < kRows / 2; ++row)
      *all.row(row) += 1.0F;
    const bool mine = world.rank() == 1;

    EXPECT_EQ(rows.reduce(mine ? nullptr : &gradient, table_of(2), into(sum), "test"),
              RowExchange::Outcome::Dense);
    EXPECT_EQ(rows.reduce(mine ? &all : &gradient, table_of(2), into(sum), "test"),
              RowExchange::Outcome::TooMany);
    EXPECT_TRUE(sum.rows().empty()) << "nothing was done";
    world.transport().barrier(group, TESSERA_HERE("end"))->wait();
  });
}

}  // namespace
}  // namespace tessera::parallel
