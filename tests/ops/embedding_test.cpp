// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

const std::vector<std::int64_t> kIds = {3, 0, 3, 10, 3, 7, 0};

TEST(Embedding, CopiesRows) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor table = random({11, 37}, 1, dtype);

    const at::Tensor y = ops::embedding(table, int64s(kIds));

    EXPECT_TRUE(same_bits(y, table.index_select(0, int64s(kIds))));
  }
}

TEST(Embedding, KeepsTheShapeOfTheIds) {
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);

  EXPECT_EQ(ops::embedding(random({4, 5}, 1), ids).sizes(), at::IntArrayRef({2, 3, 5}));
}

TEST(Embedding, GradientAgreesWithFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor dy = random({7, 37}, 2, dtype), dw = at::full({11, 37}, 9.0, at::kFloat);
    const std::vector<double> gradient = doubles(dy);
    std::vector<double> expected(11 * 37);
    for (std::size_t token = 0; token < kIds.size(); ++token) {
      for (std::size_t c = 0; c < 37; ++c)
        expected[kIds[token] * 37 + c] += gradient[token * 37 + c];
    }

    embedding_grad(dy, int64s(kIds), dw, false);
    expect_close(dw, expected, 1e-6);  // three fp32 additions
    embedding_grad(dy, int64s(kIds), dw, true);

    for (double& value : expected)
      value *= 2;
    expect_close(dw, expected, 1e-6);
  }
}

TEST(Embedding, GradientHasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor dy = random({200, 300}, 2);
  std::vector<std::int64_t> ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int64_t>(i * i % 5);

  const auto results = with_threads([&] {
    const at::Tensor dw = at::empty({5, 300}, at::kFloat);
    embedding_grad(dy, int64s(ids), dw, false);
    return dw;
  });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST(Embedding, IdsOutsideTheTableAreDataErrors) {
  for (const std::int64_t bad : {-1, 11}) {
    try {
      ops::embedding(random({11, 4}, 1), int64s({0, bad}));
      FAIL() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
    }
  }
}

TEST(Embedding, WorksOnMeta) {
  const at::Tensor table =
      at::empty({11, 4}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor ids = at::empty({2, 3}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));

  const at::Tensor y = ops::embedding(table, ids);

  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace tessera::ops
