// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Attention with windows, soft caps, ALiBi and biases, compared with the formula in float64, whose
// gradients libtorch computes.
#include <limits>
#include <string>
#include <vector>

#include "ops/support.h"

#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/attention_block.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kB = 2, kH = 4, kG = 2, kK = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Form {
  std::string name;
  AttentionArgs args;
};

std::vector<Form> forms() {
  const std::vector<double> slopes = alibi_slopes(6);
  std::vector<Form> out;
  for (const std::int64_t window : {1, 5, 64, 200}) {
    out.push_back({"window " + std::to_string(window), {.window = window}});
    out.push_back({"two-sided window " + std::to_string(window),
                   {.causal = false, .query_offset = 3, .window = window}});
  }
  out.push_back({"soft cap", {.scale = 2.0, .softcap = 1.5}});
  out.push_back({"soft cap in both directions", {.causal = false, .softcap = 0.7}});
  out.push_back({"ALiBi", {.first_head = 2, .alibi = slopes}});
  out.push_back({"all", {.window = 70, .softcap = 2.0, .alibi = slopes}});
  out.push_back({"all in both directions",
                 {.causal = false, .scale = 0.5, .window = 30, .softcap = 2.0, .alibi = slopes}});
  return out;
}

struct Text {
  at::Tensor q, k, v, dy, bias;
};
Text text(std::int64_t T, std::int64_t S, at::ScalarType dtype) {
  return {random({kB, kH, T, kK}, 1, dtype),
          random({kB, kG, S, kK}, 2, dtype),
          random({kB, kG, S, kK}, 3, dtype),
          random({kB, kH, T, kK}, 4, dtype),
          random({kH, T, S}, 5)};
}

/// The second sample has padding, which is never alone in a window: scores of -10000 have few
/// digits.
at::Tensor padding(std::int64_t S) {
  const at::Tensor mask = at::ones({kB, S}, at::kLong);
  mask[1].slice(0, 2, S, 4).zero_();
  return mask;
}

/// Score by score, as the header has it: y and the gradients of q, k, v and the bias.
std::vector<at::Tensor> reference(const Text& text, const AttentionArgs& args) {
  const auto leaf = [](const at::Tensor& x) {
    return x.to(at::kDouble).clone().set_requires_grad(true);
  };
  const at::Tensor q = leaf(text.q), k = leaf(text.k), v = leaf(text.v), bias = leaf(text.bias);
  const std::int64_t T = q.size(2), S = k.size(2);
  const double scale = args.scale != 0.0 ? args.scale : 1.0 / std::sqrt(static_cast<double>(kK));
  at::Tensor scores = at::matmul(q, k.repeat_interleave(kH / kG, 1).transpose(2, 3)) * scale;
  if (args.softcap > 0.0) scores = args.softcap * at::tanh(scores / args.softcap);
  const at::Tensor behind =
      args.query_offset + at::arange(T, at::kLong).view({T, 1}) - at::arange(S, at::kLong);
  at::Tensor seen = args.causal ? behind >= 0 : at::ones({T, S}, at::kBool);
  if (args.window > 0)
    seen = seen.logical_and(args.causal ? behind < args.window : behind.abs() <= args.window);
  if (!args.alibi.empty()) {
    scores = scores +
             at::tensor(args.alibi, at::kDouble).narrow(0, args.first_head, kH).view({kH, 1, 1}) *
                 -behind.to(at::kDouble);
  }
  if (args.mask_BS.defined())
    scores = scores + ((1.0 - args.mask_BS.to(at::kDouble)) * -10000.0).view({kB, 1, 1, S});
  if (args.bias_HTS.defined()) scores = scores + bias;
  const at::Tensor p =
      at::softmax(scores.masked_fill(seen.logical_not(), -kInfinity), 3).nan_to_num(0.0);
  const at::Tensor y = at::matmul(p, v.repeat_interleave(kH / kG, 1));
  const auto d = torch::autograd::grad({y},
                                       {q, k, v, bias},
                                       {text.dy.to(at::kDouble)},
                                       /*retain_graph=*/std::nullopt,
                                       /*create_graph=*/false,
                                       /*allow_unused=*/true);
  return {y.detach(), d[0], d[1], d[2], d[3]};
}

/// fp32: sums of products of some hundred terms, and values that are 0 in theory where only one key
/// is seen. 16 bits: probabilities and their gradients are rounded before they are multiplied, and
/// the results once more.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 5e-5 : 4 * epsilon(dtype);
}

