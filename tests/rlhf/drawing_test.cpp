// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Completions of prompts of unequal lengths, generated together, are those of each prompt alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/engine/batches.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/ops/op_log.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/completions.h"

namespace tessera::test::drawing {
namespace {

using rlhf::Completion;
using rlhf::Draw;
using rlhf::SamplingOptions;
using Prompt = std::vector<std::int32_t>;

constexpr std::int32_t kEnd = 5;
constexpr std::int64_t kMost = 21;  // more than a page of the cache

/// The vocabulary is small, so that completions end early and late.
SamplingOptions sampling() {
  return {.max_new_tokens = kMost,
          .distribution = {.temperature = 1.3},
          .ends = {kEnd},
          .vocabulary = 20};
}

/// Prompts whose lengths are below, at and above whole pages.
std::vector<Prompt> prompts() {
  std::vector<Prompt> out;
  for (const std::size_t length : {3, 16, 17, 1, 15, 32, 3}) {
    out.emplace_back();
    for (std::size_t i = 0; i < length; ++i)
      out.back().push_back(static_cast<std::int32_t>((7 * i + 11 * out.size()) % 20));
  }
  return out;
}

/// Three completions of each prompt.
std::vector<Draw> draws_of(const std::vector<Prompt>& prompts) {
  std::vector<Draw> out;
  for (const Prompt& prompt : prompts) {
    for (int s = 0; s < 3; ++s)
      out.push_back({prompt, 1000 + out.size()});
  }
  return out;
}

/// A policy with its initial weights.
void with_policy(bool bf16, const std::function<void(engine::TrainState&)>& fn) {
  engine::prepare_process(1);
  TinyRun run = reinforcing(
      "{\"prompt\": \"a\"}\n",
      R"({"samples": 8, "max_new_tokens": 8, "rewards": [{"type": "length", "max": 3}]})");
  run.set("model.max_positions", "64")
      .set("data.sequence_length", "64")
      .set("bf16.enabled", bf16 ? "true" : "false");
  const planner::Plan made = run.plan({.accumulation = 4});
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    fn(engine.state());
  });
}

/// The completion of one prompt without any cache: each token from a forward of the whole text.
Completion alone(engine::TrainState& state, const Draw& draw, const SamplingOptions& options) {
  Completion out;
  Prompt ids(draw.prompt.begin(), draw.prompt.end());
  while (!out.ended && std::ssize(out.ids) < options.max_new_tokens) {
    nn::StepContext context(nn::Mode::Prefill, 0);
    context.cache_capacity = std::ssize(ids);
    const nn::Outcome made = state.executor().infer(engine::prompt_batch(ids), context);
    const nn::NextDistributions next(
        made.outputs.at("logits").select(1, -1).to(at::kFloat).contiguous(), options.distribution);
    const std::int64_t id = next.draw(0, options.vocabulary, draw.seed, std::ssize(out.ids));
    ids.push_back(static_cast<std::int32_t>(id));
    out.ids.push_back(static_cast<std::int32_t>(id));
    out.log_probabilities.push_back(next.log_probability(0, id));
    out.entropy += next.entropy(0);
    out.ended = std::ranges::find(options.ends, id) != options.ends.end();
  }
  return out;
}

std::vector<Completion> each_alone(engine::TrainState& state,
                                   const std::vector<Draw>& draws,
                                   const SamplingOptions& options) {
  std::vector<Completion> out;
  for (const Draw& draw : draws)
    out.push_back(alone(state, draw, options));
  return out;
}

void expect_same(const std::vector<Completion>& made, const std::vector<Completion>& expected) {
  ASSERT_EQ(made.size(), expected.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].ids, expected[i].ids) << i;
    EXPECT_EQ(made[i].log_probabilities, expected[i].log_probabilities) << i;
    EXPECT_EQ(made[i].entropy, expected[i].entropy) << i;
    EXPECT_EQ(made[i].ended, expected[i].ended) << i;
  }
}

TEST(RlDrawing, PromptsOfUnequalLengthAreAnsweredAsAlone) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16 ? "bf16" : "fp32");
    with_policy(bf16, [](engine::TrainState& state) {
      const ops::BatchInvariance exact;
      const std::vector<Prompt> of = prompts();
      const std::vector<Draw> draws = draws_of(of);
      SamplingOptions options = sampling();
      const std::vector<Completion> expected = each_alone(state, draws, options);
      // The test has completions that end at once, later, and never.
      std::vector<std::size_t> lengths;
      for (const Completion& one : expected)
        lengths.push_back(one.ids.size());
      EXPECT_THAT(lengths, testing::Contains(testing::Lt(4)));
      EXPECT_TRUE(std::ranges::any_of(expected, [](const auto& one) { return !one.ended; }));

      for (const std::int64_t rows : {0, 1, 4, 11}) {
        options.rows = rows;
        expect_same(rlhf::draw_together(state.executor(), state.world(), draws, options, {}),
                    expected);
      }
      std::vector<Draw> backwards(draws.rbegin(), draws.rend());
      std::vector<Completion> made =
          rlhf::draw_together(state.executor(), state.world(), backwards, options, {});
      std::ranges::reverse(made);
      expect_same(made, expected);
    });
  }
}

