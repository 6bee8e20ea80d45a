// SPDX-License-Identifier: Apache-2.0
// Kernels in every variant that this CPU supports, compared with float64: operations only run the
// best one.
#include "ops/variants.h"

#include "ops/support.h"

#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

/// Relative error of e^x: its argument is rounded once, and is at most 32 in size here.
constexpr double kExponential = 32 * 0x1p-24 + 4 * 0x1p-23;
/// Sums of at most 83 terms in 16 lanes.
constexpr double kSums = 2e-6;
constexpr std::int64_t kRows = 5, kKeys = 83;

/// A case of one dtype: calls check(kernels, index of the dtype) for every variant.
class BodyDtypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  template <class Check>
  void on_every_body(Check check) const {
    const cpu::Float index = cpu::float_of(at::empty({0}, GetParam()));
    for (const auto& [name, kernels] : variants()) {
      SCOPED_TRACE(name);
      check(*kernels, index);
    }
  }
  at::Tensor room() const { return at::full({kRows, kKeys}, std::nanf(""), GetParam()); }
  /// For results in [0, 1] that are rounded to the dtype, fp32 too.
  double tolerance() const { return kExponential + epsilon(GetParam()); }
};

/// True if row `row` sees key `key` of a block.
bool sees(std::int64_t first_visible, std::int64_t row, std::int64_t key) {
  return key < first_visible + row;
}

/// Scores of one block of keys, as numbers: -inf where a row does not see the key.
at::Tensor seen_scores(const at::Tensor& scores, std::int64_t first_visible, double scale) {
  at::Tensor out = scores.to(at::kDouble) * scale;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t key = 0; key < kKeys; ++key) {
      if (!sees(first_visible, row, key)) out[row][key] = -std::numeric_limits<double>::infinity();
    }
  }
  return out;
}

TEST_P(BodyDtypes, SoftmaxOverTwoBlocksOfKeysAgreesWithFloat64) {
  constexpr float kScale = 0.3F;
  const at::Tensor first = random({kRows, kKeys}, 1) * 30, second = random({kRows, kKeys}, 2) * 30;
  // All keys of the first block and some of the second; some of the first and, for most rows, none
  // of the second.
  for (const auto& [in_first, in_second] :
       {std::pair<std::int64_t, std::int64_t>{kKeys, 40}, {16, -3}}) {
    const double scale = kScale;
    const at::Tensor a = seen_scores(first, in_first, scale),
                     b = seen_scores(second, in_second, scale);
    const at::Tensor max_a = std::get<0>(a.max(1)), max = at::maximum(max_a, std::get<0>(b.max(1)));
    const at::Tensor sum =
        at::exp(a - max.unsqueeze(1)).sum(1) + at::exp(b - max.unsqueeze(1)).sum(1);
    on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
      const at::Tensor p_a = room(), p_b = room(), shrink = at::empty({kRows});
      const at::Tensor top = at::full({kRows}, -std::numeric_limits<float>::infinity()),
                       total = at::zeros({kRows});
      cpu::AttendRows rows{.scores = first.data_ptr<float>(),
                           .probabilities = p_a.data_ptr(),
                           .max = top.data_ptr<float>(),
                           .sum = total.data_ptr<float>(),
                           .shrink = shrink.data_ptr<float>(),
                           .keys = kKeys,
                           .first_visible = in_first,
                           .form = {.scale = kScale}};

      k.attend[index](rows, 0, kRows);
      expect_close(p_a, doubles(at::exp(a - max_a.unsqueeze(1))), tolerance());
      rows.scores = second.data_ptr<float>();
      rows.probabilities = p_b.data_ptr();
      rows.first_visible = in_second;
      k.attend[index](rows, 0, 2);  // rows may come in any number of calls
      k.attend[index](rows, 2, kRows);

      expect_close(p_b, doubles(at::exp(b - max.unsqueeze(1))), tolerance());
      expect_close(shrink, doubles(at::exp(max_a - max)), kExponential);
      expect_close(top, doubles(max), epsilon(at::kFloat));
      expect_close(total, doubles(sum), kExponential + kSums);
    });
  }
}