void expect_formula(const Text& text, const AttentionArgs& args) {
  const double within = tolerance(text.q.scalar_type());
  const std::vector<at::Tensor> expected = reference(text, args);

  const AttentionOut out = attention(text.q, text.k, text.v, args);
  const AttentionGrads d = attention_backward(text.dy, text.q, text.k, text.v, out, args);

  expect_close(out.y_BHTK, doubles(expected[0]), within);
  expect_close(d.dq_BHTK, doubles(expected[1]), within);
  expect_close(d.dk_BGSK, doubles(expected[2]), within);
  expect_close(d.dv_BGSK, doubles(expected[3]), within);
  ASSERT_EQ(d.dbias_HTS.defined(), args.bias_HTS.defined());
  if (d.dbias_HTS.defined()) expect_close(d.dbias_HTS, doubles(expected[4]), within);
}

class AttentionForms : public testing::TestWithParam<at::ScalarType> {};

// Lengths at, below and beyond blocks of 64 and 128 queries and 512 keys.
TEST_P(AttentionForms, AgreeWithTheFormulaInFloat64) {
  for (const Form& form : forms()) {
    for (const std::int64_t length : {1, 17, 64, 131, 530}) {
      SCOPED_TRACE(form.name + " of " + std::to_string(length));
      expect_formula(text(length, length, GetParam()), form.args);
    }
  }
}

TEST_P(AttentionForms, WithPaddingAgreeWithTheFormulaInFloat64) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    AttentionArgs args = form.args;
    args.mask_BS = padding(131);
    expect_formula(text(131, 131, GetParam()), args);
  }
}

TEST_P(AttentionForms, WithCachedKeysAgreeWithTheFormulaInFloat64) {
  for (const Form& form : forms()) {
    for (const std::int64_t queries : {1, 5, 40}) {
      SCOPED_TRACE(form.name + " of " + std::to_string(queries));
      AttentionArgs args = form.args;
      args.query_offset = 600 - queries;
      expect_formula(text(queries, 600, GetParam()), args);
    }
  }
}

