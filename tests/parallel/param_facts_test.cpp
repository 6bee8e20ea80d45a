// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The facts about a parameter that optimizer rules receive.
#include "tessera/parallel/param_facts.h"

#include <gmock/gmock.h>
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

// Only queries, keys and values that one matrix has together are parts of it.
TEST(ParamFacts, NameTheRowsOfFusedQueriesKeysAndValues) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  constexpr LogicalAxis kNone = LogicalAxis::None, kHeads = LogicalAxis::Heads,
                        kEmbed = LogicalAxis::Embed;
  const auto facts = [](Shape shape, std::vector<LogicalAxis> axes, Role role = Role::Matrix) {
    ParamInfo projection = info(shape, role, {shape[0] * shape[1] * shape[2], shape[3]});
    projection.axes = std::move(axes);
    return facts_of(projection);
  };
  const optim::ParamFacts equal = facts({3, 2, 4, 8}, {kNone, kHeads, kNone, kEmbed});
  EXPECT_EQ(equal.row_groups, 1);
  EXPECT_THAT(equal.row_parts, ElementsAre(8, 8, 8));

  // Two groups, each with six heads of queries and one of keys and one of values.
  const optim::ParamFacts grouped =
      facts({2, 8, 4, 16}, {LogicalAxis::KvHeads, kNone, kNone, kEmbed});
  EXPECT_EQ(grouped.row_groups, 2);
  EXPECT_THAT(grouped.row_parts, ElementsAre(24, 4, 4));
  EXPECT_EQ(grouped.rows, 64);

  // Keys and values of cross-attention; gate and up of an MLP.
  EXPECT_THAT(facts({2, 2, 4, 8}, {kNone, kHeads, kNone, kEmbed}).row_parts, IsEmpty());
  EXPECT_THAT(facts({2, 6, 4, 8}, {kNone, LogicalAxis::Ffn, kNone, kEmbed}).row_parts, IsEmpty());
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
