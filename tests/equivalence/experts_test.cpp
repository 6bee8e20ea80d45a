// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// A decoder with experts: the same bits however its experts are divided among ranks.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/one_expert.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/layout.h"

namespace tessera::test {
namespace {

/// Two layers with five experts, of which a token uses two, and all terms that balance them.
TinyRun sparse_run(const std::string& moe = R"({"num_experts": 5, "top_k": 2, "ffn_hidden_size": 24,
    "losses": {"balance": 0.02, "sequence_balance": 0.01, "z": 0.001}})") {
  TinyRun run;
  run.set("model",
          R"({"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 4,
              "num_kv_heads": 2, "ffn_hidden_size": 48, "max_positions": 16, "moe": )" +
              moe + "}");
  return run;
}

TinyRun divided(TinyRun run, int ranks) {
  return run.set("parallel.expert", std::to_string(ranks));
}

/// How experts are divided in a layout.
struct Division {
  int experts = 1;
  Layout layout;
};

void expect_bits_of_one_rank(const TinyRun& run,
                             const std::vector<Division>& divisions,
                             std::int64_t steps = 4) {
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, steps);
  ASSERT_GT(one.grad_norms.back(), 0.0);
  for (const auto& [experts, layout] : divisions) {
    SCOPED_TRACE(std::to_string(layout.ranks) + " ranks, experts on " + std::to_string(experts) +
                 ", stage " + std::to_string(layout.stage));
    expect_same_bits(one, divided(run, experts).train(layout, steps));
  }
}

const std::vector<Division> kDivisions = {{1, {.ranks = 2, .accumulation = 2, .stage = 1}},
                                          {2, {.ranks = 2, .accumulation = 2, .stage = 0}},
                                          {2, {.ranks = 4, .stage = 2}},
                                          {4, {.ranks = 4, .stage = 3}}};

TEST(Experts, GiveTheSameBitsHoweverTheyAreDivided) {
  for (const char* bf16 : {"false", "true"}) {
    SCOPED_TRACE(bf16);
    expect_bits_of_one_rank(sparse_run().set("bf16.enabled", bf16), kDivisions);
  }
}

TEST(Experts, GiveTheSameBitsWithOneChoiceWithAllAndWithOneExpertForAll) {
  for (const char* moe : {R"({"num_experts": 4, "top_k": 1, "ffn_hidden_size": 24})",
                          R"({"num_experts": 4, "top_k": 4, "ffn_hidden_size": 24})",
                          R"({"num_experts": 6, "top_k": 2, "first_dense": 1, "shared": 1,
                              "shared_gate": true, "router": {"score": "sigmoid", "groups": 3,
                              "top_groups": 2, "correction": true, "scale": 1.5}})",
                          R"({"num_experts": 4, "top_k": 1, "ffn_hidden_size": 24,
                              "router": {"choice": "sinkhorn", "score": "sigmoid",
                              "normalize": false}, "losses": {"balance": 0}})"}) {
    SCOPED_TRACE(moe);
    expect_bits_of_one_rank(
        sparse_run(moe),
        {{2, {.ranks = 2, .accumulation = 2, .stage = 2}}, {4, {.ranks = 4, .stage = 3}}});
  }
  const TinyRun all_to_one = run_with_one_expert();
  // Four sources send their tokens to one owner, in two rounds.
  expect_bits_of_one_rank(
      all_to_one,
      {{2, {.ranks = 2, .accumulation = 2, .stage = 2}}, {4, {.ranks = 4, .stage = 3}}},
      2);
  TinyRun again = all_to_one;
  again.set("activation_checkpointing.granularity", "\"full\"");
  expect_bits_of_one_rank(again, {{4, {.ranks = 4}}}, 2);
}

// Schedules that put off the gradients of weights run the later rounds once more for them.
TEST(Experts, GiveTheSameBitsInSeveralRoundsOfAPipeline) {
  const TinyRun all_to_one = run_with_one_expert();
  const Trace one = all_to_one.train({.ranks = 1, .accumulation = 4}, 2);
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    const std::string pipeline = R"({"size": 2, "schedule": ")" + std::string(schedule) + "\"}";
    const Trace two = divided(all_to_one, 4).train({.ranks = 8, .pipeline = pipeline}, 2);
    EXPECT_EQ(two.losses, one.losses);
    EXPECT_EQ(two.grad_norms, one.grad_norms);
    EXPECT_EQ(two.metrics, one.metrics);
  }
}

