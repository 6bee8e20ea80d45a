// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <limits>

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {
namespace {

struct Reference {
  double loss = 0.0;
  std::vector<double> dlogits;
};

Reference reference(const at::Tensor& logits,
                    const std::vector<std::int64_t>& labels,
                    double smoothing) {
  const std::vector<double> x = doubles(logits);
  const std::size_t V = static_cast<std::size_t>(logits.size(1));
  Reference out{0.0, std::vector<double>(x.size())};
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] == kIgnoreLabel) continue;
    const double* xr = &x[row * V];
    const double max = *std::max_element(xr, xr + V);
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v)
      sum += std::exp(xr[v] - max);
    for (std::size_t v = 0; v < V; ++v) {
      const double target =
          smoothing / V + (static_cast<std::int64_t>(v) == labels[row] ? 1.0 - smoothing : 0.0);
      out.loss -= target * (xr[v] - max - std::log(sum));
      out.dlogits[row * V + v] = std::exp(xr[v] - max) / sum - target;
    }
  }
  return out;
}

class EntropyShapes
    : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, double>> {};

TEST_P(EntropyShapes, LossAndGradientAgreeWithFloat64) {
  const auto [N, V, smoothing] = GetParam();
  const at::Tensor logits = random({N, V}, 1) * 10;
  std::vector<std::int64_t> labels;
  for (std::int64_t row = 0; row < N; ++row)
    labels.push_back(row % 3 == 2 ? kIgnoreLabel : row * 7919 % V);
  const Reference expected = reference(logits, labels, smoothing);

  const CrossEntropyOut plain = cross_entropy_(logits.clone(), int64s(labels), smoothing, false);
  const CrossEntropyOut out = cross_entropy_(logits.clone(), int64s(labels), smoothing, true);

  // exp is good to 2 units in the last place; sums of exp in fp32 blocks of 1,024.
  EXPECT_NEAR(out.loss_sum.item<double>(), expected.loss, 1e-6 * std::abs(expected.loss) + 1e-6);
  EXPECT_EQ(plain.loss_sum.item<double>(), out.loss_sum.item<double>());
  EXPECT_FALSE(plain.dlogits_NV.defined());
  EXPECT_EQ(out.count, N - N / 3);
  expect_close(out.dlogits_NV, expected.dlogits, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         EntropyShapes,
                         testing::Combine(testing::Values(1, 2, 13),
                                          testing::Values(1, 5, 64, 257, 5003),
                                          testing::Values(0.0, 0.1)));

TEST(CrossEntropy, ExponentialsOfRowsAgreeWithFloat64) {
  const at::Tensor logits = random({7, 2503}, 1) * 10, wide = logits.to(at::kDouble);
  const at::Tensor largest = at::zeros({7}, at::kDouble), sums = at::zeros({7}, at::kDouble);
  const at::Tensor most = wide.amax(1), expected = (wide - most.unsqueeze(1)).exp();

  exp_rows_(logits, largest, sums);

  EXPECT_TRUE(at::equal(largest, most));
  expect_close(logits, doubles(expected), 1e-6);
  expect_close(sums.to(at::kFloat), doubles(expected.sum(1)), 1e-6);
}

TEST(CrossEntropy, WorksInPlaceAndLeavesTheLogitsAloneWithoutAGradient) {
  const at::Tensor logits = random({4, 33}, 1), before = logits.clone();

  cross_entropy_(logits, int64s({1, 2, 3, 4}), 0.0, false);
  EXPECT_TRUE(same_bits(logits, before));
  const CrossEntropyOut out = cross_entropy_(logits, int64s({1, 2, 3, 4}), 0.0, true);

  EXPECT_EQ(out.dlogits_NV.data_ptr(), logits.data_ptr());
}

TEST(CrossEntropy, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor logits = random({101, 700}, 1) * 5;
  std::vector<std::int64_t> labels(101);
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::int64_t>(i * 5);

  const auto results =
      with_threads([&] { return cross_entropy_(logits.clone(), int64s(labels), 0.0, true); });

  for (const CrossEntropyOut& other : results) {
    EXPECT_EQ(results[0].loss_sum.item<double>(), other.loss_sum.item<double>());
    EXPECT_TRUE(same_bits(results[0].dlogits_NV, other.dlogits_NV));
  }
}

TEST(CrossEntropy, WideLogitsNeitherOverflowNorUnderflow) {
  const at::Tensor logits = at::tensor({1000.0F, 0.0F, -1000.0F}, at::kFloat).view({1, 3});

  const CrossEntropyOut right = cross_entropy_(logits.clone(), int64s({0}), 0.0, true);
  const CrossEntropyOut wrong = cross_entropy_(logits.clone(), int64s({2}), 0.0, true);

  EXPECT_EQ(right.loss_sum.item<double>(), 0.0);
  EXPECT_EQ(wrong.loss_sum.item<double>(), 2000.0);
  EXPECT_TRUE(
      same_bits(wrong.dlogits_NV, at::tensor({1.0F, 0.0F, -1.0F}, at::kFloat).view({1, 3})));
}

TEST(CrossEntropy, LogitsThatAreNotFiniteGiveALossThatIsNot) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const at::Tensor logits = random({2, 50}, 1);
    logits[1][7].fill_(bad);

    EXPECT_FALSE(
        std::isfinite(cross_entropy_(logits, int64s({3, 4}), 0.0, true).loss_sum.item<double>()));
  }
  const at::Tensor hopeless = at::full({1, 8}, -std::numeric_limits<float>::infinity());
  EXPECT_FALSE(
      std::isfinite(cross_entropy_(hopeless, int64s({3}), 0.0, true).loss_sum.item<double>()));
}

