// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which rank, micro-batch, block and tensor a gradient that is not finite came from.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/tiny_gpt2.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/gradient_reduction.h"

namespace tessera::parallel {
namespace {

/// A value in the gradient of one tensor.
struct Spot {
  int rank, micro;
  std::string block, tensor;
  double value = INFINITY;
};

/// Gradients of 1 everywhere but in `spots`, reduced.
void reduce_step(comm::World& world,
                 ModelInstance& model,
                 GradientReduction& reduction,
                 int micros,
                 const std::vector<Spot>& spots) {
  const std::vector<Action> actions = accumulation_schedule(micros);
  reduction.begin(actions);
  for (const Action& action : actions) {
    if (action.kind != ActionKind::Backward) continue;
    for (int b = model.num_blocks() - 1; b >= 0; --b) {
      const BlockRun run{b, action.micro, micros};
      reduction.before(action, run);
      for (const auto& param : model.params(b)) {
        const at::Tensor grad = at::ones(param->info().local_shape());
        for (const Spot& spot : spots) {
          if (std::tie(spot.rank, spot.micro, spot.block, spot.tensor) !=
              std::tuple(world.rank(), action.micro, model.name(b), param->info().name))
            continue;
          grad.view({-1})[-1] = spot.value;
        }
        param->grad().write(grad);
      }
      reduction.after(action, run);
    }
  }
  reduction.finish();
  static_cast<void>(reduction.chunk_sums());
}

std::optional<GradientReduction::Culprit> culprit_of(comm::World& world,
                                                     GradientReduction& reduction) {
  const GradientReduction::Finding mine = reduction.finding();
  return reduction.culprit(world.all_gather(
      world.everyone(), {mine.begin(), mine.end()}, TESSERA_HERE("findings of the test")));
}

/// Checks the spot that every rank is told, after a step with these spots and again after one
/// without any.
void expect_found(const std::vector<Spot>& spots, const Spot& first, ReductionOptions options) {
  options.max_micros = 2;
  comm::run_threads(3, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny_gpt2()), {}, world);
    GradientReduction reduction(world, model, options);
    reduction.watch(true);

    reduce_step(world, model, reduction, 2, spots);
    const auto found = culprit_of(world, reduction);
    reduce_step(world, model, reduction, 2, {});

    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, first.rank);
    EXPECT_EQ(found->micro, first.micro);
    EXPECT_EQ(found->block, first.block);
    EXPECT_EQ(found->tensor, first.tensor);
    EXPECT_FALSE(culprit_of(world, reduction));
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
}

TEST(NonfiniteSearch, NamesTheRankOfTheFirstMicroBatch) {
  const Spot late{0, 1, "h.1", "h.1.ln_1.weight"};
  const Spot first{2, 0, "h.0", "h.0.mlp.c_fc.weight", NAN};
  for (const int stage : {0, 1, 2}) {
    for (const Reduction mode : {Reduction::Each, Reduction::Once}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      expect_found({late, first}, first, {.stage = stage, .mode = mode});
    }
  }
}

TEST(NonfiniteSearch, NamesTheLowestRankAndTheBlockThatRanFirst) {
  const Spot spread{1, 1, "h.0", "h.0.ln_1.bias", -INFINITY}, first{1, 1, "h.1", "h.1.ln_1.bias"},
      other{2, 1, "h.1", "h.1.mlp.c_proj.weight"};

  expect_found({spread, other, first}, first, {.stage = 1});
  expect_found({spread, other, first}, first, {.stage = 1, .accumulate = DType::BF16});
  expect_found({spread, other, first}, first, {.stage = 2, .comm_dtype = DType::BF16});
}

TEST(NonfiniteSearch, FindsNothingInASumThatOverflowsOfFiniteGradients) {
  comm::run_threads(2, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny_gpt2()), {}, world);
    GradientReduction reduction(world, model, {.stage = 1});
    reduction.watch(true);

    reduce_step(world,
                model,
                reduction,
                1,
                {{0, 0, "h.1", "h.1.ln_1.weight", 3e38}, {1, 0, "h.1", "h.1.ln_1.weight", 3e38}});

    EXPECT_FALSE(culprit_of(world, reduction));
    const auto suspect = reduction.suspect(reduction.chunk_sums());
    ASSERT_TRUE(suspect);
    EXPECT_EQ(suspect->tensor, "h.1.ln_1.weight");
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
}

}  // namespace
}  // namespace tessera::parallel
