// SPDX-License-Identifier: Apache-2.0
// Attention with sinks, compared with a softmax in float64 that has one more score for each head.
#include "tessera/ops/attention_sinks.h"

#include <cstdint>
#include <limits>
#include <string>

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/attention.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kB = 2, kH = 4, kG = 2, kT = 70, kK = 16;

struct Case {
  const char* name;
  std::int64_t window = 0;
  bool padded = false;
};
constexpr Case kCases[] = {{"causal"}, {"window", 5}, {"padded", 0, true}};

struct Problem {
  at::Tensor q, k, v, dy, sinks;
  AttentionArgs args;
};

Problem problem(const Case& of, at::ScalarType dtype) {
  Problem out = {random({kB, kH, kT, kK}, 1, dtype),
                 random({kB, kG, kT, kK}, 2, dtype),
                 random({kB, kG, kT, kK}, 3, dtype),
                 random({kB, kH, kT, kK}, 4, dtype),
                 random({kH}, 5, at::kFloat) * 2.0,
                 {}};
  out.args.window = of.window;
  if (!of.padded) return out;
  out.args.mask_BS = at::ones({kB, kT}, at::kLong);
  out.args.mask_BS[1].slice(0, kT - 9, kT).zero_();
  return out;
}

/// The published formula, step by step: the score of the sink is appended to those of the keys, and
/// its probability is dropped after the softmax.
at::Tensor reference(const Problem& p,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const at::Tensor& sinks) {
  at::Tensor scores = at::matmul(q, k.repeat_interleave(kH / kG, 1).transpose(2, 3)) / 4.0;
  if (p.args.mask_BS.defined())
    scores = scores + (1.0 - p.args.mask_BS.to(at::kDouble)).view({kB, 1, 1, kT}) * -10000.0;
  const at::Tensor query = at::arange(kT).view({kT, 1}), key = at::arange(kT);
  const double hidden = -std::numeric_limits<double>::infinity();
  scores = scores.masked_fill(key > query, hidden);
  if (p.args.window > 0) scores = scores.masked_fill(query - key >= p.args.window, hidden);
  const at::Tensor all =
      at::cat({scores, sinks.view({1, kH, 1, 1}).expand({kB, kH, kT, 1})}, 3).softmax(3);
  return at::matmul(all.narrow(3, 0, kT), v.repeat_interleave(kH / kG, 1));
}

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble).requires_grad_();
}

// fp32: as attention without sinks. 16 bits: the result is rounded twice.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : 4 * epsilon(dtype);
}

TEST(AttentionSinks, AgreeWithAFurtherScoreInFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& of : kCases) {
      SCOPED_TRACE(std::string(of.name) + " " + c10::toString(dtype));
      const Problem p = problem(of, dtype);
      const at::Tensor q = wide(p.q), k = wide(p.k), v = wide(p.v), sinks = wide(p.sinks);
      const at::Tensor expected = reference(p, q, k, v, sinks);
      (expected * p.dy.to(at::kDouble)).sum().backward();

      const AttentionOut out = with_sinks(attention(p.q, p.k, p.v, p.args), p.sinks);
      const AttentionGrads d = attention_backward(p.dy, p.q, p.k, p.v, out, p.args);

      expect_close(out.y_BHTK, doubles(expected.detach()), tolerance(dtype));
      expect_close(d.dq_BHTK, doubles(q.grad()), tolerance(dtype));
      expect_close(d.dk_BGSK, doubles(k.grad()), 4 * tolerance(dtype));
      expect_close(d.dv_BGSK, doubles(v.grad()), 4 * tolerance(dtype));
      // Sums over all samples and queries.
      expect_close(sinks_grad(p.dy, out, p.sinks), doubles(sinks.grad()), 40 * tolerance(dtype));
    }
  }
}

// The keys of each query's own document alone, and its sink.
TEST(AttentionSinks, AreThoseOfEachDocument) {
  Problem p = problem(kCases[0], at::kFloat);
  p.args.starts_BT = at::arange(kT).expand({kB, kT}).ge(30).to(at::kLong) * 30;

  const at::Tensor y = with_sinks(attention(p.q, p.k, p.v, p.args), p.sinks).y_BHTK;

  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 30}, {30, kT - 30}}) {
    const auto part = [first = first, count = count](const at::Tensor& x) {
      return x.narrow(2, first, count).contiguous();
    };
    EXPECT_TRUE(
        at::allclose(part(y),
                     with_sinks(attention(part(p.q), part(p.k), part(p.v), {}), p.sinks).y_BHTK,
                     1e-5,
                     1e-6));
  }
}

TEST(AttentionSinks, MustBeOneForEachHead) {
  const Problem p = problem(kCases[0], at::kFloat);
  const AttentionOut out = attention(p.q, p.k, p.v, p.args);

  EXPECT_THROW((void)with_sinks(out, p.sinks.narrow(0, 0, kH - 1)), Error);
}

}  // namespace
}  // namespace tessera::ops
