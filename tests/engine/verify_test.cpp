// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/verify.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/promise.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
namespace {

using test::Layout;
using test::TinyRun;

constexpr std::int64_t kSteps = 3;

/// The rank that is this thread.
thread_local int this_rank = 0;

/// A block whose output is too large by a fraction on rank 1: ranks that share a layer, the tokens
/// of a sample or a batch no longer train what one rank trains.
class Wrong final : public nn::Block {
 public:
  Wrong(std::unique_ptr<nn::Block> block, double fault) : block_(std::move(block)), fault_(fault) {}
  void declare(nn::Params& params) override { block_->declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    nn::Outcome out = block_->forward(std::move(in), batch, context);
    if (this_rank == 1) out.flow.diff.front() = out.flow.diff.front() * (1 + fault_);
    return out;
  }

 private:
  std::unique_ptr<nn::Block> block_;
  double fault_;
};

planner::PlanWithData with_fault(const planner::PlanWithData& plan, double fault) {
  if (fault == 0) return plan;
  planner::ModelPlan model = plan.model();
  nn::BlockSpec& spec = model.resolved.model.blocks.at(1);
  spec.make = [make = spec.make, fault] { return std::make_unique<Wrong>(make(), fault); };
  return planner::with(plan, std::move(model));
}

struct TraceOptions {
  double nudge = 0, fault = 0;
};

/// The rank's part of trace_layout() on threads of this process.
LayoutTrace trace_of(const planner::Plan& plan,
                     const files::TempDir& folder,
                     TraceOptions options = {}) {
  prepare_process(1);
  const auto data = open_data(plan, {});
  const auto finished = [&](const planner::Plan& one) {
    return with_fault(planner::with_data(one, *data), options.fault);
  };
  const planner::PlanWithData mine = finished(plan);
  const planner::PlanWithData keeping =
      finished(planner::make_plan(keeping_gradient(plan.resolved()), plan.ranks(), "tiny.json"));
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    this_rank = world.rank();
    EXPECT_EQ(keep_first_gradient(world, keeping, data, folder.path(), options.nudge), kExitOk);
  });
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    this_rank = world.rank();
    EXPECT_EQ(train_traced(world, mine, data, kSteps, folder.path(), options.nudge), kExitOk);
  });
  return read_trace(folder.path());
}

Deviations deviations(const planner::Plan& plan) {
  const files::TempDir single, layout;
  const planner::Plan one = planner::make_plan(on_one_rank(plan), 1, "tiny.json");
  return compare_traces(trace_of(one, single), trace_of(plan, layout));
}

/// A way to split sums, and a fault that is to be told from rounding.
struct Kind {
  const char* name;
  Layout layout;
  const char* key;  ///< of the configuration, set to `value`; empty: none
  const char* value;
  double fault;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"tensor", {.ranks = 2, .tensor = 2}, "", "", 1e-3},
      {"sequence", {.ranks = 2, .tensor = 2, .sequence = true}, "", "", 1e-3},
      {"ring", {.ranks = 2, .context = 2}, "", "", 1e-3},
      {"ulysses", {.ranks = 2, .context = 2, .context_mode = "ulysses"}, "", "", 1e-3},
      {"once", {.ranks = 2, .accumulation = 2}, "gradient_reduction", "\"once\"", 1e-3},
      // In 16 bits a thousandth is rounding.
      {"tensor in bf16", {.ranks = 2, .tensor = 2}, "bf16.enabled", "true", 0.5},
      {"ring in fp16", {.ranks = 2, .context = 2}, "fp16.enabled", "true", 0.5}};
  return all;
}

/// Models whose sums are of different condition, with longer texts than those of other tests: with
/// the bounds of GPT-2 alone, some of them were broken.
TinyRun run_of(const char* family) {
  TinyRun run;
  run.set("model", R"({"num_layers": 3, "hidden_size": 64, "num_heads": 4, "max_positions": 64})")
      .set("model.family", '"' + std::string(family) + '"')
      .set("data.sequence_length", "64");
  return run;
}

/// The deviations of a layout from one rank, and what rounding explains of them.
struct Verified {
  Deviations sound, faulty;
  RoundingBounds bounds;
  double least = 0;  ///< the bound of a gradient in a well-conditioned model
};

Verified verified(const char* family, const Kind& kind) {
  const files::TempDir single, nudged, layout, faulty;
  TinyRun run = run_of(family);
  if (*kind.key != 0) run.set(kind.key, kind.value);
  const planner::Plan plan = run.plan(kind.layout),
                      one = planner::make_plan(engine::on_one_rank(plan), 1, "tiny.json");
  const engine::Promise promise = engine::promise_of(plan);
  EXPECT_FALSE(promise.bits);
  const LayoutTrace reference = trace_of(one, single);
  return {
      .sound = compare_traces(reference, trace_of(plan, layout)),
      .faulty = compare_traces(reference, trace_of(plan, faulty, {.fault = kind.fault})),
      .bounds = rounding_bounds(
          compare_traces(reference, trace_of(one, nudged, {.nudge = promise.spacing})), promise),
      .least = promise.gradient};
}