TEST(Experts, HaveTheGradientOfOneRankAndCheckpointsThatEveryDivisionReads) {
  const TinyRun run = sparse_run();
  const Trace whole = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
  const std::vector<Division> divisions = {{1, {.ranks = 1, .accumulation = 4, .stage = 0}},
                                           {2, {.ranks = 2, .accumulation = 2, .stage = 1}},
                                           {2, {.ranks = 4, .stage = 3}},
                                           {4, {.ranks = 4, .stage = 2}}};
  const auto gradient = run.first_gradient({.ranks = 1, .accumulation = 4});
  // The norm counts an expert once: the first moments are 0.1 of the gradient.
  TinyRun unclipped = sparse_run();
  unclipped.set("gradient_clipping", "0");
  double squares = 0;
  for (const auto& [name, values] : unclipped.first_gradient({.ranks = 1, .accumulation = 4})) {
    for (const float value : values)
      squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(0.1 * whole.grad_norms.front() / std::sqrt(squares), 1.0, 1e-5);
  for (const auto& [experts, layout] : divisions) {
    SCOPED_TRACE(std::to_string(layout.ranks) + " ranks, experts on " + std::to_string(experts));
    EXPECT_EQ(divided(run, experts).first_gradient(layout), gradient)
        << "the sum over all ranks, divided by the denominators of the whole batch";
    const files::TempDir folder;
    (void)divided(run, experts).train(layout, 2, folder.path());
    for (const auto& [other, into] : divisions) {
      SCOPED_TRACE("read by " + std::to_string(into.ranks) + " ranks, experts on " +
                   std::to_string(other));
      const Trace resumed =
          divided(run, other).train(into, 4, {}, *checkpoint::newest(folder.path()));
      EXPECT_EQ(resumed.digest, whole.digest);
    }
  }
}

TEST(Experts, GiveTheSameBitsWhereRanksHaveNoSamplesOrBlocksRunAgain) {
  TinyRun padded = sparse_run();
  padded.use_padded_documents();
  expect_bits_of_one_rank(padded, kDivisions, 7);
  TinyRun again = sparse_run();
  again.set("activation_checkpointing.granularity", "\"full\"");
  expect_bits_of_one_rank(again, {{4, {.ranks = 4, .stage = 3}}});
}

/// Experts in attention too.
TinyRun jetmoe_run() {
  TinyRun run;
  run.set("model",
          R"({"family": "jetmoe", "num_layers": 2, "hidden_size": 32, "num_heads": 4,
              "num_kv_heads": 2, "ffn_hidden_size": 24, "max_positions": 16,
              "moe": {"num_experts": 5, "losses": {"balance": 0.02}}})");
  return run;
}

TEST(Experts, InAttentionGiveTheSameBitsToo) {
  TinyRun run = jetmoe_run();
  expect_bits_of_one_rank(run, kDivisions);
  run.use_padded_documents();
  expect_bits_of_one_rank(run, {{4, {.ranks = 4, .stage = 3}}}, 7);
}

// All tokens to the first two of five experts, in attention too: more than the rows of a round.
TEST(Experts, InAttentionGiveTheSameBitsInSeveralRounds) {
  TinyRun run = jetmoe_run();
  run.set("optimizer.groups", R"([{"pattern": "gate.weight", "frozen": true}])")
      .use_model(two_experts_of_jetmoe);
  expect_bits_of_one_rank(
      run, {{2, {.ranks = 2, .accumulation = 2, .stage = 2}}, {4, {.ranks = 4, .stage = 3}}}, 2);
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 2);
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    const std::string pipeline = R"({"size": 2, "schedule": ")" + std::string(schedule) + "\"}";
    const Trace two = divided(run, 4).train({.ranks = 8, .pipeline = pipeline}, 2);
    EXPECT_EQ(two.losses, one.losses);
    EXPECT_EQ(two.grad_norms, one.grad_norms);
    EXPECT_EQ(two.metrics, one.metrics);
  }
}

