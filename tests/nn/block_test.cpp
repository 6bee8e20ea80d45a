// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/block.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

TEST(Params, PutsTheBlocksNameBeforeItsParameters) {
  Params params("h.3");

  params.add("ln_1.weight", {8}, {"embed"}, Init::ones());
  params.add("wpe.weight", {4, 8}, {"", "embed"}, Init::normal(0.02), {.without_prefix = true});
  params.tied("wte.weight", {9, 8}, {"vocab", "embed"}, Init::normal(0.02));

  const auto& list = params.list();
  EXPECT_EQ(list[0]->info().name, "h.3.ln_1.weight");
  EXPECT_EQ(list[1]->info().name, "wpe.weight");
  EXPECT_EQ(list[2]->info().name, "wte.weight");
  EXPECT_FALSE(list[1]->info().tied);
  EXPECT_TRUE(list[2]->info().tied);
}

TEST(Params, TakesTheShapeAsMatrixShapeUnlessTold) {
  Params params("h.0");

  const Param* plain = params.add("w", {6, 4}, {"", ""}, Init::ones());
  const Param* fused =
      params.add("q", {3, 2, 4}, {"", "heads", ""}, Init::ones(), {.matrix_shape = {24}});

  EXPECT_EQ(plain->info().matrix_shape, (Shape{6, 4}));
  EXPECT_EQ(fused->info().matrix_shape, (Shape{24}));
}

TEST(Params, RefusesAxesThatDoNotFitTheShape) {
  Params params("h.0");

  EXPECT_THROW(params.add("w", {6, 4}, {"embed"}, Init::ones()), Error);
}

TEST(Batch, GivesSomeOfItsSamples) {
  Batch batch;
  batch.set("input_ids", at::arange(12, at::kLong).view({4, 3}));
  batch.sample_ids = {7, 8, 9, 10};

  const Batch some = batch.samples(1, 2);

  EXPECT_EQ(some.sample_ids, (std::vector<std::int64_t>{8, 9}));
  EXPECT_TRUE(at::equal(some.tensor("input_ids"), at::arange(3, 9, at::kLong).view({2, 3})));
}

TEST(Batch, NamesWhatIsMissing) {
  Batch batch;
  batch.set("input_ids", at::zeros({1, 2}, at::kLong));

  EXPECT_TRUE(batch.has("input_ids"));
  EXPECT_FALSE(batch.has("labels"));
  try {
    (void)batch.tensor("labels");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("labels"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::nn