/// The deviation that is the largest part of its bound.
double largest_part(const Deviations& found, const RoundingBounds& bounds) {
  double out = 0;
  for (const TensorDeviation& tensor : found.tensors)
    out = std::max(out, tensor.gradient.relative / bounds.gradients.at(tensor.name));
  for (std::size_t s = 0; s < found.losses.size(); ++s)
    out = std::max(out, found.losses[s] / bounds.losses.at(s));
  return out;
}

TEST(Verify, KeepsItsBoundsForModelsOfEveryConditionAndFindsAFaultOfEachKind) {
  double most = 0;
  for (const char* const family : {"olmo2", "opt"}) {
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(std::string(family) + ", " + kind.name);

      const Verified found = verified(family, kind);

      EXPECT_LE(largest_part(found.sound, found.bounds), 1);
      EXPECT_GT(largest_part(found.faulty, found.bounds), 1);
      for (const TensorDeviation& tensor : found.sound.tensors)
        most = std::max(most, tensor.gradient.relative / found.least);
    }
  }
  EXPECT_GT(most, 1) << "the bounds of a well-conditioned model would have been enough";
}

TEST(Verify, FindsTheSameBitsInAPipelineOfShardedRanks) {
  const TinyRun run;
  const Deviations found =
      deviations(run.plan({.ranks = 4, .accumulation = 2, .stage = 3, .pipeline = "2"}));

  EXPECT_TRUE(found.same_losses);
  EXPECT_EQ(found.losses.size(), static_cast<std::size_t>(kSteps));
  ASSERT_FALSE(found.tensors.empty());
  for (const TensorDeviation& tensor : found.tensors) {
    EXPECT_TRUE(tensor.gradient.same_bits) << tensor.name;
    EXPECT_TRUE(tensor.weights.same_bits) << tensor.name;
    EXPECT_EQ(tensor.gradient.relative, 0) << tensor.name;
    EXPECT_EQ(tensor.weights.relative, 0) << tensor.name;
  }
}

TEST(Verify, MeasuresTheRoundingOfRanksThatShareLayers) {
  const TinyRun run;
  const planner::Plan plan = run.plan({.ranks = 2, .tensor = 2});
  const Promise promise = promise_of(plan);

  const Deviations found = deviations(plan);

  bool any = false;
  for (const TensorDeviation& tensor : found.tensors) {
    EXPECT_LE(tensor.gradient.relative, promise.gradient) << tensor.name;
    any = any || tensor.gradient.relative > 0;
  }
  EXPECT_TRUE(any) << "sums that are cut elsewhere round elsewhere";
  for (const double loss : found.losses)
    EXPECT_LE(loss, promise.loss);
}

TEST(Verify, SeesAnotherTraining) {
  TinyRun run, other;
  other.set("trainer.seed", "6");
  const files::TempDir first, second;

  const Deviations found =
      compare_traces(trace_of(run.plan({}), first), trace_of(other.plan({}), second));

  EXPECT_FALSE(found.same_losses);
  EXPECT_GT(found.losses[0], 0);
  for (const TensorDeviation& tensor : found.tensors) {
    // Norms begin as ones and zeros whatever the seed is; their gradients do not agree.
    EXPECT_GT(tensor.gradient.relative, 1e-3) << tensor.name;
    EXPECT_FALSE(tensor.weights.same_bits) << tensor.name;
  }
}

TEST(Verify, MeasuresADeviationAgainstAFloor) {
  EXPECT_EQ(deviation_of({3, 4}, {3, 4}, 1.0), 0);
  EXPECT_DOUBLE_EQ(deviation_of({3, 4}, {3, 4.5}, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(deviation_of({0, 0}, {0, 0.5}, 2.0), 0.25);
  EXPECT_TRUE(std::isinf(deviation_of({0}, {NAN}, 1.0)));
  EXPECT_THROW(deviation_of({1}, {1, 2}, 1.0), Error);
}

TEST(Verify, RefusesTracesOfOtherTensors) {
  TinyRun tied, untied;
  untied.set("model.tie_embeddings", "false");
  const files::TempDir first, second;

  EXPECT_THROW(compare_traces(trace_of(tied.plan({}), first), trace_of(untied.plan({}), second)),
               Error);
}

}  // namespace
}  // namespace tessera::engine
