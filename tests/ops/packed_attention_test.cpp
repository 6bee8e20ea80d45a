// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/packed_attention.h"

#include <vector>

#include "ops/support.h"
#include "support/attention_reference.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kB = 2, kH = 4, kT = 40, kK = 16;

// The tolerance of attention of one text; backward sees the rounded result.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 4e-6 : 4 * epsilon(dtype);
}

/// Positions at which documents of these lengths begin, one row of lengths per sample.
at::Tensor starts_of(const std::vector<std::vector<std::int64_t>>& lengths) {
  std::vector<std::int64_t> starts;
  for (const auto& sample : lengths) {
    std::int64_t begin = 0;
    for (const std::int64_t length : sample) {
      starts.insert(starts.end(), static_cast<std::size_t>(length), begin);
      begin += length;
    }
  }
  return at::tensor(starts, at::kLong).view({std::ssize(lengths), -1});
}
const std::vector<std::vector<std::int64_t>> kLengths = {{1, 17, 20, 2}, {33, 7}};

struct Text {
  at::Tensor q, k, v, dy;
  AttentionArgs args;
};
Text text(at::ScalarType dtype, std::int64_t shared = kH) {
  Text out{random({kB, kH, kT, kK}, 1, dtype),
           random({kB, shared, kT, kK}, 2, dtype),
           random({kB, shared, kT, kK}, 3, dtype),
           random({kB, kH, kT, kK}, 4, dtype),
           {}};
  out.args.starts_BT = starts_of(kLengths);
  return out;
}

/// Attention of each document alone, in float64, with the masks of the whole text.
test::AttentionReference reference(const Text& text) {
  const at::Tensor kept = text.args.dropout.active()
                              ? dropout(at::ones({kB, kH, kT, kT}), text.args.dropout)
                              : at::Tensor();
  test::AttentionReference out;
  for (at::Tensor* x : {&out.y, &out.dq, &out.dk, &out.dv})
    *x = at::zeros({kB, kH, kT, kK}, at::kDouble);
  for (std::int64_t b = 0; b < kB; ++b) {
    std::int64_t begin = 0;
    for (const std::int64_t length : kLengths[static_cast<std::size_t>(b)]) {
      const auto of = [&](const at::Tensor& x) {
        return x.narrow(0, b, 1).narrow(2, begin, length);
      };
      const auto keys = [&](const at::Tensor& x) {
        return of(x).repeat_interleave(kH / x.size(1), 1);
      };
      const at::Tensor mask = text.args.mask_BS.defined()
                                  ? text.args.mask_BS.narrow(0, b, 1).narrow(1, begin, length)
                                  : at::Tensor();
      const test::AttentionReference alone = test::attention_reference(
          of(text.q),
          keys(text.k),
          keys(text.v),
          of(text.dy),
          /*causal=*/true,
          mask,
          kept.defined() ? of(kept).narrow(3, begin, length) : at::Tensor());
      of(out.y).copy_(alone.y);
      of(out.dq).copy_(alone.dq);
      of(out.dk).copy_(alone.dk);
      of(out.dv).copy_(alone.dv);
      begin += length;
    }
  }
  const std::int64_t shared = text.k.size(1);
  for (at::Tensor* x : {&out.dk, &out.dv})
    *x = x->view({kB, shared, kH / shared, kT, kK}).sum(2);
  return out;
}

void expect_agreement(const Text& text) {
  const test::AttentionReference expected = reference(text);
  const double bound = tolerance(text.q.scalar_type());

  const AttentionOut out = attention(text.q, text.k, text.v, text.args);
  const AttentionGrads grads = attention_backward(text.dy, text.q, text.k, text.v, out, text.args);

  EXPECT_EQ(out.y_BHTK.scalar_type(), text.q.scalar_type());
  expect_close(out.y_BHTK, doubles(expected.y), bound);
  expect_close(grads.dq_BHTK, doubles(expected.dq), bound);
  expect_close(grads.dk_BGSK, doubles(expected.dk), bound);
  expect_close(grads.dv_BGSK, doubles(expected.dv), bound);
}

class PackedAttention : public testing::TestWithParam<at::ScalarType> {};

TEST_P(PackedAttention, IsThatOfEachDocumentAlone) {
  expect_agreement(text(GetParam()));
}

TEST_P(PackedAttention, OfHeadsThatShareKeysIsThatOfEachDocumentAlone) {
  expect_agreement(text(GetParam(), 2));
}

// The choice of dropped elements does not depend on where documents begin.
TEST_P(PackedAttention, KnowsPaddingAndTheDropoutOfTheWholeText) {
  Text masked = text(GetParam());
  masked.args.mask_BS = at::ones({kB, kT});
  masked.args.mask_BS[1].slice(0, 25, 33).zero_();
  expect_agreement(masked);
  masked.args.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9}};
  expect_agreement(masked);
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         PackedAttention,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(PackedAttentionOf, OneDocumentASampleIsPlainAttention) {
  Text one = text(at::kFloat);
  one.args.starts_BT = at::zeros({kB, kT}, at::kLong);
  const AttentionOut packed = attention(one.q, one.k, one.v, one.args);
  one.args.starts_BT = at::Tensor();

  EXPECT_TRUE(same_bits(packed.y_BHTK, attention(one.q, one.k, one.v, one.args).y_BHTK));
}

TEST(PackedAttentionOf, OfInvalidDocumentsIsRefused) {
  Text wrong = text(at::kFloat);
  for (const auto& [token, start] : {std::pair{0, 3}, {5, 2}, {39, 1}}) {
    wrong.args.starts_BT = starts_of(kLengths);
    wrong.args.starts_BT[0][token] = start;
    EXPECT_THROW(attention(wrong.q, wrong.k, wrong.v, wrong.args), Error) << token;
  }
  wrong.args.starts_BT = starts_of({{40}});
  EXPECT_THROW(attention(wrong.q, wrong.k, wrong.v, wrong.args), Error);
  wrong.args.starts_BT = starts_of(kLengths);
  wrong.args.query_offset = 1;
  EXPECT_THROW(attention(wrong.q, wrong.k, wrong.v, wrong.args), Error);
}

TEST(PackedAttentionOf, MetaTensorsHasTheirShapes) {
  const at::Tensor q =
      at::empty({2, 4, 40, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  AttentionArgs args;
  args.starts_BT = at::empty({2, 40}, q.options().dtype(at::kLong));

  const AttentionOut out = attention(q, q, q, args);

  EXPECT_EQ(out.y_BHTK.sizes(), q.sizes());
  EXPECT_EQ(out.saved.sizes(), at::IntArrayRef({2, 4, 40}));
  EXPECT_EQ(attention_backward(q, q, q, q, out, args).dk_BGSK.sizes(), q.sizes());
}

}  // namespace
}  // namespace tessera::ops
