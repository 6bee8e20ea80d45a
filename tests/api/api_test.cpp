// SPDX-License-Identifier: Apache-2.0
// The face of the library: a training in the caller's process is the training of a rank, bit for
// bit, and leaves the process as it found it.
#include "tessera/api.h"

#include <string>
#include <utility>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/planner/plan.h"

namespace tessera::api {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 3;

std::string configuration(const test::TinyRun& run) {
  return run.plan({}).resolved().dump();
}

// First, before another test may install the allocator.
TEST(Api, TrainsInTheCallersProcessWithItsAllocatorAndThePlansThreads) {
  c10::Allocator* const before = c10::GetAllocator(c10::kCPU);
  const test::TinyRun run;
  const Plan plan(configuration(run));
  at::set_num_threads(2);

  Training training(plan);
  const Step first = training.step();

  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(c10::GetAllocator(c10::kCPU), before);
  EXPECT_EQ(at::get_num_threads(), 1);
}

TEST(Api, ATrainingHasTheBitsOfARank) {
  const test::TinyRun run;
  const files::TempDir folder;
  const test::Trace rank = run.train({}, kSteps);

  Training training{Plan(configuration(run))};
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Step made = training.step();
    EXPECT_EQ(made.loss, rank.losses.at(static_cast<std::size_t>(step)));
    EXPECT_EQ(made.gradient_norm, rank.grad_norms.at(static_cast<std::size_t>(step)));
    EXPECT_EQ(made.metrics.at("loss"), made.loss);
  }
  const Evaluation held_out = training.evaluate();
  const std::filesystem::path saved = training.save(folder.path());

  EXPECT_EQ(held_out.loss, rank.eval_losses.at(0));
  EXPECT_TRUE(held_out.metrics.contains("perplexity"));
  EXPECT_EQ(checkpoint::Checkpoint(saved).digest(), rank.digest);
  EXPECT_EQ(training.steps(), kSteps);
  EXPECT_FALSE(training.done());
}

TEST(Api, ATrainingContinuesFromItsCheckpoint) {
  const test::TinyRun run;
  const Plan plan(configuration(run));
  const files::TempDir folder;
  Training whole(plan);
  (void)whole.step();
  (void)whole.save(folder.path());
  const double second = whole.step().loss;

  Training resumed(plan);
  resumed.load(folder.path());
  Training moved = std::move(resumed);

  EXPECT_EQ(moved.step().loss, second);
  EXPECT_EQ(moved.steps(), 2);
  EXPECT_THROW(moved.load(folder.path() / "nothing"), Error);
}

TEST(Api, AModelContinuesTextAsItsTrainingDoes) {
  const test::TinyRun run;
  const Plan plan = Plan(configuration(run))
                        .with("eval.prompt=the cat ")
                        .with("eval.max_new_tokens=8")
                        .with("eval.temperature=0");
  const files::TempDir folder;
  Training training(plan);
  (void)training.step();

  Model model(training.save(folder.path()));

  EXPECT_EQ("the cat " + model.generate("the cat ", {.max_new_tokens = 8, .temperature = 0}),
            training.sample());
  for (const double value : model.log_probabilities("the cat"))
    EXPECT_LT(value, 0.0);
}

TEST(Api, APlanIsAValue) {
  const test::TinyRun run;
  const Plan plan(configuration(run));

  const Plan shorter = plan.with("trainer.max_steps=2");

  EXPECT_EQ(Training(shorter).max_steps(), 2);
  EXPECT_EQ(Training(plan).max_steps(), 40);
  EXPECT_EQ(Plan(shorter.json()).json(), shorter.json());
  EXPECT_EQ(plan.ranks(), 1);
}

TEST(Api, ErrorsComeBeforeAnythingStarts) {
  const auto error_of = [](auto work) {
    try {
      work();
    } catch (const Error& error) {
      return std::string(name(error.kind())) + ": " + error.text();
    }
    return std::string("no error");
  };
  const test::TinyRun run;
  const std::string of_two_ranks = run.plan({.ranks = 2}).resolved().dump();

  EXPECT_THAT(error_of([] { Plan(R"({"trainer": {"max_step": 1}})", 1, "mine.json"); }),
              HasSubstr("max_steps"));
  EXPECT_THAT(error_of([&] { Training{Plan(of_two_ranks, 2)}; }), HasSubstr("tessera::api::run()"));
  EXPECT_THAT(error_of([] { Plan::of_file("/no/such/file.json"); }),
              HasSubstr("/no/such/file.json"));
  EXPECT_THAT(error_of([] { Model("/no/such/folder"); }), HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace tessera::api
