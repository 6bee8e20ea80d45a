// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <array>

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/cpu/isa.h"

namespace tessera::ops {
namespace {

// fp32: softmax and two products of at most 64 terms. 16 bits: inputs are exact, the result is
// rounded once, and its gradient sees the rounded result.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 4e-6 : 2 * epsilon(dtype);
}

struct Problem {
  at::Tensor q, k, v, dy;
  AttentionArgs args;
};

Problem problem(std::int64_t B,
                std::int64_t H,
                std::int64_t T,
                std::int64_t S,
                std::int64_t K,
                at::ScalarType dtype) {
  return {random({B, H, T, K}, 1, dtype),
          random({B, H, S, K}, 2, dtype),
          random({B, H, S, K}, 3, dtype),
          random({B, H, T, K}, 4, dtype),
          {}};
}

/// The same with `shared` heads of keys and values.
Problem grouped(Problem p, std::int64_t shared) {
  p.k = p.k.narrow(1, 0, shared);
  p.v = p.v.narrow(1, 0, shared);
  return p;
}
std::int64_t group(const Problem& p) {
  return p.q.size(1) / p.k.size(1);
}

struct Reference {
  std::vector<double> y, dq, dk, dv;
};

/// One (batch, head) of attention and its gradients in float64.
class Head {
 public:
  Head(const Problem& p, std::int64_t b, std::int64_t h)
      : T_(p.q.size(2)),
        S_(p.k.size(2)),
        K_(p.q.size(3)),
        q_(doubles(p.q[b][h])),
        k_(doubles(p.k[b][h / group(p)])),
        v_(doubles(p.v[b][h / group(p)])),
        dy_(doubles(p.dy[b][h])) {
    const double scale =
        p.args.scale != 0.0 ? p.args.scale : 1.0 / std::sqrt(static_cast<double>(K_));
    const std::vector<double> mask =
        p.args.mask_BS.defined() ? doubles(p.args.mask_BS[b]) : std::vector<double>(S_, 1.0);
    for (std::size_t t = 0; t < T_; ++t)
      row(t, scale, mask, p, b, h);
  }
  std::vector<double> y, dq, dk, dv;

 private:
  /// 0 where dropped, 1/(1-p) where kept.
  double kept(const Problem& p, std::int64_t b, std::uint64_t element) const {
    if (!p.args.dropout.active()) return 1.0;
    const auto word =
        Philox{p.args.dropout.key}(element / 4, p.args.dropout.sample_ids[b])[element % 4];
    return uniform_float(word) < p.args.dropout.p ? 0.0 : 1.0 / (1.0 - p.args.dropout.p);
  }

  void row(std::size_t t,
           double scale,
           const std::vector<double>& mask,
           const Problem& p,
           std::int64_t b,
           std::int64_t h) {
    if (y.empty()) {
      y.resize(T_ * K_), dq.resize(T_ * K_), dk.resize(S_ * K_), dv.resize(S_ * K_);
    }
    const std::size_t visible =
        p.args.causal ? std::min<std::size_t>(S_, t + p.args.query_offset + 1) : S_;
    std::vector<double> prob(visible), drop(visible), dprob(visible);
    double max = -1e300, sum = 0.0, dot = 0.0;
    for (std::size_t s = 0; s < visible; ++s) {
      for (std::size_t c = 0; c < K_; ++c)
        prob[s] += q_[t * K_ + c] * k_[s * K_ + c] * scale;
      prob[s] += (1.0 - mask[s]) * -10000.0;
      max = std::max(max, prob[s]);
    }
    for (double& value : prob)
      sum += value = std::exp(value - max);
    for (std::size_t s = 0; s < visible; ++s) {
      prob[s] /= sum;
      drop[s] = kept(p, b, (static_cast<std::uint64_t>(h) * T_ + t) * S_ + s);
      for (std::size_t c = 0; c < K_; ++c) {
        y[t * K_ + c] += prob[s] * drop[s] * v_[s * K_ + c];
        dv[s * K_ + c] += prob[s] * drop[s] * dy_[t * K_ + c];
        dprob[s] += drop[s] * dy_[t * K_ + c] * v_[s * K_ + c];
      }
      dot += prob[s] * dprob[s];
    }
    for (std::size_t s = 0; s < visible; ++s) {
      const double dscore = prob[s] * (dprob[s] - dot) * scale;
      for (std::size_t c = 0; c < K_; ++c) {
        dq[t * K_ + c] += dscore * k_[s * K_ + c];
        dk[s * K_ + c] += dscore * q_[t * K_ + c];
      }
    }
  }