TEST_P(BodyDtypes, SoftmaxGradientsOfABlockOfKeysAgreeWithFloat64) {
  constexpr float kScale = 0.3F;
  const at::Tensor scores = random({kRows, kKeys}, 1) * 30, dp = random({kRows, kKeys}, 2),
                   mean = random({kRows}, 3);
  for (const std::int64_t first_visible : {kKeys, std::int64_t{16}, std::int64_t{-2}}) {
    const at::Tensor seen = seen_scores(scores, first_visible, static_cast<double>(kScale));
    // Log-sums of rows that see nothing here: they have seen keys of another block.
    const at::Tensor log_sum =
        at::logaddexp(at::logsumexp(seen, 1), at::zeros({kRows}, at::kDouble)).to(at::kFloat);
    const at::Tensor p = at::exp(seen - log_sum.to(at::kDouble).unsqueeze(1));
    const at::Tensor ds =
        p * (dp.to(at::kDouble) - mean.to(at::kDouble).unsqueeze(1)) * static_cast<double>(kScale);
    on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
      const at::Tensor probabilities = room(), dscores = room();

      k.attend_grad[index]({.scores = scores.data_ptr<float>(),
                            .dprobabilities = dp.const_data_ptr<float>(),
                            .probabilities = probabilities.data_ptr(),
                            .dscores = dscores.data_ptr(),
                            .log_sum = log_sum.const_data_ptr<float>(),
                            .mean = mean.const_data_ptr<float>(),
                            .keys = kKeys,
                            .first_visible = first_visible,
                            .form = {.scale = kScale}},
                           0,
                           kRows);

      expect_close(probabilities, doubles(p), tolerance());
      expect_close(dscores, doubles(ds), 2 * tolerance());
    });
  }
}

/// Dropout's factors: most of them 1.25, some 0.
at::Tensor kept_factors() {
  return at::where(random({kRows, kKeys}, 9).gt(-0.6), at::scalar_tensor(1.25F), 0.0F)
      .to(at::kFloat)
      .contiguous();
}

TEST_P(BodyDtypes, SoftmaxWithABiasAndDropoutAgreesWithFloat64) {
  constexpr float kScale = 0.3F;
  const at::Tensor scores = random({kRows, kKeys}, 1) * 30, bias = random({kKeys}, 2) * 5,
                   kept = kept_factors(), dp = random({kRows, kKeys}, 3), mean = random({kRows}, 4);
  const at::Tensor biased =
      scores.to(at::kDouble) * static_cast<double>(kScale) + bias.to(at::kDouble);
  for (const std::int64_t first_visible : {kKeys, std::int64_t{16}}) {
    const at::Tensor seen = seen_scores(biased, first_visible, 1.0), max = std::get<0>(seen.max(1));
    const at::Tensor e = at::exp(seen - max.unsqueeze(1)),
                     log_sum = at::logsumexp(seen, 1).to(at::kFloat),
                     p = at::exp(seen - log_sum.to(at::kDouble).unsqueeze(1));
    const at::Tensor ds = p * (dp.to(at::kDouble) * kept - mean.to(at::kDouble).unsqueeze(1)) *
                          static_cast<double>(kScale);
    on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
      // The kernels overwrite biased scores; of fp32 the results may take their place.
      at::Tensor mine = scores.clone(), into = GetParam() == at::kFloat ? mine : room();
      const at::Tensor shrink = at::empty({kRows}), total = at::zeros({kRows}),
                       top = at::full({kRows}, -std::numeric_limits<float>::infinity());
      k.attend[index]({.scores = mine.data_ptr<float>(),
                       .probabilities = into.data_ptr(),
                       .max = top.data_ptr<float>(),
                       .sum = total.data_ptr<float>(),
                       .shrink = shrink.data_ptr<float>(),
                       .keys = kKeys,
                       .first_visible = first_visible,
                       .form = {.scale = kScale, .of_keys = bias.const_data_ptr<float>()},
                       .kept = kept.const_data_ptr<float>()},
                      0,
                      kRows);
      expect_close(into, doubles(e * kept), tolerance());
      expect_close(total, doubles(e.sum(1)), kExponential + kSums);

      mine = scores.clone();
      into = GetParam() == at::kFloat ? mine : room();
      const at::Tensor of_probabilities = dp.clone();
      const at::Tensor slopes = GetParam() == at::kFloat ? of_probabilities : room();
      k.attend_grad[index]({.scores = mine.data_ptr<float>(),
                            .dprobabilities = of_probabilities.const_data_ptr<float>(),
                            .probabilities = into.data_ptr(),
                            .dscores = slopes.data_ptr(),
                            .log_sum = log_sum.const_data_ptr<float>(),
                            .mean = mean.const_data_ptr<float>(),
                            .keys = kKeys,
                            .first_visible = first_visible,
                            .form = {.scale = kScale, .of_keys = bias.const_data_ptr<float>()},
                            .kept = kept.const_data_ptr<float>()},
                           0,
                           kRows);
      expect_close(into, doubles(p * kept), tolerance());
      expect_close(slopes, doubles(ds), 2 * tolerance());
    });
  }
}

