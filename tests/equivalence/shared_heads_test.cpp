// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Models whose heads share keys and values (grouped queries) train as on one rank where ranks do
// not divide these heads evenly, share tokens, or are in grids of eight. Other layouts:
// family_layouts_test.cpp (rows with num_kv_heads).
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TinyRun grouped(const char* shared = "2") {
  TinyRun run;
  run.set("model.num_kv_heads", shared);
  return run;
}

// Three heads of keys and values, each of two of queries, over 2 ranks.
TEST(SharedHeads, ThatDoNotDivideAreSpread) {
  TinyRun run = grouped("3");
  run.set("model.hidden_size", "48").set("model.num_heads", "6");

  expect_same(run, {{.ranks = 2, .tensor = 2}, {.ranks = 3, .tensor = 3}});
}

// 2 heads of keys and values on 4 ranks, and 1 on 2, 3 and 4: ranks have the same keys and other
// queries. Three queries over two ranks are two and one.
TEST(SharedHeads, AreCopiedWhereRanksAreMore) {
  const std::vector<Layout> layouts = {{.ranks = 4, .tensor = 4},
                                       {.ranks = 4, .tensor = 4, .sequence = true},
                                       {.ranks = 8, .stage = 3, .tensor = 4},
                                       {.ranks = 8, .tensor = 4, .context = 2}};
  expect_same(grouped("2"), layouts);
  expect_same(grouped("1"), layouts);
  expect_same(grouped("1"), {{.ranks = 2, .tensor = 2}, {.ranks = 3, .tensor = 3}});

  TinyRun uneven = grouped("2");
  uneven.set("model.hidden_size", "48").set("model.num_heads", "6");
  expect_same(uneven, {{.ranks = 4, .tensor = 4}});
}

TEST(SharedHeads, AreCopiedWithTheirNorms) {
  for (const char* family : {"\"qwen3\"", "\"olmo2\"", "\"qwen2\""}) {
    TinyRun run;
    run.set("model",
            R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2,
                "max_positions": 16, "attention_dropout": 0.1})")
        .set("model.family", family);
    expect_same(run,
                {{.ranks = 4, .tensor = 4},
                 {.ranks = 4, .tensor = 4, .sequence = true},
                 {.ranks = 8, .accumulation = 2, .stage = 2, .pipeline = "2", .tensor = 4}});
  }
}

TEST(SharedHeads, AreCutOverGridsOfEightRanks) {
  expect_same(grouped(),
              {{.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

// With dropout a ring computes probabilities; without it, the kernel for blocks of keys runs. An
// all-to-all over more ranks than there are heads of keys gives some ranks the same heads.
TEST(SharedHeads, AreKnownToRanksThatShareTokens) {
  for (const char* dropout : {"0", "0.1"}) {
    for (const char* shared : {"1", "2"}) {
      TinyRun run = grouped(shared);
      run.set("model.dropout", dropout);
      expect_same(run,
                  {{.ranks = 2, .context = 2},
                   {.ranks = 2, .context = 2, .context_mode = "ulysses"},
                   {.ranks = 4, .context = 4, .context_mode = "ulysses"}});
    }
  }
  expect_same(grouped(), {{.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
}

// Optimizers that see norms or whole matrices count what ranks share once.
TEST(SharedHeads, AreCountedOnceByOptimizers) {
  for (const char* rule : {"Lamb", "Muon", "Adafactor"}) {
    TinyRun run = grouped();
    const std::string params = rule == std::string("Adafactor") ? "{}" : R"({"lr": 1e-3})";
    run.set("optimizer", R"({"type": ")" + std::string(rule) + R"(", "params": )" + params + "}");
    const Layout layout{.ranks = 4, .tensor = 4};
    expect_close(run.train(one_rank(layout), 10), run.train(layout, 10), kLoss);
  }
}

TEST(SharedHeads, InSixteenBitsStayWithinTheirRounding) {
  TinyRun run = grouped();
  run.set("bf16.enabled", "true").set("model.dropout", "0");

  expect_same(
      run, {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}}, {kNarrowGradient, kNarrowLoss});
}

TEST(SharedHeads, OfCheckpointsAreReadByAnyLayout) {
  expect_checkpoints_read_by_all(grouped(),
                                 {{.ranks = 1, .accumulation = 2, .stage = 0},
                                  {.ranks = 2, .accumulation = 2, .tensor = 2},
                                  {.ranks = 4, .stage = 3, .tensor = 2},
                                  {.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 4}});
}

TEST(SharedHeads, WriteTheSameTextOnAnyRanks) {
  TinyRun run = grouped();
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  EXPECT_EQ(run.sample({.ranks = 2, .tensor = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .pipeline = "2", .tensor = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .tensor = 4}), one);
}

}  // namespace
}  // namespace tessera::test