  std::size_t T_, S_, K_;
  std::vector<double> q_, k_, v_, dy_;
};

/// Appends `of_head` to `sums`, or adds it to the last head in them if it is not the `first` that
/// shares that one.
void add_shared(std::vector<double>& sums, const std::vector<double>& of_head, bool first) {
  if (first) sums.resize(sums.size() + of_head.size());
  const std::size_t begin = sums.size() - of_head.size();
  for (std::size_t i = 0; i < of_head.size(); ++i)
    sums[begin + i] += of_head[i];
}

Reference reference(const Problem& p) {
  Reference out;
  for (std::int64_t b = 0; b < p.q.size(0); ++b) {
    for (std::int64_t h = 0; h < p.q.size(1); ++h) {
      const Head head(p, b, h);
      out.y.insert(out.y.end(), head.y.begin(), head.y.end());
      out.dq.insert(out.dq.end(), head.dq.begin(), head.dq.end());
      add_shared(out.dk, head.dk, h % group(p) == 0);
      add_shared(out.dv, head.dv, h % group(p) == 0);
    }
  }
  return out;
}

void expect_agreement(const Problem& p, double least_bound = 0.0) {
  const Reference expected = reference(p);
  const double bound = std::max(tolerance(p.q.scalar_type()), least_bound);

  const AttentionOut out = attention(p.q, p.k, p.v, p.args);
  const AttentionGrads grads = attention_backward(p.dy, p.q, p.k, p.v, out, p.args);

  EXPECT_EQ(out.y_BHTK.scalar_type(), p.q.scalar_type());
  EXPECT_EQ(out.y_BHTK.sizes(), p.q.sizes());
  expect_close(out.y_BHTK, expected.y, bound);
  expect_close(grads.dq_BHTK, expected.dq, bound);
  expect_close(grads.dk_BGSK, expected.dk, bound);
  expect_close(grads.dv_BGSK, expected.dv, bound);
}

class AttentionDtypes : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AttentionDtypes, CausalAgreesWithFloat64) {
  for (const std::int64_t tokens : {1, 2, 17, 64}) {
    SCOPED_TRACE(tokens);
    expect_agreement(problem(2, 3, tokens, tokens, 16, GetParam()));
  }
}

TEST_P(AttentionDtypes, UnmaskedAgreesWithFloat64) {
  Problem p = problem(2, 2, 9, 21, 8, GetParam());
  p.args.causal = false;
  p.args.scale = 0.3;

  expect_agreement(p);
}

TEST_P(AttentionDtypes, QueriesBehindACacheSeeWhatStandsBeforeThem) {
  for (const auto& [T, offset] :
       {std::pair<std::int64_t, std::int64_t>{1, 12}, {5, 8}, {13, 0}, {1, 0}}) {
    SCOPED_TRACE(std::to_string(T) + " queries from " + std::to_string(offset));
    Problem p = problem(1, 2, T, offset + T, 16, GetParam());
    p.args.query_offset = offset;
    expect_agreement(p);
  }
}

TEST_P(AttentionDtypes, OneQueryBehindALongCacheAgreesWithFloat64) {
  for (const auto& [S, K] : {std::pair<std::int64_t, std::int64_t>{700, 64}, {33, 5}, {16, 80}}) {
    SCOPED_TRACE(std::to_string(S) + " keys of " + std::to_string(K));
    Problem p = problem(2, 3, 1, S, K, GetParam());
    p.args.query_offset = S - 1;
    expect_agreement(p);
    // With free room after the text, as a cache stores them.
    const at::Tensor room = at::zeros({2, 3, S + 9, K}, GetParam());
    const at::Tensor keys = room.narrow(2, 0, S), values = room.clone().narrow(2, 0, S);
    keys.copy_(p.k);
    values.copy_(p.v);
    const AttentionOut dense = attention(p.q, p.k, p.v, p.args);
    const AttentionOut cached = attention(p.q, keys, values, p.args);
    if (isa() == Isa::Portable) {  // a product of the library's, which looks at strides
      expect_close(cached.y_BHTK, doubles(dense.y_BHTK), tolerance(GetParam()));
      continue;
    }
    EXPECT_TRUE(same_bits(dense.y_BHTK, cached.y_BHTK));
    EXPECT_TRUE(same_bits(dense.saved, cached.saved));
  }
}

