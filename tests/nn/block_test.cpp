// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/block.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using enum LogicalAxis;

TEST(Params, PutsTheBlocksNameBeforeItsParameters) {
  Params params("h.3");

  params.add("ln_1.weight", {8}, {Embed}, Init::ones());
  params.add("wpe.weight", {4, 8}, {None, Embed}, Init::normal(0.02), {.without_prefix = true});
  params.tied("wte.weight", {9, 8}, {Vocab, Embed}, Init::normal(0.02));

  const auto& list = params.list();
  EXPECT_EQ(list[0]->info().name, "h.3.ln_1.weight");
  EXPECT_EQ(list[1]->info().name, "wpe.weight");
  EXPECT_EQ(list[2]->info().name, "wte.weight");
  EXPECT_FALSE(list[1]->info().tied);
  EXPECT_TRUE(list[2]->info().tied);
}

TEST(Params, TakesTheShapeAsMatrixShapeByDefault) {
  Params params("h.0");

  const Param* plain = params.add("w", {6, 4}, {None, None}, Init::ones());
  const Param* fused =
      params.add("q", {3, 2, 4}, {None, Heads, None}, Init::ones(), {.matrix_shape = {24}});

  EXPECT_EQ(plain->info().matrix_shape, (Shape{6, 4}));
  EXPECT_EQ(fused->info().matrix_shape, (Shape{24}));
}

TEST(Params, TakesRolesFromTheAxesByDefault) {
  Params params("h.0");
  const auto role = [&](Shape shape, std::vector<LogicalAxis> axes, Params::Tags tags = {}) {
    const std::string name = "p" + std::to_string(params.list().size());
    return params.add(name, std::move(shape), std::move(axes), Init::ones(), std::move(tags))
        ->info()
        .role;
  };

  EXPECT_EQ(role({9, 8}, {Vocab, Embed}), Role::TokenTable);
  EXPECT_EQ(role({8, 9}, {Embed, Vocab}), Role::OutputHead);
  EXPECT_EQ(role({4, 8}, {None, Embed}), Role::Matrix) << "a router is not a table of positions";
  EXPECT_EQ(role({4, 8}, {None, Embed}, {.role = Role::PositionTable}), Role::PositionTable);
  EXPECT_EQ(role({8}, {Embed}), Role::Vector);
  EXPECT_EQ(role({3, 2, 4}, {None, Heads, None}, {.matrix_shape = {24}}), Role::Vector);
}

TEST(Params, RefusesATableThatHasNotTwoDims) {
  Params params("h.0");

  EXPECT_THROW(
      params.add("t", {2, 3, 4}, {None, None, Embed}, Init::ones(), {.role = Role::PositionTable}),
      Error);
}

TEST(Params, RefusesAxesThatDoNotFitTheShape) {
  Params params("h.0");
  const auto refusal = [&](const Shape& shape, const std::vector<LogicalAxis>& axes) {
    try {
      params.add("w", shape, axes, Init::ones());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Shape);
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_EQ(refusal({6, 4}, {Embed}), "parameter h.0.w has 2 dims and 1 logical axes");
  EXPECT_EQ(refusal({6, -1}, {None, None}), "parameter h.0.w has the shape [6, -1]");
  EXPECT_EQ(refusal({0}, {None}), "parameter h.0.w has the shape [0]");
  EXPECT_EQ(refusal({}, {}), "");
}

/// A block that declares parameters of these names and sizes.
class Declaring final : public Block {
 public:
  using Declarations = std::vector<std::pair<std::string, std::int64_t>>;
  Declaring(Declarations plain, Declarations tied)
      : plain_(std::move(plain)), tied_(std::move(tied)) {}
  void declare(Params& params) override {
    for (const auto& [name, size] : plain_)
      params.add(name, {size}, {None}, Init::ones());
    for (const auto& [name, size] : tied_)
      params.tied(name, {size}, {None}, Init::ones());
  }
  Outcome forward(Flow /*in*/, const Batch& /*batch*/, StepContext& /*context*/) override {
    return {};
  }

 private:
  Declarations plain_, tied_;
};

BlockSpec block_of(const std::string& name,
                   const Declaring::Declarations& plain,
                   const Declaring::Declarations& tied = {}) {
  return {name, [=] { return std::make_unique<Declaring>(plain, tied); }};
}

/// Returns the error of declare_all() for a model of these blocks; empty if it accepts them.
std::string refusal(std::vector<BlockSpec> blocks) {
  Model model{std::move(blocks)};
  try {
    declare_all(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.what();
  }
  return "";
}

TEST(Models, MayShareTiedParametersAlone) {
  EXPECT_EQ(
      refusal({block_of("a", {{"w", 3}}, {{"wte", 4}}), block_of("b", {{"w", 5}}, {{"wte", 4}})}),
      "");
  EXPECT_EQ(refusal({block_of("mid", {{"w", 3}}), block_of("mid", {{"w", 3}})}),
            "two blocks of the model are called \"mid\"");
  EXPECT_EQ(refusal({block_of("mid", {{"w", 3}, {"w", 3}})}),
            "two parameters of the model are called \"mid.w\"");
  EXPECT_EQ(refusal({block_of("a", {}, {{"b.w", 3}}), block_of("b", {{"w", 3}})}),
            "two parameters of the model are called \"b.w\"");
  EXPECT_EQ(refusal({block_of("a", {}, {{"wte", 3}}), block_of("b", {}, {{"wte", 4}})}),
            "blocks that share \"wte\" declare it with different shapes, [3] and [4]");
}

TEST(Models, NeedABlockForEveryName) {
  EXPECT_EQ(refusal({{"a", [] { return std::unique_ptr<Block>(); }}}),
            "BlockSpec::make of \"a\" gives no block");
  EXPECT_EQ(refusal({{"a", {}}}), "BlockSpec::make of \"a\" gives no block");
}

TEST(Models, HaveLayersThatAreBlocksWithANumberAtTheEnd) {
  for (const char* layer : {"h.0", "layers.12", "encoder.block.3"})
    EXPECT_TRUE(is_layer({.name = layer})) << layer;
  for (const char* other : {"wte", "layers.", "layers.3.mlp", "head2", "3"})
    EXPECT_FALSE(is_layer({.name = other})) << other;
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
