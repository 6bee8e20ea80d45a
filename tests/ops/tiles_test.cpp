// SPDX-License-Identifier: Apache-2.0
// Products by the CPU's matrix tiles and dot products, and the orders of their operands.
#include "tessera/ops/cpu/tiles.h"

#include <tuple>
#include <vector>

#include "ops/support.h"

#include "tessera/ops/cpu/isa.h"

namespace tessera::ops::cpu {
namespace {

class Tiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!runs_here(Isa::Avx512Bf16)) GTEST_SKIP() << "this CPU has no products of bf16";
  }
};

/// The implementations of the product that this CPU supports: with matrix tiles only if isa() names
/// them.
std::vector<void (*)(const TileProduct&)> ways() {
  std::vector<void (*)(const TileProduct&)> out{multiply_by_dots};
  if (isa() == Isa::Amx) out.push_back(multiply_by_amx);
  return out;
}

PackedRows packed(const at::Tensor& x) {
  return {{x.data_ptr(), x.stride(0)}, x.size(0), x.size(1)};
}
/// Memory for `values` of bf16 on cache lines, full of what must not be read.
at::Tensor room(std::int64_t values) {
  return at::full({values}, std::nanf(""), at::kBFloat16);
}
std::uint16_t* values(const at::Tensor& x) {
  return static_cast<std::uint16_t*>(x.data_ptr());
}
at::Tensor rows_of(const at::Tensor& x, std::int64_t spare, std::uint64_t seed) {
  return random({x.size(0), x.size(1) + spare}, seed, at::kBFloat16).narrow(1, 0, x.size(1));
}

TEST_F(Tiles, ProductsOfAllOrdersAgreeWithFloat64) {
  const TileRegisters registers;
  for (const auto& [M, N, K] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
                                {5, 16, 32},
                                {33, 47, 8},
                                {64, 70, 40},
                                {20, 130, 100},
                                {40, 50, 600}}) {
    SCOPED_TRACE(testing::Message() << M << " " << N << " " << K);
    // Rows further apart than they are wide.
    const at::Tensor a = rows_of(at::empty({M, K}), 3, 1), b = rows_of(at::empty({K, N}), 5, 2);
    const at::Tensor a_transposed = a.t().contiguous(), b_transposed = b.t().contiguous();
    const std::int64_t m = whole_tiles(M, kTileInner), n = whole_tiles(N, kTileInner),
                       k = whole_tiles(K, kTileInner);
    const at::Tensor left = room(m * k), from_columns = room(m * k), right = room(n * k),
                     from_transposed = room(n * k);
    pack_rows(packed(a), values(left));
    pack_columns(packed(a_transposed), values(from_columns));
    pack_pairs(packed(b), values(right));
    pack_pairs_transposed(packed(b_transposed), values(from_transposed));
    const at::Tensor product = at::matmul(a.to(at::kDouble), b.to(at::kDouble));

    for (const at::Tensor& rows : {left, from_columns}) {
      for (const at::Tensor& tiles : {right, from_transposed}) {
        for (const auto multiply : ways()) {
          for (const bool accumulate : {true, false}) {
            const std::int64_t stride = n + kTileRows;
            const at::Tensor c = at::full({m, stride}, accumulate ? 1.0F : std::nanf(""));
            multiply({.m = whole_tiles(M, kTileRows),
                      .n = whole_tiles(N, kTileRows),
                      .k = k,
                      .a = values(rows),
                      .a_stride = k,
                      .b = {values(tiles), k / kTileInner},
                      .b_inner = 0,
                      .b_column = 0,
                      .c = c.data_ptr<float>(),
                      .c_stride = stride,
                      .accumulate = accumulate});
            // Sums of at most 600 products, each below 1.
            expect_close(
                c.slice(0, 0, M).slice(1, 0, N), doubles(product + (accumulate ? 1.0 : 0.0)), 1e-5);
          }
        }
      }
    }
  }
}

TEST_F(Tiles, ProductsBeginAnywhereInTheRightOperand) {
  const TileRegisters registers;
  const at::Tensor a = random({16, 32}, 1, at::kBFloat16), b = random({96, 64}, 2, at::kBFloat16);
  const at::Tensor right = room(96 * 64), c = at::empty({16, 16});
  pack_pairs(packed(b), values(right));

  for (const auto multiply : ways()) {
    multiply({.m = 16,
              .n = 16,
              .k = 32,
              .a = values(a),
              .a_stride = 32,
              .b = {values(right), 3},
              .b_inner = 64,
              .b_column = 48,
              .c = c.data_ptr<float>(),
              .c_stride = 16,
              .accumulate = false});
    const at::Tensor part = b.narrow(0, 64, 32).narrow(1, 48, 16);
    expect_close(c, doubles(at::matmul(a.to(at::kDouble), part.to(at::kDouble))), 1e-5);
  }
}

TEST_F(Tiles, SumsAreRoundedAndTransposed) {
  const at::Tensor sums = random({48, 80}, 3);
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{40, 33}, {16, 64}}) {
    const at::Tensor out = at::full({columns, rows + 2}, 9.0, at::kBFloat16);

    round_transposed(sums.data_ptr<float>(), 80, rows, columns, {out.data_ptr(), rows + 2});

    const at::Tensor expected =
        sums.slice(0, 0, rows).slice(1, 0, columns).t().to(at::kBFloat16).contiguous();
    EXPECT_TRUE(same_bits(out.slice(1, 0, rows).contiguous(), expected));
    EXPECT_TRUE(out.slice(1, rows).eq(9.0).all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::ops::cpu
