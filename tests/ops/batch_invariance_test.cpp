// SPDX-License-Identifier: Apache-2.0
// With batch-invariant kernels the bits of a row do not depend on the rows around it.
#include "tessera/ops/batch_invariance.h"

#include <cstdint>
#include <tuple>
#include <vector>

#include "ops/support.h"

#include <ATen/Parallel.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {
namespace {

const at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

TEST(BatchInvariance, IsOnWithinItsScope) {
  EXPECT_FALSE(batch_invariant());
  {
    const BatchInvariance outer;
    { const BatchInvariance inner; }
    EXPECT_TRUE(batch_invariant());
  }
  EXPECT_FALSE(batch_invariant());
}

TEST(BatchInvariance, ARowOfAProductDoesNotDependOnTheOthers) {
  constexpr std::int64_t kRows = 300, kInputs = 1234, kOutputs = 77;
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool wide : {false, true}) {
      SCOPED_TRACE(c10::toString(dtype));
      const at::Tensor x = random({kRows, kInputs}, 1, dtype),
                       w = random({kOutputs, kInputs}, 2, dtype),
                       bias = random({kOutputs}, 3, dtype);
      const at::ScalarType out = wide ? at::kFloat : dtype;
      const BatchInvariance scope;
      const at::Tensor all = ops::linear(x, w, bias, out);

      for (const std::int64_t rows : {1, 2, 3, 8, 9, 100, 299}) {
        const at::Tensor some = ops::linear(x.narrow(0, kRows - rows, rows), w, bias, out);
        EXPECT_TRUE(some.equal(all.narrow(0, kRows - rows, rows))) << rows << " rows";
      }
      EXPECT_TRUE(ops::linear(x.flip(0), w, bias, out).flip(0).equal(all));
      EXPECT_TRUE(ops::linear(x, w.t().contiguous().t(), bias, out).equal(all));
    }
  }
}

// 1234 products in another order; 16 bits are rounded once.
TEST(BatchInvariance, ProductsAreThoseOfTheLibraryUpToRounding) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = random({40, 1234}, 1, dtype), w = random({77, 1234}, 2, dtype);
    const at::Tensor usual = ops::linear(x, w, {}, at::kFloat);

    const BatchInvariance scope;
    const at::Tensor own = ops::linear(x, w, {}, at::kFloat);

    EXPECT_LT((own - usual).abs().max().item<double>(), 2e-6 * usual.abs().max().item<double>());
  }
}

struct Form {
  const char* name;
  std::int64_t window = 0;
  bool slopes = false, bias = false;
  double softcap = 0.0;
};
const Form kForms[] = {{"causal"},
                       {"window", 40},
                       {"alibi", 0, true},
                       {"bias", 0, false, true},
                       {"cap", 0, false, false, 5.0}};

TEST(BatchInvariance, AQueryDoesNotDependOnTheOthers) {
  constexpr std::int64_t kHeads = 4, kShared = 2, kTokens = 150, kChannels = 24;
  for (const at::ScalarType dtype : kDtypes) {
    for (const Form& form : kForms) {
      SCOPED_TRACE(std::string(form.name) + " " + c10::toString(dtype));
      const at::Tensor q = random({3, kHeads, kTokens, kChannels}, 1, dtype),
                       k = random({3, kShared, kTokens, kChannels}, 2, dtype),
                       v = random({3, kShared, kTokens, kChannels}, 3, dtype),
                       bias = random({kHeads, kTokens, kTokens}, 4, at::kFloat);
      AttentionArgs args;
      args.window = form.window;
      args.softcap = form.softcap;
      if (form.slopes) args.alibi = alibi_slopes(kHeads);
      const auto attend =
          [&](std::int64_t sample, std::int64_t from, std::int64_t queries, std::int64_t keys) {
            AttentionArgs own = args;
            own.query_offset = from;
            if (form.bias) own.bias_HTS = bias.narrow(1, from, queries).narrow(2, 0, keys);
            const auto part = [&](const at::Tensor& x, std::int64_t first, std::int64_t count) {
              return x.narrow(0, sample, 1).narrow(2, first, count);
            };
            return attention(part(q, from, queries), part(k, 0, keys), part(v, 0, keys), own);
          };
      AttentionArgs whole = args;
      if (form.bias) whole.bias_HTS = bias;
      const AttentionOut usual = attention(q, k, v, whole);

      const BatchInvariance scope;
      const AttentionOut all = attention(q, k, v, whole);

      // One by one as in generation, and a prefix as in the prefill of a prompt.
      for (const std::int64_t query : {0, 1, 17, 63, 64, 65, 149}) {
        const AttentionOut one = attend(1, query, 1, query + 1);
        EXPECT_TRUE(one.y_BHTK.equal(all.y_BHTK.narrow(0, 1, 1).narrow(2, query, 1))) << query;
        EXPECT_TRUE(one.saved.equal(all.saved.narrow(0, 1, 1).narrow(2, query, 1))) << query;
        const AttentionOut prefix = attend(2, 0, query + 1, query + 1);
        EXPECT_TRUE(prefix.y_BHTK.equal(all.y_BHTK.narrow(0, 2, 1).narrow(2, 0, query + 1)));
      }
      const double tolerance = dtype == at::kFloat ? 2e-6 : 2.0 * epsilon(dtype);  // two roundings
      EXPECT_LT(
          (all.y_BHTK.to(at::kDouble) - usual.y_BHTK.to(at::kDouble)).abs().max().item<double>(),
          tolerance * usual.y_BHTK.to(at::kDouble).abs().max().item<double>());
    }
  }
}

TEST(BatchInvariance, DocumentsOfARowAreAsAlone) {
  constexpr std::int64_t kFirst = 37, kTokens = 90;
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor q = random({1, 2, kTokens, 16}, 1, dtype),
                     k = random({1, 2, kTokens, 16}, 2, dtype),
                     v = random({1, 2, kTokens, 16}, 3, dtype);
    AttentionArgs packed;
    packed.starts_BT = at::zeros({1, kTokens}, at::kLong);
    packed.starts_BT.narrow(1, kFirst, kTokens - kFirst).fill_(kFirst);
    const BatchInvariance scope;
    const at::Tensor both = attention(q, k, v, packed).y_BHTK;

    const auto second = [&](const at::Tensor& x) { return x.narrow(2, kFirst, kTokens - kFirst); };
    EXPECT_TRUE(attention(second(q), second(k), second(v), {}).y_BHTK.equal(second(both)));
  }
}

TEST(BatchInvariance, DoesNotDependOnTheThreads) {
  const int before = at::get_num_threads();
  const at::Tensor x = random({70, 256}, 1, at::kBFloat16),
                   w = random({600, 256}, 2, at::kBFloat16);
  const BatchInvariance scope;
  at::set_num_threads(1);
  const at::Tensor one = ops::linear(x, w);
  at::set_num_threads(2);
  EXPECT_TRUE(ops::linear(x, w).equal(one));
  at::set_num_threads(before);
}

}  // namespace
}  // namespace tessera::ops
