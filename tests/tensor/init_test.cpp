// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/init.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/files.h"
#include "tessera/base/philox.h"

namespace tessera {
namespace {

ParamInfo normal_parameter(Shape shape, double std = 0.02) {
  ParamInfo info;
  info.name = "h.0.attn.c_attn.weight";
  info.shape = std::move(shape);
  info.init = Init::normal(std);
  return info;
}

at::Tensor range(const ParamInfo& info, std::uint64_t seed, std::int64_t begin, std::int64_t end) {
  at::Tensor out = at::empty({end - begin}, at::kFloat);
  initialize_range(info, seed, begin, out);
  return out;
}

TEST(Init, IsTheSameForAnySplitOfTheRange) {
  const ParamInfo info = normal_parameter({37, 111});
  const at::Tensor whole = range(info, 7, 0, info.numel());

  for (const std::int64_t cut : {1, 2, 511, 512, 513, 1024, 4001}) {
    const at::Tensor parts = at::cat({range(info, 7, 0, cut), range(info, 7, cut, info.numel())});

    EXPECT_TRUE(at::equal(whole, parts)) << "cut at " << cut;
  }
}

TEST(Init, FillsAnIntervalEvenly) {
  ParamInfo info = normal_parameter({64, 1000});
  info.init = Init::uniform(0.25);
  const at::Tensor whole = range(info, 7, 0, info.numel());

  EXPECT_GE(whole.min().item<double>(), -0.25);
  EXPECT_LT(whole.max().item<double>(), 0.25);
  EXPECT_NEAR(whole.mean().item<double>(), 0.0, 3e-3);
  EXPECT_NEAR(whole.square().mean().item<double>(), 0.25 * 0.25 / 3, 5e-4);
  for (const std::int64_t cut : {1, 255, 256, 4001}) {
    const at::Tensor parts = at::cat({range(info, 7, 0, cut), range(info, 7, cut, info.numel())});
    EXPECT_TRUE(at::equal(whole, parts)) << "cut at " << cut;
  }
}

TEST(Init, IsTruncatedWithoutMovingTheOtherValues) {
  ParamInfo info = normal_parameter({64, 1000});
  const at::Tensor plain = range(info, 7, 0, info.numel());
  info.init = Init::truncated(0.02, 2.0);
  const at::Tensor whole = range(info, 7, 0, info.numel());

  const at::Tensor inside = plain.abs().le(0.04F);
  EXPECT_LE(whole.abs().max().item<float>(), 0.04F);
  EXPECT_TRUE(at::equal(whole.masked_select(inside), plain.masked_select(inside)));
  // The deviation, and the fourth moment of a normal distribution truncated at two deviations.
  const at::Tensor wide = whole.to(at::kDouble) / 0.02;
  EXPECT_NEAR(wide.mean().item<double>(), 0.0, 0.02);
  EXPECT_NEAR(wide.square().mean().item<double>(), 0.7737, 0.01);
  EXPECT_NEAR(wide.pow(4).mean().item<double>(), 1.4162, 0.03);
  for (const std::int64_t cut : {1, 511, 512, 4001}) {
    const at::Tensor parts = at::cat({range(info, 7, 0, cut), range(info, 7, cut, info.numel())});
    EXPECT_TRUE(at::equal(whole, parts)) << "cut at " << cut;
  }
}

TEST(Init, IsTheSameForAnyNumberOfThreads) {
  const ParamInfo info = normal_parameter({300, 300});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = range(info, 7, 0, info.numel());

  at::set_num_threads(3);
  const at::Tensor three = range(info, 7, 0, info.numel());
  at::set_num_threads(before);

  EXPECT_TRUE(at::equal(one, three));
}

TEST(Init, DependsOnSeedAndName) {
  ParamInfo info = normal_parameter({64});
  const at::Tensor first = range(info, 1, 0, 64);
  const at::Tensor other_seed = range(info, 2, 0, 64);
  info.name = "h.1.attn.c_attn.weight";
  const at::Tensor other_name = range(info, 1, 0, 64);

  EXPECT_FALSE(at::equal(first, other_seed));
  EXPECT_FALSE(at::equal(first, other_name));
}

// The library's logarithm, cosine and sine instead of our polynomials.
TEST(Init, IsBoxMullerOnPhilox) {
  const ParamInfo info = normal_parameter({4096}, 1.0);
  const at::Tensor ours = range(info, 5, 0, 4096);
  const Philox random{mix64(5, files::xxh3(std::as_bytes(std::span(info.name))))};

  for (std::int64_t pair = 0; pair < 2048; ++pair) {
    const auto w = random(static_cast<std::uint64_t>(pair));
    const double radius = std::sqrt(-2.0 * std::log(uniform_double(w[0], w[1])));
    const double angle = 2.0 * M_PI * uniform_double(w[2], w[3]);

    // Half a unit in the last place of fp32 at the largest value (below 8), and a little.
    EXPECT_NEAR(ours[2 * pair].item<float>(), radius * std::cos(angle), 3e-7);
    EXPECT_NEAR(ours[2 * pair + 1].item<float>(), radius * std::sin(angle), 3e-7);
  }
}

TEST(Init, HasTheMomentsOfANormalDistribution) {
  const ParamInfo info = normal_parameter({1000, 1000}, 0.02);
  const at::Tensor x = range(info, 11, 0, info.numel()).to(at::kDouble) / 0.02;

  // Five standard errors of a million draws.
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 5e-3);
  EXPECT_NEAR(x.pow(2).mean().item<double>(), 1.0, 7.1e-3);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3.0, 4.9e-2);
  EXPECT_LT(x.abs().max().item<double>(), 6.5);
}

TEST(Init, GivesTheFirstPartAStandardDeviationOfItsOwn) {
  ParamInfo info = normal_parameter({3, 700}, 1.0);
  const at::Tensor plain = range(info, 7, 0, info.numel());
  info.init = Init::normal(/*first_std=*/0.5, /*others_std=*/2.0);

  const at::Tensor parts = at::cat({range(info, 7, 0, 699), range(info, 7, 699, info.numel())});

  // Factors that are powers of two round nothing.
  EXPECT_TRUE(at::equal(parts.narrow(0, 0, 700), 0.5 * plain.narrow(0, 0, 700)));
  EXPECT_TRUE(at::equal(parts.narrow(0, 700, 1400), 2.0 * plain.narrow(0, 700, 1400)));
}

TEST(Init, FillsZerosAndOnes) {
  ParamInfo info = normal_parameter({10});
  info.init = Init::zeros();
  EXPECT_TRUE(at::equal(range(info, 1, 2, 9), at::zeros({7})));
  info.init = Init::ones();
  EXPECT_TRUE(at::equal(range(info, 1, 2, 9), at::ones({7})));
}

}  // namespace
}  // namespace tessera