TEST(RlDrawing, ASupportIsThatOfEachPromptAlone) {
  with_policy(false, [](engine::TrainState& state) {
    const ops::BatchInvariance exact;
    const std::vector<Prompt> of = prompts();
    const std::vector<Draw> draws = draws_of(of);
    for (const ops::Support& support :
         {ops::Support{.top_k = 4}, ops::Support{.top_p = 0.3}, ops::Support{.top_k = 1}}) {
      SamplingOptions options = sampling();
      options.distribution.support = support;
      options.vocabulary = 256;
      options.rows = 5;
      const std::vector<Completion> made =
          rlhf::draw_together(state.executor(), state.world(), draws, options, {});
      expect_same(made, each_alone(state, draws, options));
      if (support.top_k != 1) continue;
      for (const Completion& one : made)
        EXPECT_EQ(one.entropy, 0.0);  // the only token that may be drawn
    }
  });
}

// The usual kernels compute a product in another order for another number of rows.
TEST(RlDrawing, TheUsualKernelsDrawTheSameTokens) {
  with_policy(false, [](engine::TrainState& state) {
    const std::vector<Prompt> of = prompts();
    const std::vector<Draw> draws = draws_of(of);
    SamplingOptions options = sampling();
    options.rows = 10;
    const std::vector<Completion> made = rlhf::draw_together(
                                      state.executor(), state.world(), draws, options, {}),
                                  expected = each_alone(state, draws, options);
    for (std::size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(made[i].ids, expected[i].ids);
      for (std::size_t t = 0; t < made[i].ids.size(); ++t)
        EXPECT_NEAR(made[i].log_probabilities[t], expected[i].log_probabilities[t], 1e-5);
    }
  });
}

/// The number of forwards of one token that completions of these lengths take with so many rows, if
/// each that ends makes room for the next one.
std::int64_t steps_of(const std::vector<Completion>& made, std::size_t rows) {
  std::vector<std::size_t> left;
  std::int64_t steps = 0;
  for (std::size_t next = 0;;) {
    for (; next < made.size() && left.size() < rows; ++next) {
      if (made[next].ids.size() > 1) left.push_back(made[next].ids.size() - 1);
    }
    if (left.empty()) return steps;
    ++steps;
    for (std::size_t& one : left)
      --one;
    std::erase(left, 0U);
  }
}

TEST(RlDrawing, ACompletionThatEndsMakesRoom) {
  with_policy(false, [](engine::TrainState& state) {
    const std::vector<Prompt> of = prompts();
    const std::vector<Draw> draws = draws_of(of);
    SamplingOptions options = sampling();
    options.rows = 4;
    std::int64_t forwards = 0;
    std::vector<Completion> made;
    {
      const ops::OpLog log;
      made = rlhf::draw_together(state.executor(), state.world(), draws, options, {});
      for (const ops::OpRow& row : log.rows()) {
        if (row.shape.find("pages") != std::string::npos) forwards += row.calls;
      }
    }
    constexpr std::int64_t layers = 2;  // of TinyRun
    EXPECT_EQ(forwards, layers * steps_of(made, 4));
    EXPECT_LT(forwards, layers * kMost * 6);  // six times four rows one after the other
  });
}

TEST(RlDrawing, ACacheOfFewerBitsIsNearTheOther) {
  with_policy(false, [](engine::TrainState& state) {
    const std::vector<Prompt> of = prompts();
    const std::vector<Draw> draws = draws_of(of);
    SamplingOptions options = sampling();
    const std::vector<Completion> expected =
        rlhf::draw_together(state.executor(), state.world(), draws, options, {});
    for (const nn::CacheForm form : {nn::CacheForm::BF16, nn::CacheForm::Int8}) {
      options.cache = form;
      const std::vector<Completion> made =
          rlhf::draw_together(state.executor(), state.world(), draws, options, {});
      double largest = 0;
      for (std::size_t i = 0; i < made.size(); ++i) {
        // Until a token is another one.
        for (std::size_t t = 0; t < std::min(made[i].ids.size(), expected[i].ids.size()) &&
                                made[i].ids[t] == expected[i].ids[t];
             ++t)
          largest = std::max(
              largest, std::abs(made[i].log_probabilities[t] - expected[i].log_probabilities[t]));
      }
      EXPECT_GT(largest, 0.0);
      EXPECT_LT(largest, 0.02);
    }
  });
}

}  // namespace
}  // namespace tessera::test::drawing
