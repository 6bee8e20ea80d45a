// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which strategy an optimizer rule gets.
#include "tessera/parallel/update_strategy.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/optim/rule.h"

namespace tessera::parallel {
namespace {

std::unique_ptr<optim::Rule> make_rule(const std::string& type) {
  config::Problems problems;
  config::Origins origins;
  return optim::rule_factory(type)(json::Value(), problems, origins);
}

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 1;
  shape.hidden_size = 24;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 48;
  shape.vocab_size = 50;
  shape.max_positions = 8;
  return shape;
}

UpdateKind kind_of(const std::string& type, const WeightOptions& weights = {}) {
  const auto rule = make_rule(type);
  UpdateKind out{};
  comm::run_threads(1, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), weights, world);
    out = update_kind(*rule, model);
    EXPECT_NE(make_update({world, model, *rule, 0}), nullptr) << type;
  });
  return out;
}

TEST(UpdateKind, FollowsFromTheScopeOfTheRule) {
  EXPECT_EQ(kind_of("AdamW"), UpdateKind::Elementwise);
  EXPECT_EQ(kind_of("Lamb"), UpdateKind::WholeParameter);
  EXPECT_EQ(kind_of("Muon"), UpdateKind::WholeParameter);
  EXPECT_EQ(kind_of("OneBitAdam"), UpdateKind::Compressed);
  EXPECT_EQ(kind_of("OneBitLamb"), UpdateKind::Compressed);
}

TEST(UpdateKind, IsElementwiseWhereTheRestIsFrozen) {
  const auto matrices = [](const std::string& name) { return name.ends_with(".weight"); };
  // Muon transforms matrices whole and updates vectors element by element.
  EXPECT_EQ(kind_of("Muon", {.frozen = matrices}), UpdateKind::Elementwise);
}

}  // namespace
}  // namespace tessera::parallel