TEST(Experts, InAttentionAreDividedOverTensorParallelRanksWithinRounding) {
  for (const auto& [experts, layout] :
       std::vector<Division>{{2, {.ranks = 2, .tensor = 2}},
                             {4, {.ranks = 4, .stage = 2, .tensor = 2}},
                             {4, {.ranks = 4, .tensor = 2, .context = 2}}}) {
    SCOPED_TRACE(text_of(layout));
    const TinyRun run = divided(jetmoe_run(), experts);
    EXPECT_TRUE(run.plan(layout).layout().experts_over_tensor);
    expect_close(jetmoe_run().train(one_rank(layout), 5), run.train(layout, 5), kLoss);
    expect_close(
        jetmoe_run().first_gradient(one_rank(layout)), run.first_gradient(layout), kGradient);
  }
}

TEST(Experts, GiveTheSameBitsInAPipeline) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    const std::string pipeline = R"({"size": 2, "schedule": ")" + std::string(schedule) + "\"}";
    const TinyRun run = sparse_run();
    const Trace one = run.train({.ranks = 1, .accumulation = 4}, 4);
    const Trace two =
        divided(run, 2).train({.ranks = 4, .accumulation = 2, .pipeline = pipeline}, 4);
    EXPECT_EQ(two.losses, one.losses);
    EXPECT_EQ(two.grad_norms, one.grad_norms);
    EXPECT_EQ(two.metrics, one.metrics);
  }
}

TEST(Experts, BalanceOverAllLayersAsOneTerm) {
  const TinyRun run = sparse_run(R"({"num_experts": 4, "top_k": 2, "every": 2,
      "losses": {"balance": 0.05, "pooled_layers": true, "per_choice": false}})");
  expect_bits_of_one_rank(run, {{2, {.ranks = 2, .accumulation = 2}}});
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 4);
  const Trace two = divided(run, 2).train({.ranks = 4, .accumulation = 2, .pipeline = "2"}, 4);
  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.grad_norms, one.grad_norms);
}

TEST(Experts, AreCorrectedByCountsInEveryLayout) {
  for (const char* bf16 : {"false", "true"}) {
    SCOPED_TRACE(bf16);
    TinyRun run = sparse_run(R"({"num_experts": 5, "top_k": 2, "router": {"score": "sigmoid",
        "bias_update": 0.01}, "losses": {"balance": 0}})");
    run.set("bf16.enabled", bf16);
    expect_bits_of_one_rank(run, kDivisions);
    const files::TempDir folder;
    (void)divided(run, 2).train({.ranks = 2, .accumulation = 2, .stage = 1}, 2, folder.path());
    const Trace whole = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
    const Trace resumed =
        divided(run, 4).train({.ranks = 4, .stage = 3}, 4, {}, *checkpoint::newest(folder.path()));
    EXPECT_EQ(resumed.digest, whole.digest);
  }
}

TEST(Experts, DropTheSameTokensInEveryLayout) {
  for (const char* drop : {"position", "choice", "probability"}) {
    SCOPED_TRACE(drop);
    const TinyRun run = sparse_run(R"({"num_experts": 5, "top_k": 2, "capacity": 0.8, "drop": ")" +
                                   std::string(drop) + "\"}");
    expect_bits_of_one_rank(run, {{2, {.ranks = 2, .accumulation = 2}}, {4, {.ranks = 4}}});
  }
}

TEST(Experts, WorkWithTensorAndContextParallelismWithinRounding) {
  expect_same(sparse_run(), {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
  // Sinkhorn's scaling counts the tokens of all ranks that share a sample.
  expect_same(sparse_run(R"({"num_experts": 4, "top_k": 2, "ffn_hidden_size": 24,
                             "router": {"choice": "sinkhorn", "normalize": false}})"),
              {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 4, .tensor = 2}, {.ranks = 4, .context = 2}}) {
    SCOPED_TRACE(text_of(layout));
    expect_close(
        sparse_run().train(one_rank(layout), 5), divided(sparse_run(), 2).train(layout, 5), kLoss);
  }
}