TEST_P(AttentionDtypes, MoreTokensThanABlockHoldsAgreeWithFloat64) {
  // Blocks are of 64 queries (of 128 with matrix tiles) and 512 keys: this tests whole blocks,
  // partial blocks, and queries that see no key of a block.
  expect_agreement(problem(1, 2, 300, 300, 8, GetParam()));
  for (const auto& [T, S, offset] : {std::array<std::int64_t, 3>{200, 700, 500}, {600, 600, 0}}) {
    SCOPED_TRACE(T);
    Problem p = problem(1, 1, T, S, 8, GetParam());
    p.args.query_offset = offset;
    expect_agreement(p);
  }
  Problem open = problem(1, 1, 130, 1030, 8, GetParam());
  open.args.causal = false;
  expect_agreement(open);
}

TEST_P(AttentionDtypes, HeadsOfAnyWidthAgreeWithFloat64) {
  // Kernels take 16 and 32 channels at a time.
  for (const std::int64_t channels : {5, 40, 64, 80}) {
    SCOPED_TRACE(channels);
    expect_agreement(problem(1, 2, 70, 70, channels, GetParam()));
  }
}

TEST_P(AttentionDtypes, GiveTheSameBitsOnAnyNumberOfThreads) {
  Problem masked = problem(2, 3, 150, 150, 16, GetParam());
  masked.args.mask_BS = at::ones({2, 150});
  masked.args.mask_BS[1].slice(0, 100).zero_();
  masked.args.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9}};
  // The last ones have one unit of work, forward and backward, and backward alone.
  for (const Problem& p : {problem(2, 3, 150, 150, 16, GetParam()),
                           masked,
                           problem(1, 1, 60, 60, 64, GetParam()),
                           grouped(problem(1, 4, 600, 600, 64, GetParam()), 1)}) {
    const auto all = with_threads([&] {
      const AttentionOut out = attention(p.q, p.k, p.v, p.args);
      const AttentionGrads d = attention_backward(p.dy, p.q, p.k, p.v, out, p.args);
      return at::cat({out.y_BHTK.reshape({-1}),
                      d.dq_BHTK.reshape({-1}),
                      d.dk_BGSK.reshape({-1}),
                      d.dv_BGSK.reshape({-1})});
    });
    for (const at::Tensor& one : all)
      EXPECT_TRUE(same_bits(all[0], one)) << p.q.sizes();
  }
}

TEST_P(AttentionDtypes, PaddingAndDropoutAgreeWithFloat64) {
  Problem p = problem(2, 3, 11, 11, 8, GetParam());
  p.args.mask_BS = at::ones({2, 11});
  p.args.mask_BS[1].slice(0, 6, 11).zero_();
  expect_agreement(p);

  p.args.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9}};
  expect_agreement(p);
}

TEST_P(AttentionDtypes, ASampleOfPaddingAloneAgreesWithFloat64) {
  Problem p = problem(2, 2, 20, 20, 8, GetParam());
  p.args.mask_BS = at::ones({2, 20});
  p.args.mask_BS[1].zero_();

  // Its scores are near -10000, where fp32 has steps of 1/1024.
  expect_agreement(p, 0x1p-10);
}

