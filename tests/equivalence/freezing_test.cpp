// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Parameters that are trained in a part of a training: the same bits on any number of ranks and
// after a resume at any step, and no state for what is frozen.
#include <algorithm>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// Layers thaw one by one every two steps, and the final norm is frozen again after step 3.
TinyRun gradual() {
  TinyRun run;
  run.set("optimizer.gradual_unfreezing", R"({"every": 2})");
  return run.set("optimizer.groups", R"([{"pattern": "^ln_f", "frozen_from": 3}])");
}

/// True if the newest checkpoint has moments of the parameter.
bool has_state(const fs::path& root, const std::string& parameter) {
  return checkpoint::Checkpoint(*checkpoint::newest(root)).has("optimizer.exp_avg." + parameter);
}

TEST(Freezing, GivesTheSameBitsInEveryLayout) {
  for (const char* bf16 : {"false", "true"}) {
    TinyRun run = gradual();
    run.set("bf16.enabled", bf16);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 8);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 0},
                                                    {.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 2},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(bf16 + std::to_string(layout.stage));
      expect_same_bits(one, run.train(layout, 8));
    }
  }
}

TEST(Freezing, WorksInAPipelineToTheBit) {
  const TinyRun run = gradual();
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 7);
  const Trace two = run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 7);

  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.grad_norms, one.grad_norms);
}

TEST(Freezing, ResumesAfterAnyStepInAnyLayout) {
  for (const char* bf16 : {"false", "true"}) {
    TinyRun run = gradual();
    run.set("bf16.enabled", bf16);
    const Layout two = {.ranks = 2, .accumulation = 2, .stage = 1},
                 four = {.ranks = 4, .accumulation = 1, .stage = 3};
    const Trace undisturbed = run.train(two, 8);
    for (std::int64_t stop = 1; stop < 8; ++stop) {
      SCOPED_TRACE(bf16 + std::to_string(stop));
      const files::TempDir saved;
      (void)run.train(stop % 2 == 0 ? two : four, stop, saved.path());

      const Trace after =
          run.train(stop % 2 == 0 ? four : two, 8, {}, *checkpoint::newest(saved.path()));

      EXPECT_EQ(after.digest, undisturbed.digest);
      EXPECT_EQ(after.eval_losses, undisturbed.eval_losses);
    }
  }
}

TEST(Freezing, UntilAStepEqualsTwoRunsOfWhichTheSecondTrainsMore) {
  // A checkpoint of a run that trained less lacks the state, which then begins as in a first step.
  for (const char* type : {"AdamW", "Lamb", "Muon"}) {
    SCOPED_TRACE(type);
    TinyRun run;
    run.set("optimizer.type", std::string("\"") + type + "\"");
    const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
    const files::TempDir before;
    run.set("optimizer.groups", R"([{"pattern": "^wpe|^h.0", "frozen": true}])");
    (void)run.train(layout, 3, before.path());
    run.set("optimizer.groups", "[]");
    const Trace two_runs = run.train(layout, 6, {}, *checkpoint::newest(before.path()));

    run.set("optimizer.groups", R"([{"pattern": "^wpe|^h.0", "frozen_until": 3}])");
    const Trace one_run = run.train(layout, 6);

    EXPECT_EQ(one_run.digest, two_runs.digest);
    EXPECT_EQ(std::vector(one_run.losses.begin() + 3, one_run.losses.end()), two_runs.losses);
  }
}

TEST(Freezing, HoldsStateOnlyForWhatIsTrained) {
  const files::TempDir two, three, five;
  const TinyRun run = gradual();
  (void)run.train({}, 2, two.path());
  (void)run.train({.ranks = 2, .stage = 3}, 3, three.path());
  (void)run.train({}, 5, five.path());

  EXPECT_TRUE(has_state(two.path(), "ln_f.weight"));
  EXPECT_FALSE(has_state(two.path(), "h.1.ln_1.weight"));
  EXPECT_TRUE(has_state(three.path(), "h.1.ln_1.weight"));
  EXPECT_FALSE(has_state(three.path(), "h.0.ln_1.weight"));
  EXPECT_TRUE(has_state(five.path(), "h.0.ln_1.weight"));
  EXPECT_FALSE(has_state(five.path(), "ln_f.weight"));
  EXPECT_FALSE(has_state(five.path(), "wte.weight"));
}

TEST(Freezing, ThawsAtTheEndOfAnEpoch) {
  TinyRun run;
  run.set("optimizer.groups", R"([{"pattern": "^wpe", "frozen_until": "epoch"}])");
  const planner::Plan plan = run.plan({});
  const auto data = engine::open_data(plan, {});
  const std::int64_t epoch =
      data::BatchPlan(
          data->train->size(), plan.recipe().global_batch, plan.data().options.drop_last)
          .steps_per_epoch();
  const files::TempDir at_end, after;

  (void)run.train({}, epoch, at_end.path());
  (void)run.train({}, epoch + 1, after.path());

  EXPECT_FALSE(has_state(at_end.path(), "wpe.weight"));
  EXPECT_TRUE(has_state(after.path(), "wpe.weight"));
}

}  // namespace
}  // namespace tessera::test