TEST_P(AttentionForms, GiveABiasItsGradient) {
  for (const bool causal : {true, false}) {
    for (const bool padded : {true, false}) {
      Text given = text(70, 70, GetParam());
      AttentionArgs args{.causal = causal, .bias_HTS = given.bias};
      if (padded) args.mask_BS = padding(70);
      expect_formula(given, args);
      args.window = 9;
      args.softcap = 1.0;
      expect_formula(given, args);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         AttentionForms,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(AttentionInForms, GivesPackedDocumentsTheBitsOfSeparateOnes) {
  constexpr std::int64_t kT = 90, kFirst = 37;
  const Text both = text(kT, kT, at::kFloat);
  std::vector<Form> all = forms();
  all.push_back({"bias", {}});
  for (Form& form : all) {
    SCOPED_TRACE(form.name);
    const bool biased = form.name == "bias";
    form.args.query_offset = 0;
    AttentionArgs packed = form.args;
    if (biased) packed.bias_HTS = both.bias;
    packed.starts_BT = at::zeros({kB, kT}, at::kLong);
    packed.starts_BT.narrow(1, kFirst, kT - kFirst).fill_(kFirst);
    const AttentionOut out = attention(both.q, both.k, both.v, packed);
    const AttentionGrads d = attention_backward(both.dy, both.q, both.k, both.v, out, packed);

    for (const auto& [begin, count] : {std::pair{std::int64_t{0}, kFirst}, {kFirst, kT - kFirst}}) {
      const auto part = [&, first = begin, tokens = count](const at::Tensor& x) {
        return x.narrow(2, first, tokens);
      };
      if (biased) form.args.bias_HTS = part(both.bias).narrow(1, begin, count);
      const AttentionOut alone = attention(part(both.q), part(both.k), part(both.v), form.args);
      const AttentionGrads expected = attention_backward(
          part(both.dy), part(both.q), part(both.k), part(both.v), alone, form.args);
      EXPECT_TRUE(same_bits(part(out.y_BHTK), alone.y_BHTK));
      EXPECT_TRUE(same_bits(part(d.dq_BHTK), expected.dq_BHTK));
      EXPECT_TRUE(same_bits(part(d.dk_BGSK), expected.dk_BGSK));
      EXPECT_TRUE(same_bits(part(d.dv_BGSK), expected.dv_BGSK));
      if (biased) {
        EXPECT_EQ(d.dbias_HTS.narrow(1, begin, count).count_nonzero().item<std::int64_t>(),
                  expected.dbias_HTS.count_nonzero().item<std::int64_t>());
        expect_close(part(d.dbias_HTS).narrow(1, begin, count), doubles(expected.dbias_HTS), 1e-6);
      }
    }
  }
}

// 0.7 of the probabilities are dropped, the same ones whether the kernel sees the window's keys or
// all keys; keys outside of the window have none.
TEST(AttentionInForms, DropsTheSameElementsWithAndWithoutAWindow) {
  const Text given = text(140, 140, at::kFloat);
  AttentionArgs wide{.dropout = {.p = 0.7, .key = 11, .sample_ids = {3, 9}}, .window = 140},
      none = wide;
  none.window = 0;
  const AttentionOut expected = attention(given.q, given.k, given.v, none),
                     out = attention(given.q, given.k, given.v, wide);
  expect_close(out.y_BHTK, doubles(expected.y_BHTK), 1e-6);
  const AttentionGrads d = attention_backward(given.dy, given.q, given.k, given.v, out, wide),
                       of_all =
                           attention_backward(given.dy, given.q, given.k, given.v, expected, none);
  expect_close(d.dq_BHTK, doubles(of_all.dq_BHTK), 2e-6);
  expect_close(d.dk_BGSK, doubles(of_all.dk_BGSK), 2e-6);
  expect_close(d.dv_BGSK, doubles(of_all.dv_BGSK), 2e-6);
}

TEST(AttentionInForms, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Text given = text(300, 300, dtype);
    std::vector<Form> all = forms();
    all.push_back({"bias", {.bias_HTS = given.bias}});
    for (const Form& form : all) {
      SCOPED_TRACE(form.name);
      const auto results = with_threads([&] {
        const AttentionOut out = attention(given.q, given.k, given.v, form.args);
        const AttentionGrads d =
            attention_backward(given.dy, given.q, given.k, given.v, out, form.args);
        std::vector<at::Tensor> bits{out.y_BHTK, out.saved, d.dq_BHTK, d.dk_BGSK, d.dv_BGSK};
        if (d.dbias_HTS.defined()) bits.push_back(d.dbias_HTS);
        return bits;
      });
      for (std::size_t run = 1; run < results.size(); ++run) {
        for (std::size_t i = 0; i < results[0].size(); ++i)
          EXPECT_TRUE(same_bits(results[0][i], results[run][i])) << i;
      }
    }
  }
}

// For blocks whose keys are outside of the windows of some queries, or of all.
TEST(AttentionInForms, IsZeroForAQueryThatSeesNoKey) {
  const Text given = text(20, 10, at::kFloat);
  const AttentionArgs args{.query_offset = 4, .window = 8};
  const AttentionOut out = attention(given.q, given.k, given.v, args);

  const at::Tensor unseen = out.y_BHTK.slice(2, 13);
  EXPECT_TRUE((unseen == 0).all().item<bool>());
  EXPECT_TRUE((out.saved.slice(2, 13) == -kInfinity).all().item<bool>());
  EXPECT_TRUE(out.saved.slice(2, 0, 13).isfinite().all().item<bool>());
}

TEST(AlibiSlopes, AreThoseOfThePublishedFormula) {
  const std::vector<double> eight = alibi_slopes(8), twelve = alibi_slopes(12);
  for (std::size_t head = 0; head < 8; ++head) {
    EXPECT_NEAR(eight[head], std::exp2(-1.0 - static_cast<double>(head)), 1e-12);
    EXPECT_NEAR(twelve[head], eight[head], 1e-12);
  }
  // BLOOM's for 12 heads.
  const double rest[] = {.7071068, .3535534, .1767767, .08838835};
  ASSERT_EQ(twelve.size(), 12U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(twelve[8 + i], rest[i], 1e-7);
  EXPECT_THROW(alibi_slopes(0), Error);
}

TEST(AttentionInForms, RefusesWrongSizes) {
  const Text given = text(6, 6, at::kFloat);
  const auto refuses = [&](const AttentionArgs& args) {
    EXPECT_THROW(attention(given.q, given.k, given.v, args), Error);
  };
  refuses({.window = -1});
  refuses({.softcap = -1.0});
  refuses({.first_head = 1, .alibi = alibi_slopes(4)});
  refuses({.bias_HTS = given.bias.narrow(0, 0, 2)});
  refuses({.bias_HTS = given.bias.to(at::kDouble)});
}

}  // namespace
}  // namespace tessera::ops
