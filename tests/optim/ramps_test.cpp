// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/optim/batch_ramp.h"
#include "tessera/optim/decay_ramp.h"
#include "tessera/optim/params.h"

namespace tessera::optim {
namespace {

using testing::HasSubstr;

config::Problems::Problem the_problem(const config::Problems& problems) {
  EXPECT_EQ(problems.list().size(), 1U);
  return problems.empty() ? config::Problems::Problem{} : problems.list().front();
}

struct ReadDecay {
  DecayRamp ramp;
  config::Problems problems;
};

ReadDecay decay(const std::string& text, double weight_decay, std::int64_t max_steps = 0) {
  ReadDecay out;
  config::Origins origins;
  const json::Value value = json::parse(text, "config.json");
  const auto options = read_params<DecayRampOptions>(value, out.problems, origins);
  check_decay_ramp(options, weight_decay, value.place, out.problems);
  out.ramp = {options, weight_decay, max_steps};
  return out;
}

TEST(DecayRamp, ConstantKeepsTheOptimizersWeightDecay) {
  for (const char* text : {"null", "{}", R"({"style": "constant", "start": 0.1, "end": 0.1})"}) {
    const auto made = decay(text, 0.1, 10);

    EXPECT_TRUE(made.problems.empty()) << text;
    EXPECT_DOUBLE_EQ(made.ramp.weight_decay(7), 0.1);
    EXPECT_DOUBLE_EQ(made.ramp.factor(7), 1.0);
  }
  EXPECT_DOUBLE_EQ(decay("{}", 0.0).ramp.factor(7), 1.0);
}

TEST(DecayRamp, LinearAndCosineGoFromStartToEndAndStay) {
  const auto linear = decay(R"({"style": "linear", "start": 0.1, "end": 0.3, "steps": 8})", 0.2);
  const auto cosine = decay(R"({"style": "cosine", "start": 0.1, "end": 0.3})", 0.2, 8);

  for (const DecayRamp& ramp : {linear.ramp, cosine.ramp}) {
    EXPECT_DOUBLE_EQ(ramp.weight_decay(1), 0.1);
    EXPECT_DOUBLE_EQ(ramp.weight_decay(5), 0.2);
    EXPECT_DOUBLE_EQ(ramp.weight_decay(9), 0.3);
    EXPECT_DOUBLE_EQ(ramp.weight_decay(99), 0.3);
    EXPECT_DOUBLE_EQ(ramp.factor(1), 0.5);
    EXPECT_DOUBLE_EQ(ramp.factor(9), 1.5);
  }
  EXPECT_DOUBLE_EQ(linear.ramp.weight_decay(3), 0.15);
  EXPECT_DOUBLE_EQ(cosine.ramp.weight_decay(3), 0.1 + 0.2 * (0.5 - std::sqrt(2.0) / 4));
}

TEST(DecayRamp, WhatDoesNotFitTheOptimizerIsRefused) {
  EXPECT_THAT(the_problem(decay(R"({"end": 0.3})", 0.1).problems).what, HasSubstr("0.1 to 0.3"));
  EXPECT_EQ(the_problem(decay(R"({"style": "linear", "end": 0.3})", 0.0).problems).path, "end");
  EXPECT_EQ(the_problem(decay(R"({"style": "sine"})", 0.1).problems).path, "style");
  EXPECT_EQ(the_problem(decay(R"({"stepps": 3})", 0.1).problems).path, "stepps");
  EXPECT_EQ(the_problem(decay(R"({"steps": 0})", 0.1).problems).path, "steps");
  EXPECT_EQ(the_problem(decay("\n[1]", 0.1).problems).place.line, 2);
}

/// The definition, one update after the other.
std::int64_t consumed_step_by_step(const BatchRamp& ramp, std::int64_t updates) {
  std::int64_t consumed = 0;
  for (std::int64_t update = 1; update <= updates; ++update)
    consumed += ramp.size(consumed);
  return consumed;
}

TEST(BatchRamp, GrowsInEqualPartsOfItsSamples) {
  const BatchRamp ramp({.start = 8, .increment = 4, .samples = 100}, 20);  // 3 parts of 33.3

  EXPECT_EQ(ramp.size(0), 8);
  EXPECT_EQ(ramp.size(33), 8);
  EXPECT_EQ(ramp.size(34), 12);
  EXPECT_EQ(ramp.size(66), 12);
  EXPECT_EQ(ramp.size(67), 16);
  EXPECT_EQ(ramp.size(99), 16);
  EXPECT_EQ(ramp.size(100), 20);
  EXPECT_EQ(ramp.size(1'000'000'000'000), 20);
}

TEST(BatchRamp, KnowsWhatWasConsumedBeforeEveryUpdate) {
  for (const BatchRamp& ramp : {BatchRamp({.start = 8, .increment = 4, .samples = 100}, 20),
                                BatchRamp({.start = 2, .increment = 1, .samples = 9}, 32),
                                BatchRamp({.start = 4, .increment = 28, .samples = 1}, 32),
                                BatchRamp({.start = 16, .increment = 16, .samples = 100000}, 64),
                                BatchRamp({{0, 4}, {60, 8}, {100, 16}}),
                                BatchRamp({{0, 8}, {3, 16}, {5, 24}, {62, 32}}),
                                BatchRamp(12)}) {
    for (const std::int64_t updates : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 50, 3000, 5000}) {
      const std::int64_t consumed = consumed_step_by_step(ramp, updates);
      EXPECT_EQ(ramp.samples_before(updates + 1), consumed);
    }
  }
}

struct ReadBatch {
  std::optional<BatchRamp> ramp;
  config::Problems problems;
};

ReadBatch batch(const std::string& text, std::int64_t global, std::int64_t micro_batches) {
  ReadBatch out;
  out.ramp = read_batch_ramp(
      json::parse(text, "config.json"), "rampup_batch_size", global, micro_batches, out.problems);
  return out;
}

TEST(BatchRamp, IsReadFromThreeNumbers) {
  const auto read = batch("[8, 4, 1e2]", 20, 4);

  EXPECT_TRUE(read.problems.empty());
  ASSERT_TRUE(read.ramp.has_value());
  EXPECT_EQ(read.ramp->size(34), 12);
}

TEST(BatchRamp, IsReadFromSteps) {
  const auto read = batch("[[0, 4], [60, 8], [100, 20]]", 20, 4);

  EXPECT_TRUE(read.problems.empty());
  ASSERT_TRUE(read.ramp.has_value());
  for (const auto& [consumed, size] :
       {std::pair(0, 4), std::pair(59, 4), std::pair(60, 8), std::pair(99, 8), std::pair(100, 20)})
    EXPECT_EQ(read.ramp->size(consumed), size) << consumed;
}

TEST(BatchRamp, WhatCannotBeRunIsRefusedWithItsNumbers) {
  struct Wrong {
    std::string text, what;
  };
  for (const auto& [text, what] :
       {Wrong{"[8, 4]", "three integers"},
        Wrong{"[8, 4, 0]", "three integers"},
        Wrong{"[8, 4, 1.5]", "three integers"},
        Wrong{"[8, 4, 10, 1]", "three integers"},
        Wrong{"8", "three integers"},
        Wrong{"[24, 4, 100]", "start 24 is above"},
        Wrong{"[8, 5, 100]", "20 - 8 = 12"},
        Wrong{"[8, 6, 100]", "batch of 14 is not divisible by 4"},
        Wrong{"[10, 10, 100]", "batch of 10 is not divisible by 4"},
        Wrong{"[[0, 4], [60]]", "steps [samples, size]"},
        Wrong{"[[0, 4], [1.5, 20]]", "steps [samples, size]"},
        Wrong{"[[1, 4], [60, 20]]", "begins at 0 samples"},
        Wrong{"[[0, 4], [0, 20]]", "begins at 0 samples"},
        Wrong{"[[0, 4], [60, 8]]", "train_batch_size is 20"},
        Wrong{"[[0, 6], [60, 20]]", "batch of 6 is not divisible by 4"}}) {
    const auto read = batch("\n" + text, 20, 4);

    EXPECT_FALSE(read.ramp.has_value()) << text;
    const auto problem = the_problem(read.problems);
    EXPECT_EQ(problem.path, "rampup_batch_size");
    EXPECT_EQ(problem.place.line, 2);
    EXPECT_THAT(problem.what, HasSubstr(what));
  }
}

}  // namespace
}  // namespace tessera::optim