TEST(CrossEntropy, IgnoredRowsCountNothingAndGetNoGradient) {
  const at::Tensor logits = random({2, 9}, 1);

  const CrossEntropyOut out =
      cross_entropy_(logits, int64s({kIgnoreLabel, kIgnoreLabel}), 0.1, true);

  EXPECT_EQ(out.count, 0);
  EXPECT_EQ(out.loss_sum.item<double>(), 0.0);
  EXPECT_TRUE(same_bits(out.dlogits_NV, at::zeros({2, 9})));
}

TEST(CrossEntropy, LabelsOutsideTheVocabularyAreDataErrors) {
  for (const std::int64_t bad : {-1, 9}) {
    try {
      cross_entropy_(random({2, 9}, 1), int64s({0, bad}), 0.0, true);
      FAIL() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
    }
  }
}

TEST(CrossEntropy, OnMetaThereIsNoLoss) {
  const at::Tensor logits = at::empty({4, 8}, at::TensorOptions().device(at::kMeta));

  const CrossEntropyOut out = cross_entropy_(
      logits, at::empty({4}, at::TensorOptions().device(at::kMeta).dtype(at::kLong)), 0.0, true);

  EXPECT_EQ(out.count, 0);
  EXPECT_TRUE(out.loss_sum.is_meta());
  EXPECT_TRUE(out.dlogits_NV.is_meta());
}

TEST(LinearCrossEntropy, InPartsIsWhatItIsWhole) {
  // With a vocabulary this wide, rows are processed 256 at a time.
  constexpr std::int64_t N = 600, C = 8, V = 100'003;
  const at::Tensor x = random({N, C}, 1, at::kBFloat16), w = random({V, C}, 2, at::kBFloat16);
  std::vector<std::int64_t> names;
  for (std::int64_t row = 0; row < N; ++row)
    names.push_back(row % 5 == 4 ? kIgnoreLabel : row * 7919 % V);
  const at::Tensor labels = int64s(names);

  const CrossEntropyOut parts = linear_cross_entropy(x, w, labels, 0.1, true);
  const CrossEntropyOut whole = cross_entropy_(linear(x, w, {}, at::kFloat), labels, 0.1, true);

  EXPECT_EQ(parts.count, whole.count);
  EXPECT_NEAR(parts.loss_sum.item<double>(),
              whole.loss_sum.item<double>(),
              1e-6 * whole.loss_sum.item<double>());
  EXPECT_EQ(parts.dlogits_NV.scalar_type(), at::kBFloat16);
  // Products of parts may be split differently: a value close to a rounding boundary may be rounded
  // to the other side.
  expect_close(parts.dlogits_NV, doubles(whole.dlogits_NV), 2 * epsilon(at::kBFloat16));
  EXPECT_EQ(linear_cross_entropy(x, w, labels, 0.1, false).loss_sum.item<double>(),
            parts.loss_sum.item<double>());
}

TEST(LinearCrossEntropy, NamesTheRowOfALabelBeyondTheVocabulary) {
  const at::Tensor x = random({300, 4}, 1, at::kBFloat16), w = random({9, 4}, 2, at::kBFloat16);
  const at::Tensor labels = at::zeros({300}, at::kLong);
  labels[290].fill_(9);

  try {
    linear_cross_entropy(x, w, labels, 0.0, true);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("row 290"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace tessera::ops