TEST_P(AttentionDtypes, PaddingAndDropoutOfManyBlocksAgreeWithFloat64) {
  // Padding at the end and in the middle of a block.
  Problem p = grouped(problem(3, 2, 600, 600, 8, GetParam()), 1);
  p.args.mask_BS = at::ones({3, 600});
  p.args.mask_BS[0].slice(0, 530).zero_();
  p.args.mask_BS[1].slice(0, 100, 140).zero_();
  p.args.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9, 11}};
  expect_agreement(p);
  // The memory kept for the backward does not grow with queries times keys.
  EXPECT_EQ(attention(p.q, p.k, p.v, p.args).saved.sizes(), (std::vector<std::int64_t>{3, 2, 600}));
  Problem open = problem(1, 2, 130, 1030, 8, GetParam());
  open.args.causal = false;
  open.args.dropout = {.p = 0.1, .key = 98, .sample_ids = {5}};
  expect_agreement(open);
}

TEST_P(AttentionDtypes, HeadsThatShareKeysAndValuesAgreeWithFloat64) {
  for (const std::int64_t shared : {1, 2, 3}) {
    SCOPED_TRACE(shared);
    expect_agreement(grouped(problem(2, 6, 33, 33, 16, GetParam()), shared));
    Problem decoding = grouped(problem(2, 6, 1, 40, 16, GetParam()), shared);
    decoding.args.query_offset = 39;
    expect_agreement(decoding);
  }
  expect_agreement(grouped(problem(1, 4, 300, 300, 8, GetParam()), 2));
  Problem later = grouped(problem(1, 4, 200, 700, 8, GetParam()), 2);
  later.args.query_offset = 500;
  expect_agreement(later);
  Problem masked = grouped(problem(2, 6, 11, 11, 8, GetParam()), 2);
  masked.args.mask_BS = at::ones({2, 11});
  masked.args.mask_BS[1].slice(0, 6, 11).zero_();
  masked.args.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9}};
  expect_agreement(masked);
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         AttentionDtypes,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(Attention, DecodingStepByStepAgreesWithTheWholeForward) {
  const Problem p = problem(1, 2, 10, 10, 16, at::kFloat);
  const at::Tensor whole = attention(p.q, p.k, p.v, p.args).y_BHTK;

  for (std::int64_t t = 0; t < 10; ++t) {
    AttentionArgs args;
    args.query_offset = t;
    const at::Tensor one =
        attention(p.q.slice(2, t, t + 1), p.k.slice(2, 0, t + 1), p.v.slice(2, 0, t + 1), args)
            .y_BHTK;
    expect_close(one, doubles(whole.slice(2, t, t + 1)), 1e-6);
  }
}

TEST(Attention, TakesStridedInputs) {
  const at::Tensor qkv = random({2, 7, 3, 4, 8}, 1);
  const auto part = [&](std::int64_t i) { return qkv.select(2, i).transpose(1, 2); };

  const AttentionOut strided = attention(part(0), part(1), part(2), {});
  const AttentionOut plain =
      attention(part(0).contiguous(), part(1).contiguous(), part(2).contiguous(), {});

  expect_close(strided.y_BHTK, doubles(plain.y_BHTK), 1e-6);
}

TEST(Attention, AMaskOfOnesChangesNothing) {
  Problem p = problem(2, 2, 9, 9, 8, at::kFloat);
  const at::Tensor flash = attention(p.q, p.k, p.v, p.args).y_BHTK;

  p.args.mask_BS = at::ones({2, 9});

  expect_close(attention(p.q, p.k, p.v, p.args).y_BHTK, doubles(flash), 1e-6);
}

TEST(Attention, NotANumberSpreadsToTheResult) {
  Problem p = problem(1, 1, 4, 4, 8, at::kFloat);
  p.k[0][0][0][0].fill_(std::nanf(""));
  p.args.mask_BS = at::ones({1, 4});

  EXPECT_TRUE(at::isnan(attention(p.q, p.k, p.v, p.args).y_BHTK).all().item<bool>());
}

TEST(Attention, GradientsThatDoNotFitIntoFp16AreInfinite) {
  Problem p = problem(1, 1, 4, 4, 8, at::kHalf);
  // The first value counts once in the first query and some more in the others.
  p.dy.fill_(60000.0);
  for (const bool masked : {false, true}) {
    if (masked) p.args.mask_BS = at::ones({1, 4});

    const AttentionOut out = attention(p.q, p.k, p.v, p.args);
    const AttentionGrads grads = attention_backward(p.dy, p.q, p.k, p.v, out, p.args);

    EXPECT_TRUE(at::isfinite(out.y_BHTK).all().item<bool>());
    EXPECT_TRUE(at::isinf(grads.dv_BGSK[0][0][0]).all().item<bool>());
  }
}

