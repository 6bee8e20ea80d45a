// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/cpu/dropout_rows.h"

namespace tessera::ops {
namespace {

DropoutKey key_of(double p, std::vector<std::int64_t> samples, std::int64_t offset = 0) {
  return {.p = p,
          .key = 0x1234567890abcdefULL,
          .sample_ids = std::move(samples),
          .element_offset = offset};
}

TEST(Dropout, FollowsThePhiloxWordsOfItsDefinition) {
  const at::Tensor x = random({2, 3, 7}, 1);
  const DropoutKey key = key_of(0.3, {5, 1'000'000'000'000}, 2);

  const std::vector<double> y = doubles(dropout(x, key)), from = doubles(x);

  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::uint64_t element = i % 21 + 2,
                        sample = static_cast<std::uint64_t>(key.sample_ids[i / 21]);
    const std::uint32_t word = Philox{key.key}(element / 4, sample)[element % 4];
    const double expected = uniform_float(word) < 0.3 ? 0.0 : from[i] / 0.7;
    ASSERT_NEAR(y[i], expected, 1e-6) << "element " << i;
  }
}

TEST(Dropout, CountsOnWhereTheLowerHalfOfACounterEnds) {
  const at::Tensor x = at::ones({1, 200});
  const DropoutKey key = key_of(0.5, {7}, (std::int64_t{1} << 34) - 61);

  const std::vector<double> y = doubles(dropout(x, key));

  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::uint64_t element = i + static_cast<std::uint64_t>(key.element_offset);
    const std::uint32_t word = Philox{key.key}(element / 4, 7)[element % 4];
    ASSERT_EQ(y[i], uniform_float(word) < 0.5 ? 0.0 : 2.0) << "element " << i;
  }
}

TEST(Dropout, AddedToAStreamIsRoundedOnce) {
  const DropoutKey key = key_of(0.3, {5, 6});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random({2, 3, 37}, 1, dtype), branch = random({2, 3, 37}, 2, dtype);

    const at::Tensor y = add_dropout(x, branch, key);

    const at::Tensor whole = x.to(at::kFloat) + dropout(branch.to(at::kFloat), key);
    EXPECT_TRUE(same_bits(y, whole.to(dtype)));
  }
  const at::Tensor x = random({2, 3}, 1);
  EXPECT_TRUE(same_bits(add_dropout(x, x, {}), x + x));
  EXPECT_THROW(add_dropout(x, random({2, 4}, 1), key), Error);
  EXPECT_THROW(add_dropout(x, x.to(at::kBFloat16), key), Error);
}

TEST(Dropout, KeepsItsShareOfElementsAndTheMean) {
  constexpr std::int64_t kElements = 1 << 18;
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropout(at::ones({1, kElements}), key_of(p, {3}));

    const double kept = static_cast<double>((y != 0).sum().item<std::int64_t>()) / kElements;
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(kept, 1.0 - p, 5.0 * std::sqrt(p * (1.0 - p) / kElements));
    EXPECT_NEAR(y.max().item<double>(), 1.0 / (1.0 - p), 1e-5);
  }
}

TEST(Dropout, SamplesAndKeysDrawDifferentMasks) {
  const at::Tensor x = at::ones({2, 4096});
  DropoutKey other = key_of(0.5, {1, 2});
  other.key += 1;

  const at::Tensor y = dropout(x, key_of(0.5, {1, 2}));

  EXPECT_FALSE(same_bits(y[0], y[1]));
  EXPECT_FALSE(same_bits(y, dropout(x, other)));
}

TEST(Dropout, AMaskDoesNotDependOnTheBatchAroundIt) {
  const at::Tensor x = random({4, 3, 19}, 1);

  const at::Tensor all = dropout(x, key_of(0.4, {10, 11, 12, 13}));
  const at::Tensor last = dropout(x.slice(0, 2, 4), key_of(0.4, {12, 13}));

  EXPECT_TRUE(same_bits(all.slice(0, 2, 4), last));
}

TEST(Dropout, AShardDrawsItsPartOfTheMask) {
  const at::Tensor x = random({1, 1000}, 1);
  const at::Tensor all = dropout(x, key_of(0.4, {7}));

  for (const std::int64_t first : {1, 2, 3, 4, 250, 997}) {
    const at::Tensor shard = dropout(x.slice(1, first, 1000).contiguous(), key_of(0.4, {7}, first));
    EXPECT_TRUE(same_bits(all.slice(1, first, 1000), shard)) << first;
  }
}

