// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Rows that travel against the dense reduction of the same gradients.
#include "tessera/parallel/row_exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/philox.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kWidth = 48;  // shards cut rows
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kNumel = kRows * kWidth;

/// A gradient with few rows, some of their values zeros of either sign.
struct Sparse {
  at::Tensor flat = at::zeros({kNumel});
  std::vector<Touched> touched;

  Sparse(int rank, std::uint64_t seed) {
    const Philox random{seed};
    std::vector<std::int64_t> rows = {0, 3, 85, 127};  // every rank has them
    for (std::uint64_t i = 0; i < 8; ++i)
      rows.push_back(random(100 + i + 16 * static_cast<std::uint64_t>(rank))[0] % kRows);
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    float* const values = flat.data_ptr<float>();
    for (const std::int64_t row : rows) {
      touched.push_back({row * kWidth, (row + 1) * kWidth});
      for (std::int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) {
        const std::uint32_t bits = random(static_cast<std::uint64_t>(i + kNumel * rank))[1];
        values[i] = bits % 3 == 0 ? -0.0F : static_cast<float>(bits % 1000) - 500.5F;
      }
    }
  }
};

void expect_same_bits(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.numel(), b.numel());
  EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<std::size_t>(a.numel()) * 4), 0);
}

comm::Span span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), DType::F32, {}};
}

TEST(RowExchange, LeavesTheBitsOfTheDenseFold) {
  for (const int ranks : {2, 3, 4}) {
    comm::run_threads(ranks, [&](comm::World& world) {
      const comm::Group& group = world.everyone();
      RowExchange rows(world, group, kNumel);
      // Sums begin with zeros of either sign too.
      const at::Tensor dense = at::full({kNumel / ranks}, -0.0F), sparse = dense.clone();
      for (const auto& [seed, fold] : {std::pair(1, comm::Fold::Accumulate),
                                       std::pair(2, comm::Fold::Accumulate),
                                       std::pair(3, comm::Fold::Store),
                                       std::pair(4, comm::Fold::Accumulate)}) {
        const Sparse gradient(world.rank(), static_cast<std::uint64_t>(seed));
        const comm::WorkPtr work = world.transport().reduce_scatter(group,
                                                                    span_of(gradient.flat),
                                                                    span_of(dense),
                                                                    comm::Op::Sum,
                                                                    fold,
                                                                    TESSERA_HERE("dense"));
        work->wait();
        EXPECT_EQ(rows.fold(gradient.flat, gradient.touched, sparse, fold, "test"),
                  RowExchange::Outcome::Done);
        expect_same_bits(dense, sparse);
        work->wait_reusable();
      }
      EXPECT_GT(dense.abs().sum().item<float>(), 0.0F);
      world.transport().barrier(group, TESSERA_HERE("end"))->wait();
    });
  }
}

TEST(RowExchange, IsRefusedByAllRanksWhereOneIsDenseOrHasTooMuch) {
  comm::run_threads(2, [&](comm::World& world) {
    const comm::Group& group = world.everyone();
    RowExchange rows(world, group, kNumel);
    const Sparse gradient(world.rank(), 1);
    const at::Tensor out = at::ones({kNumel / 2});
    const std::vector<Touched> all = {{0, kNumel / 2}};
    const bool mine = world.rank() == 1;

    EXPECT_EQ(rows.fold(gradient.flat,
                        mine ? std::nullopt : std::optional(gradient.touched),
                        out,
                        comm::Fold::Store,
                        "test"),
              RowExchange::Outcome::Dense);
    EXPECT_EQ(
        rows.fold(gradient.flat, mine ? all : gradient.touched, out, comm::Fold::Store, "test"),
        RowExchange::Outcome::TooMany);
    EXPECT_TRUE(at::equal(out, at::ones({kNumel / 2}))) << "nothing was done";
    world.transport().barrier(group, TESSERA_HERE("end"))->wait();
  });
}

}  // namespace
}  // namespace tessera::parallel
