// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The facts about a parameter that optimizer rules receive.
#include "tessera/parallel/param_facts.h"

#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

ParamInfo info(Shape shape, Role role, Shape matrix_shape = {}) {
  ParamInfo out;
  out.name = "p";
  out.shape = std::move(shape);
  out.matrix_shape = std::move(matrix_shape);
  out.role = role;
  return out;
}

TEST(ParamFacts, CallTablesAndOutputHeadsEmbeddings) {
  EXPECT_TRUE(facts_of(info({50, 8}, Role::TokenTable)).embedding);
  EXPECT_TRUE(facts_of(info({16, 8}, Role::PositionTable)).embedding);
  EXPECT_TRUE(facts_of(info({8, 50}, Role::OutputHead)).embedding);
}

TEST(ParamFacts, CallARouterAMatrix) {
  ParamInfo router = info({4, 8}, Role::Matrix);
  router.axes = {LogicalAxis::None, LogicalAxis::Embed};

  const optim::ParamFacts facts = facts_of(router);

  EXPECT_TRUE(facts.matrix);
  EXPECT_FALSE(facts.embedding);
}

TEST(ParamFacts, CountRowsAndColumnsOfTheMatrixShape) {
  const optim::ParamFacts fused = facts_of(info({3, 2, 4, 8}, Role::Matrix, {24, 8}));
  EXPECT_EQ(fused.rows, 24);
  EXPECT_EQ(fused.columns, 8);

  const optim::ParamFacts bias = facts_of(info({3, 2, 4}, Role::Vector, {24}));
  EXPECT_FALSE(bias.matrix);
  EXPECT_EQ(bias.rows, 1);
  EXPECT_EQ(bias.columns, 24);
}

TEST(ParamFacts, OfAStackedParameterAreThoseOfOneMatrix) {
  ParamInfo experts = info({5, 6, 4}, Role::Matrix, {6, 4});
  experts.axes = {LogicalAxis::Expert, LogicalAxis::Ffn, LogicalAxis::Embed};
  const FlatLayout layout("experts", {std::make_shared<const ParamInfo>(experts)}, 1);

  const optim::ParamFacts facts = facts_of(layout.segments()[3]);

  EXPECT_EQ(facts.rows, 6);
  EXPECT_EQ(facts.columns, 4);
  EXPECT_EQ(facts.name, "p[3]");
  ParamInfo biases = info({5, 6}, Role::Vector, {6});
  biases.axes = {LogicalAxis::Expert, LogicalAxis::Ffn};
  EXPECT_FALSE(facts_of(biases).matrix);
  EXPECT_EQ(facts_of(biases).rows, 1);
}

}  // namespace
}  // namespace tessera::parallel