TEST(Attention, ScoresBeyondFp16AreNotCut) {
  // Products of q and k reach 8 * 200 * 200 = 320000; the first key of the two wins, by its sign.
  const at::Tensor q = at::full({1, 1, 1, 8}, 200.0, at::kHalf);
  const at::Tensor k = at::cat({q, -q}, 2), v = random({1, 1, 2, 8}, 3, at::kHalf);
  for (const bool masked : {false, true}) {
    AttentionArgs args;
    args.causal = false;
    if (masked) args.mask_BS = at::ones({1, 2});

    EXPECT_TRUE(same_bits(attention(q, k, v, args).y_BHTK, v.slice(2, 0, 1).contiguous()));
  }
}

TEST(Attention, WorksOnMeta) {
  const at::Tensor q =
      at::empty({2, 3, 5, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  for (const double p : {0.0, 0.5}) {
    AttentionArgs args;
    args.dropout = {.p = p, .sample_ids = {0, 1}};

    const AttentionOut out = attention(q, q, q, args);
    const AttentionGrads grads = attention_backward(q, q, q, q, out, args);

    EXPECT_TRUE(out.y_BHTK.is_meta());
    EXPECT_EQ(out.y_BHTK.sizes(), q.sizes());
    EXPECT_EQ(out.saved.scalar_type(), at::kFloat);
    EXPECT_EQ(out.saved.dim(), 3);
    EXPECT_EQ(grads.dk_BGSK.scalar_type(), at::kBFloat16);
  }
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const Problem p = problem(1, 2, 4, 4, 8, at::kFloat);

  EXPECT_THROW(attention(p.q, random({1, 2, 4, 16}, 1), p.v, {}), Error);
  const at::Tensor three = random({1, 3, 4, 8}, 1);  // does not divide two heads
  EXPECT_THROW(attention(p.q, three, three, {}), Error);
  AttentionArgs masked;
  masked.mask_BS = at::ones({1, 5});
  EXPECT_THROW(attention(p.q, p.k, p.v, masked), Error);
  EXPECT_THROW(attention(p.q, p.k.slice(2, 0, 0), p.v.slice(2, 0, 0), {}), Error);
  AttentionArgs before, inverted;
  before.query_offset = -1;
  inverted.scale = -1.0;
  EXPECT_THROW(attention(p.q, p.k, p.v, before), Error);
  EXPECT_THROW(attention(p.q, p.k, p.v, inverted), Error);
}

TEST(Attention, RefusesDropoutThatDoesNotFit) {
  const Problem p = problem(2, 2, 4, 4, 8, at::kFloat);
  const auto with = [&](double probability, std::vector<std::int64_t> samples) {
    AttentionArgs args;
    args.dropout = {.p = probability, .key = 1, .sample_ids = std::move(samples)};
    return args;
  };
  EXPECT_THROW(attention(p.q, p.k, p.v, with(0.1, {5})), Error);
  EXPECT_THROW(attention(p.q, p.k, p.v, with(0.1, {5, 6, 7})), Error);
  EXPECT_THROW(attention(p.q, p.k, p.v, with(1.5, {5, 6})), Error);
  // The place of other tokens than these.
  for (const std::int64_t keys : {3, 5}) {
    AttentionArgs args = with(0.1, {5, 6});
    args.place = {.tokens = 8, .queries = {{0, 4}}, .keys = {{0, keys}}};
    EXPECT_THROW(attention(p.q, p.k, p.v, args), Error);
  }
}

TEST(Attention, TakesRowsThatAreOneAndTheSame) {
  Problem p = problem(1, 2, 70, 70, 8, at::kFloat);
  p.q = p.q.slice(2, 0, 1).expand({1, 2, 70, 8});
  p.dy = p.dy.slice(2, 0, 1).expand({1, 2, 70, 8});

  expect_agreement(p);
}

}  // namespace
}  // namespace tessera::ops