// Of each expert, and of the stacked matrices of all experts.
TEST(Experts, HaveAdaptersWithTheSameBitsInEveryLayout) {
  const std::string split = R"("targets": ["q_proj", "gate_proj", "up_proj", "down_proj"])",
                    stacked = R"("targets": ["v_proj"],
                                 "target_parameters": ["gate_up_proj", "experts.down_proj"])";
  const auto adapted = [](const std::string& more) {
    return sparse_run().set("adapter", R"({"type": "lora", "r": 2, "alpha": 8, )" + more + "}");
  };
  for (const std::string& targets : {split, stacked}) {
    SCOPED_TRACE(targets);
    const Layout one = {.ranks = 1, .accumulation = 4};
    const Trace trained = adapted(targets).train(one, 3),
                still = adapted(targets).set("optimizer.params.lr", "0.0").train(one, 3);
    EXPECT_EQ(trained.losses.front(), still.losses.front());
    EXPECT_NE(trained.losses.back(), still.losses.back());
    expect_bits_of_one_rank(adapted(targets), kDivisions);
  }
  for (const char* const packing : {"nf4", "int8"}) {
    SCOPED_TRACE(packing);
    const TinyRun run = adapted(split + R"(, "quantize_base": ")" + packing + "\"");
    expect_bits_of_one_rank(run, kDivisions);
    EXPECT_NE(run.train({}, 2).losses, adapted(split).train({}, 2).losses) << "nothing is packed";
  }
}

// Each token is computed once, by the owner of its expert.
TEST(Experts, SpreadOverContextAndTensorParallelismWithinRounding) {
  struct Spread {
    int experts, split;
    Layout layout;
  };
  for (const auto& [experts, split, layout] :
       std::vector<Spread>{{2, 1, {.ranks = 2, .context = 2}},
                           {4, 1, {.ranks = 4, .stage = 3, .context = 2}},
                           {2, 1, {.ranks = 2, .tensor = 2}},
                           {4, 1, {.ranks = 4, .stage = 2, .tensor = 2}},
                           {4, 1, {.ranks = 4, .tensor = 2, .context = 2}},
                           {1, 2, {.ranks = 2, .tensor = 2}},
                           {2, 2, {.ranks = 4, .stage = 3, .tensor = 2}}}) {
    SCOPED_TRACE(text_of(layout) + ", experts on " + std::to_string(experts) + ", split over " +
                 std::to_string(split));
    TinyRun run = divided(sparse_run(), experts);
    run.set("parallel.expert_tensor", std::to_string(split));
    expect_close(sparse_run().train(one_rank(layout), 5), run.train(layout, 5), kLoss);
    expect_close(
        sparse_run().first_gradient(one_rank(layout)), run.first_gradient(layout), kGradient);
  }
}

// Experts with biases and a clamped activation.
TEST(Experts, OfGptOssAreSplitWithinRounding) {
  TinyRun run = sparse_run(R"({"num_experts": 4, "top_k": 2, "ffn_hidden_size": 24})");
  run.set("model.family", "\"gpt_oss\"");
  const Layout layout = {.ranks = 2, .tensor = 2};
  const Trace one = run.train(one_rank(layout), 5);
  TinyRun split = run;
  split.set("parallel.expert_tensor", "2");
  expect_close(one, split.train(layout, 5), kLoss);
  expect_close(one, divided(run, 2).train(layout, 5), kLoss);
}

TEST(Experts, AreRefusedWhereALayoutCannotHaveThem) {
  TinyRun dropping = sparse_run();
  dropping.set("adapter", R"({"type": "lora", "targets": ["up_proj"], "dropout": 0.1})");
  EXPECT_THROW((void)dropping.plan({}), Error) << "adapters of experts have no dropout";
  EXPECT_THROW((void)divided(TinyRun(), 2).plan({.ranks = 2}), Error) << "no experts";
  EXPECT_THROW((void)divided(sparse_run(), 3).plan({.ranks = 4}), Error) << "3 does not divide 4";
  EXPECT_THROW((void)divided(sparse_run(), 8).plan({.ranks = 8}), Error) << "5 experts";
  EXPECT_THROW((void)sparse_run().plan({.ranks = 2, .tensor = 2, .sequence = true}), Error);
  EXPECT_THROW((void)sparse_run(R"({"num_experts": 4, "top_k": 5})").plan({}), Error);
  EXPECT_THROW(
      (void)sparse_run(R"({"num_experts": 4, "capacity": 1.0})").plan({.ranks = 2, .context = 2}),
      Error);
}

}  // namespace
}  // namespace tessera::test
