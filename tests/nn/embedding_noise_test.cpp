// SPDX-License-Identifier: Apache-2.0
// Noise on embeddings is a function of sample and element, whichever rank has which part.
#include "tessera/nn/embedding_noise.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/step_context.h"

namespace tessera::nn {
namespace {

constexpr float kBound = 0.25F;

TEST(UniformNoise, IsUniformWithinItsBound) {
  const ops::DropoutKey key{.p = 1.0, .key = 7, .sample_ids = {3, 4}};
  const at::Tensor noise = uniform_noise(at::zeros({2, 50, 64}), key, kBound);

  EXPECT_LT(noise.max().item<float>(), kBound);
  EXPECT_GE(noise.min().item<float>(), -kBound);
  // 6400 numbers: four standard errors of the mean, and of the mean square of a uniform number.
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 4 * kBound / std::sqrt(3 * 6400.0));
  EXPECT_NEAR(noise.square().mean().item<double>(), kBound * kBound / 3, 0.03 * kBound * kBound);
  EXPECT_FALSE(at::equal(noise[0], noise[1]));
}

TEST(UniformNoise, IsThatOfTheSampleWhereverItLies) {
  const ops::DropoutKey both{.p = 1.0, .key = 7, .sample_ids = {3, 4}};
  const at::Tensor x = at::zeros({2, 8, 6}), noise = uniform_noise(x, both, kBound);

  const ops::DropoutKey second{.p = 1.0, .key = 7, .sample_ids = {4}};
  EXPECT_TRUE(at::equal(uniform_noise(x.narrow(0, 1, 1), second, kBound), noise.narrow(0, 1, 1)));
  // The first and the last quarter of the tokens of each sample.
  const ops::DropoutKey parts{.p = 1.0, .key = 7, .sample_ids = {3, 4}, .parts = {0, 3}};
  EXPECT_TRUE(at::equal(uniform_noise(at::zeros({2, 4, 6}), parts, kBound),
                        at::cat({noise.narrow(1, 0, 2), noise.narrow(1, 6, 2)}, 1)));
  EXPECT_TRUE(at::equal(uniform_noise(x.to(at::kBFloat16), both, kBound), noise.to(at::kBFloat16)));
}

TEST(EmbeddingNoise, IsThereInTrainingAlone) {
  Params params("");
  Param* const table =
      params.add("wte", {10, 16}, {LogicalAxis::Vocab, LogicalAxis::Embed}, Init::normal(1.0));
  Param* const other = params.add("matrix", {10, 16}, {LogicalAxis::None, LogicalAxis::Embed}, {});
  add_embedding_noise(params, /*alpha=*/5.0, /*tokens=*/8);
  EXPECT_NE(table->extension(), nullptr);
  EXPECT_EQ(other->extension(), nullptr);
  EXPECT_THROW(add_embedding_noise(params, 5.0, 8), Error) << "a table that has a form already";
  table->attach(at::randn({10, 16}));
  const at::Tensor ids = at::arange(8, at::kLong).view({1, 8});
  Batch batch;
  batch.sample_ids = {0};

  StepContext training(Mode::Train, /*seed=*/1), evaluation(Mode::Eval, /*seed=*/1);
  training.batch = evaluation.batch = &batch;
  const at::Tensor plain = table->tensor().index_select(0, at::arange(8, at::kLong)).unsqueeze(0);

  EXPECT_TRUE(at::equal(embedding(ids, *table, evaluation), plain));
  const at::Tensor noise = embedding(ids, *table, training) - plain;
  const double bound = 5.0 / std::sqrt(8.0 * 16.0);
  EXPECT_LE(noise.abs().max().item<double>(), bound * 1.00001);
  EXPECT_GT(noise.abs().max().item<double>(), bound * 0.8);
}

}  // namespace
}  // namespace tessera::nn