// A soft cap, biases of keys and of pairs, ALiBi and a window together, and with each left out.
TEST_P(BodyDtypes, SoftmaxOfScoresOfEveryFormAgreesWithFloat64) {
  constexpr float kScale = 0.3F, kCap = 4.0F, kSlope = 0.25F;
  constexpr std::int64_t kDistance = -30, kVisible = 70, kBegin = 5, kGap = 3;
  const at::Tensor scores = random({kRows, kKeys}, 1) * 30, of_keys = random({kKeys}, 2) * 5,
                   pairs = random({kRows, kKeys + kGap}, 3) * 2, dp = random({kRows, kKeys}, 4),
                   mean = random({kRows}, 5);
  const at::Tensor key = at::arange(kKeys, at::kDouble),
                   row = at::arange(kRows, at::kDouble).view({kRows, 1});
  const at::Tensor unseen = (key >= kVisible + row).logical_or(key < kBegin + row);
  for (const int left_out : {0, 1, 2, 3, 4}) {
    cpu::ScoreForm form{.scale = kScale};
    at::Tensor formed = scores.to(at::kDouble) * static_cast<double>(kScale),
               slope_of_cap = at::ones_like(formed);
    if (left_out != 1) {
      form.cap = kCap;
      const at::Tensor share = (formed / static_cast<double>(kCap)).tanh();
      formed = share * static_cast<double>(kCap);
      slope_of_cap = 1.0 - share.square();
    }
    if (left_out != 2) {
      form.of_keys = of_keys.const_data_ptr<float>();
      formed = formed + of_keys;
    }
    if (left_out != 3) {
      form.of_pairs = pairs.const_data_ptr<float>();
      form.pair_stride = kKeys + kGap;
      formed = formed + pairs.narrow(1, 0, kKeys);
    }
    if (left_out != 4) {
      form.slope = kSlope;
      form.distance = kDistance;
      formed = formed + static_cast<double>(kSlope) * (key - row + kDistance);
    }
    formed = formed.masked_fill(unseen, -std::numeric_limits<double>::infinity());
    const at::Tensor max = std::get<0>(formed.max(1)), e = at::exp(formed - max.unsqueeze(1)),
                     log_sum = at::logsumexp(formed, 1).to(at::kFloat),
                     p = at::exp(formed - log_sum.to(at::kDouble).unsqueeze(1));
    const at::Tensor dformed = p * (dp.to(at::kDouble) - mean.to(at::kDouble).unsqueeze(1));
    on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
      at::Tensor mine = scores.clone(), into = GetParam() == at::kFloat ? mine : room();
      const at::Tensor shrink = at::empty({kRows}), total = at::zeros({kRows}),
                       top = at::full({kRows}, -std::numeric_limits<float>::infinity());
      k.attend[index]({.scores = mine.data_ptr<float>(),
                       .probabilities = into.data_ptr(),
                       .max = top.data_ptr<float>(),
                       .sum = total.data_ptr<float>(),
                       .shrink = shrink.data_ptr<float>(),
                       .keys = kKeys,
                       .first_visible = kVisible,
                       .first_begin = kBegin,
                       .form = form},
                      0,
                      kRows);
      expect_close(into, doubles(e), tolerance());
      expect_close(total, doubles(e.sum(1)), kExponential + kSums);

      mine = scores.clone();
      into = GetParam() == at::kFloat ? mine : room();
      const at::Tensor of_probabilities = dp.clone(), dpairs = pairs.clone(),
                       cap_slopes = at::empty({kKeys});
      const at::Tensor slopes = GetParam() == at::kFloat ? of_probabilities : room();
      k.attend_grad[index]({.scores = mine.data_ptr<float>(),
                            .dprobabilities = of_probabilities.const_data_ptr<float>(),
                            .probabilities = into.data_ptr(),
                            .dscores = slopes.data_ptr(),
                            .log_sum = log_sum.const_data_ptr<float>(),
                            .mean = mean.const_data_ptr<float>(),
                            .keys = kKeys,
                            .first_visible = kVisible,
                            .first_begin = kBegin,
                            .form = form,
                            .cap_slopes = cap_slopes.data_ptr<float>(),
                            .dpairs = left_out == 3 ? nullptr : dpairs.data_ptr<float>(),
                            .dpair_stride = kKeys + kGap},
                           0,
                           kRows);
      expect_close(into, doubles(p), tolerance());
      expect_close(
          slopes, doubles(dformed * slope_of_cap * static_cast<double>(kScale)), 2 * tolerance());
      // The block is added to what was there; beyond it, the values stay.
      const at::Tensor added = pairs.to(at::kDouble);
      if (left_out != 3) added.narrow(1, 0, kKeys).add_(dformed);
      expect_close(dpairs, doubles(added), 2 * kExponential);
    });
  }
}

