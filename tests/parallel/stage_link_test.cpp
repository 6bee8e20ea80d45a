// SPDX-License-Identifier: Apache-2.0
// Data that stages send to each other where several ranks share their layers.
#include "tessera/parallel/pipeline/stage_link.h"

#include <cstdint>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kBatch = 3, kTokens = 8, kWidth = 32;

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = kWidth;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = kTokens;
  return shape;
}

/// Elements that a rank put into messages, and into collectives of its tensor-parallel group.
struct Moved {
  std::int64_t messages = 0, gathered = 0;
};

/// A flow there and its gradient back between two stages of two ranks each.
void pass_a_flow(bool scatter_gather, Moved expected) {
  comm::run_threads(mesh::Mesh({.pp = 2, .tp_col = 2}), [&](comm::World& world) {
    const nn::Model model = models::gpt2(tiny());
    const StageLayout layout{.stages = 2, .bounds = {0, 2, 4}};
    ModelInstance instance(model, {}, world, layout);
    StageLink link(world, model, layout, DType::F32, instance.tensor_parallel(), scatter_gather);
    nn::Batch batch;
    batch.set("input_ids", at::zeros({kBatch, kTokens}, at::kLong));
    for (std::int64_t i = 0; i < kBatch; ++i)
      batch.sample_ids.push_back(i);
    nn::StepContext context(nn::Mode::Train, 1);
    context.batch = &batch;
    context.tensor = instance.tensor_parallel();
    const comm::Group& layer = *instance.tensor_parallel()->group;
    const at::Tensor there = at::arange(kBatch * kTokens * kWidth, at::kFloat)
                                 .view({kBatch, kTokens, kWidth}),
                     back = there.neg();
    const comm::Traffic before = world.transport().traffic(),
                        before_in_layer = world.transport().traffic(layer);

    if (instance.stage() == 0) {
      nn::Flow flow;
      flow.diff = {there};
      link.send_flow(1, flow);
      EXPECT_TRUE(at::equal(link.take_gradient(link.post_gradient(1, {there})).at(0), back));
    } else {
      EXPECT_TRUE(at::equal(link.take_flow(link.post_flow(1, batch, context)).diff.at(0), there));
      link.send_gradient(1, {back}, {there});
    }

    const std::int64_t gathered =
        world.transport().traffic(layer).elements - before_in_layer.elements;
    EXPECT_EQ(gathered, expected.gathered);
    EXPECT_EQ(world.transport().traffic().elements - before.elements - gathered, expected.messages);
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
}

TEST(StageLink, SendsWholeFlowsByDefault) {
  pass_a_flow(false, {.messages = kBatch * kTokens * kWidth, .gathered = 0});
}

TEST(StageLink, SendsAShareFromEachRankAndGathersItThere) {
  pass_a_flow(true,
              {.messages = kBatch * kTokens * kWidth / 2, .gathered = kBatch * kTokens * kWidth});
}

}  // namespace
}  // namespace tessera::parallel
