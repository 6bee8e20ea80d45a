// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Norms of whole parameters from shards that any number of ranks hold.
#include "tessera/parallel/parameter_norms.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {
namespace {

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = 40;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 72;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  shape.tie_embeddings = false;
  return shape;
}

std::unique_ptr<optim::Rule> make_rule(const std::string& type) {
  config::Problems problems;
  config::Origins origins;
  return optim::rule_factory(type)(json::Value(), problems, origins);
}

/// One micro-batch on every rank, with gradients of `value` everywhere.
void reduce_step(ModelInstance& model, GradientReduction& gradients, double value) {
  const std::vector<Action> actions = accumulation_schedule(1);
  gradients.begin(actions);
  for (int b = model.num_blocks() - 1; b >= 0; --b) {
    const BlockRun run{b, 0, 1};
    gradients.before(actions.back(), run);
    for (const auto& param : model.params(b))
      param->grad().write(at::full(param->info().local_shape(), value));
    gradients.after(actions.back(), run);
  }
  gradients.finish();
}

// LARS takes the norms of the weights and of the gradient. With 3 and 1/2 everywhere all sums of
// squares are exact.
TEST(ParameterNorms, AreThoseOfTheWholeParameterOnEveryRank) {
  const auto rule = make_rule("LARS");
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    comm::run_threads(ranks, [&](comm::World& world) {
      const int stage = ranks > 1 ? 1 : 0;
      WeightOptions weights;
      if (stage > 0) weights.residency = Residency::Whole;
      ModelInstance model(models::gpt2(tiny()), weights, world);
      ShardStore store(world, model, *rule, {.stage = stage});
      store.fill([](const ParamInfo&, std::int64_t begin, std::int64_t end, float* out) {
        std::fill_n(out, end - begin, 3.0F);
      });
      for (FlatGroup& group : model.groups())
        group.weights->settle();
      GradientReduction gradients(world, model, {.stage = stage});
      reduce_step(model, gradients, 0.5);
      ParameterNorms norms({world, model, *rule, stage});

      norms.prepare(store, gradients, {});

      int with_norms = 0;
      for (int g = 0; g < static_cast<int>(store.num_groups()); ++g) {
        const auto segments = model.groups()[static_cast<std::size_t>(g)].layout.segments();
        for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
          const ParamInfo& info = *segments[static_cast<std::size_t>(s)].info;
          const auto numel = static_cast<double>(info.numel());
          const std::vector<double> found = norms.of(g, s);
          const ParamShard* const shard = store.find(g, s);
          EXPECT_EQ(shard != nullptr ? shard->norms : found, found) << info.name;
          ASSERT_EQ(std::ssize(found), rule->num_norms(facts_of(info))) << info.name;
          if (found.empty()) continue;
          ++with_norms;
          EXPECT_EQ(found[0], std::sqrt(9.0 * numel)) << info.name;
          EXPECT_EQ(found[1], std::sqrt(0.25 * ranks * ranks * numel)) << info.name;
        }
      }
      EXPECT_GT(with_norms, 0);
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
    });
  }
}

}  // namespace
}  // namespace tessera::parallel