TEST(Dropout, PartsOfASampleDrawTheirPartsOfTheMask) {
  const at::Tensor x = random({2, 12, 5}, 1);
  const at::Tensor all = dropout(x, key_of(0.4, {7, 8}));

  DropoutKey key = key_of(0.4, {7, 8});
  key.parts = {1, 4};  // of six parts
  const at::Tensor own = at::cat({x.slice(1, 2, 4), x.slice(1, 8, 10)}, 1);

  EXPECT_TRUE(same_bits(dropout(own, key), at::cat({all.slice(1, 2, 4), all.slice(1, 8, 10)}, 1)));
}

TEST(Dropout, PiecesOfAWindowDrawTheirPartsOfTheMask) {
  const at::Tensor x = random({2, 4, 10, 11}, 1);
  const auto window = [](const at::Tensor& whole) {
    const at::Tensor matrices = whole.slice(1, 1, 3);
    const at::Tensor rows = at::cat({matrices.slice(2, 0, 3), matrices.slice(2, 7, 8)}, 2);
    return at::cat({rows.slice(3, 1, 2), rows.slice(3, 4, 11)}, 3);
  };
  const DropoutKey key = key_of(0.4, {7, 8});
  const at::Tensor from = window(x), expected = window(dropout(x, key));
  const cpu::DropoutRows rows(key,
                              {.first_matrix = 1,
                               .rows = 10,
                               .columns = 11,
                               .row_runs = {{0, 3}, {7, 8}},
                               .column_runs = {{1, 2}, {4, 11}}});
  ASSERT_EQ(rows.rows(), 4);
  ASSERT_EQ(rows.columns(), 8);

  // A piece: columns [begin, end) of every row.
  for (const auto& [begin, end] : {std::pair(0, 8), {0, 1}, {0, 3}, {1, 8}, {3, 5}, {7, 8}}) {
    const at::Tensor piece = from.slice(3, begin, end).contiguous(), y = at::empty_like(piece);
    const std::int64_t count = end - begin;
    for (std::int64_t i = 0; i < 2 * 2 * 4; ++i) {
      rows.draw(cpu::kF32,
                piece.data_ptr<float>() + i * count,
                y.data_ptr<float>() + i * count,
                count,
                {.sample = i / 8, .matrix = i / 4 % 2, .row = i % 4, .column = begin});
    }
    EXPECT_TRUE(same_bits(y, expected.slice(3, begin, end).contiguous())) << begin << " to " << end;
  }
}

TEST(Dropout, APartOfTheColumnsDrawsItsPartOfTheMask) {
  const at::Tensor x = random({3, 50, 30}, 1);
  const at::Tensor all = dropout(x, key_of(0.4, {7, 9, 4}));

  for (const std::int64_t columns : {2, 3, 5}) {
    for (std::int64_t column = 0; column < columns; ++column) {
      DropoutKey key = key_of(0.4, {7, 9, 4});
      key.column = column;
      key.columns = columns;
      const std::int64_t width = 30 / columns;
      const at::Tensor part = dropout(x.narrow(2, column * width, width).contiguous(), key);
      EXPECT_TRUE(same_bits(all.narrow(2, column * width, width).contiguous(), part))
          << column << " of " << columns;
    }
  }
}

TEST(Dropout, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = random({5, 9973}, 1, at::kBFloat16);

  const auto results = with_threads([&] { return dropout(x, key_of(0.2, {1, 2, 3, 4, 5})); });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST(Dropout, In16BitsItIsTheFloatResultRoundedOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random({2, 1003}, 1, dtype);

    const at::Tensor y = dropout(x, key_of(0.3, {1, 2}));

    EXPECT_TRUE(same_bits(y, dropout(x.to(at::kFloat), key_of(0.3, {1, 2})).to(dtype)));
  }
}

TEST(Dropout, WhatDoesNotFitIntoFp16IsInfinite) {
  const at::Tensor y = dropout(at::full({1, 100}, 60000.0, at::kHalf), key_of(0.5, {1}));

  EXPECT_TRUE(((y == 0) | at::isinf(y)).all().item<bool>());
  EXPECT_TRUE(at::isinf(y).any().item<bool>());
}

TEST(Dropout, NothingAndEverythingCanBeDropped) {
  const at::Tensor x = random({1, 100}, 1);

  EXPECT_TRUE(same_bits(dropout(x, key_of(0.0, {1})), x));
  EXPECT_TRUE(same_bits(dropout(x, key_of(1.0, {1})), at::zeros({1, 100})));
}

TEST(Dropout, WorksOnMetaAndRefusesSamplesThatDoNotFit) {
  const at::Tensor meta = at::empty({2, 3}, at::TensorOptions().device(at::kMeta));

  EXPECT_TRUE(dropout(meta, key_of(0.5, {1, 2})).is_meta());
  EXPECT_THROW(dropout(random({2, 3}, 1), key_of(0.5, {1})), Error);
  EXPECT_THROW(dropout(random({2, 3}, 1), key_of(1.5, {1, 2})), Error);
}

}  // namespace
}  // namespace tessera::ops
