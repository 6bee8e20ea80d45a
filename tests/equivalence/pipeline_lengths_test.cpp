// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Micro-batches of different length in one step: a pipeline gives the bits of one rank.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/gradient_reduction.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kVocab = 64;
constexpr int kBlocks = 6, kMicros = 4;

/// Samples and tokens of each micro-batch of a step.
using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// The second step has lengths of the first in another order, and others.
const std::vector<Sizes>& steps() {
  static const std::vector<Sizes> all = {{{2, 8}, {2, 3}, {2, 16}, {2, 5}},
                                         {{2, 16}, {1, 8}, {2, 1}, {3, 5}}};
  return all;
}

nn::Model model() {
  models::Gpt2Shape shape;
  shape.num_layers = kBlocks - 2;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = kVocab;
  shape.max_positions = 16;
  return models::gpt2(shape);
}

nn::Batch batch_of(const Sizes& sizes, int micro) {
  const auto [samples, tokens] = sizes[static_cast<std::size_t>(micro)];
  const at::Tensor ids =
      at::arange(samples * tokens, at::kLong).view({samples, tokens}) * 7 + micro;
  return make_batch(ids.remainder(kVocab), (ids * 5 + 1).remainder(kVocab), 10 * micro);
}

/// For every step: the loss of each micro-batch, and sums of squares of the gradient's chunks,
/// which are added in the same order in every layout.
struct Result {
  std::vector<std::vector<double>> losses, gradients;
};

Result train(comm::World& world,
             const parallel::StageLayout& layout,
             const std::vector<parallel::Action>& actions) {
  at::set_num_threads(1);
  const nn::Model blocks = model();
  ModelRunner runner(blocks, DType::F32, &world, layout);
  runner.initialize(7);
  parallel::StageLink link(world, blocks, layout, DType::F32);
  parallel::GradientReduction reduction(
      world, runner.instance(), {.stage = 0, .max_micros = kMicros});
  parallel::Executor executor(runner.instance(), {&reduction}, {}, &link);
  Result out;
  for (const Sizes& sizes : steps()) {
    const parallel::StepInput input{
        .num_micros = kMicros,
        .load = [&](int micro) { return batch_of(sizes, micro); },
        .global_denominators =
            [&](const std::vector<std::vector<double>>& mine) {
              double labels = 0;
              for (const std::vector<double>& counts : mine)
                labels += counts.empty() ? 0.0 : counts.front();
              return world.all_reduce(
                  world.everyone(), {labels}, comm::Op::Sum, TESSERA_HERE("labels"));
            }};
    // Zero on stages without the objective.
    out.losses.push_back(world.all_reduce(world.everyone(),
                                          executor.train(actions, input).losses(kMicros),
                                          comm::Op::Sum,
                                          TESSERA_HERE("losses")));
    reduction.finish();
    out.gradients.push_back(reduction.chunk_sums());
  }
  world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  return out;
}

Result on_one_rank() {
  const auto world = comm::solo_world();
  return train(*world, {}, parallel::accumulation_schedule(kMicros));
}

Result on_two_stages(const std::string& name) {
  const parallel::PipelineSchedule& schedule = parallel::pipeline_schedules().get(name);
  parallel::StageLayout layout{
      .stages = 2, .chunks = schedule.least_chunks, .placement = schedule.placement};
  layout.bounds =
      layout.chunks == 1 ? std::vector<int>{0, 3, kBlocks} : std::vector<int>{0, 2, 3, 4, kBlocks};
  Result out;
  comm::run_threads(mesh::Mesh({.pp = 2}), [&](comm::World& world) {
    const int stage = world.mesh().coordinate(world.rank(), mesh::Axis::Pp);
    Result mine =
        train(world,
              layout,
              parallel::pipeline_actions(
                  schedule, {.stages = 2, .chunks = layout.chunks, .micros = kMicros}, stage));
    if (world.is_leader()) out = std::move(mine);
  });
  return out;
}

TEST(PipelineLengths, MayDifferWithinAStepAndGiveTheBitsOfOneRank) {
  const Result reference = on_one_rank();
  ASSERT_EQ(reference.losses.size(), steps().size());
  // Losses are shares of the step's labels: longer micro-batches have more.
  ASSERT_GT(reference.losses[0][2], reference.losses[0][1]);
  ASSERT_FALSE(reference.gradients[0].empty());

  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    const Result pipeline = on_two_stages(schedule);
    EXPECT_EQ(pipeline.losses, reference.losses);
    EXPECT_EQ(pipeline.gradients, reference.gradients);
  }
}

}  // namespace
}  // namespace tessera::test