TEST_P(BodyDtypes, WidenedRowsAreTheSameNumbers) {
  const at::Tensor x = random({kRows, kKeys + 3}, 1, GetParam());
  on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
    const at::Tensor y = at::empty({kRows, kKeys});
    k.widen_rows[index]({x.data_ptr(), kKeys + 3}, kKeys, y.data_ptr<float>(), kRows);
    EXPECT_TRUE(at::equal(y, x.narrow(1, 0, kKeys).to(at::kFloat)));
  });
}

TEST_P(BodyDtypes, ProductsOfRowsAgreeWithFloat64) {
  // Rows with gaps between them.
  const at::Tensor x = random({kRows, kKeys + 3}, 1, GetParam()),
                   y = random({kRows, kKeys + 6}, 2, GetParam());
  const std::vector<double> expected = doubles(
      (x.narrow(1, 0, kKeys).to(at::kDouble) * y.narrow(1, 0, kKeys).to(at::kDouble)).sum(1));
  on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
    const at::Tensor dots = at::full({kRows}, std::nanf(""));

    k.row_dots[index](
        {x.data_ptr(), kKeys + 3}, {y.data_ptr(), kKeys + 6}, kKeys, dots.data_ptr<float>(), kRows);

    expect_close(dots, expected, kSums);
  });
}

TEST_P(BodyDtypes, RowsAreScaledAndRoundedOnceWhereTheyBelong) {
  const at::Tensor x = random({kRows, kKeys}, 1), factors = random({kRows}, 2);
  const at::Tensor scaled = (x * factors.unsqueeze(1)).to(GetParam()), plain = x.to(GetParam());
  on_every_body([&](const cpu::Kernels& k, cpu::Float index) {
    const at::Tensor y = at::full({kRows, kKeys + 2}, 7.0, GetParam()), y_plain = room();

    k.round_rows[index](x.const_data_ptr<float>(),
                        factors.const_data_ptr<float>(),
                        kKeys,
                        {y.data_ptr(), kKeys + 2},
                        kRows);
    k.round_rows[index](
        x.const_data_ptr<float>(), nullptr, kKeys, {y_plain.data_ptr(), kKeys}, kRows);

    EXPECT_TRUE(at::equal(y.narrow(1, 0, kKeys), scaled));
    EXPECT_TRUE((y.narrow(1, kKeys, 2) == 7.0).all().item<bool>());
    EXPECT_TRUE(at::equal(y_plain, plain));
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BodyDtypes, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(EveryBody, ScalesRowsInPlaceAndLeavesThoseOfFactorOneAlone) {
  const at::Tensor x = random({kRows, kKeys}, 1), factors = random({kRows}, 2);
  factors[1] = 1.0F;
  const at::Tensor expected = x * factors.unsqueeze(1);
  for (const auto& [name, k] : variants()) {
    const at::Tensor y = x.clone();

    k->scale_rows(y.data_ptr<float>(), factors.const_data_ptr<float>(), kKeys, kRows);

    EXPECT_TRUE(same_bits(y, expected)) << name;
  }
}

TEST(EveryBody, MakesExponentialsOfRowsThatAgreeWithFloat64) {
  // Beyond one block of 1,024 terms, and no multiple of a vector.
  constexpr std::int64_t kColumns = 2071;
  const at::Tensor x = random({kRows, kColumns}, 1) * 15;
  const at::Tensor wide = x.to(at::kDouble), max = std::get<0>(wide.max(1));
  const at::Tensor expected = at::exp(wide - max.unsqueeze(1));
  for (const auto& [name, k] : variants()) {
    SCOPED_TRACE(name);
    const at::Tensor y = x.clone(), largest = at::empty({kRows}, at::kDouble),
                     sums = at::empty({kRows}, at::kDouble);

    k->exp_rows(y.data_ptr<float>(),
                kColumns,
                largest.data_ptr<double>(),
                sums.data_ptr<double>(),
                0,
                kRows);

    EXPECT_TRUE(at::equal(largest, max));
    expect_close(y, doubles(expected), kExponential);
    expect_close(sums, doubles(expected.sum(1)), kExponential + kSums);
  }
}

}  // namespace
}  // namespace tessera::ops
