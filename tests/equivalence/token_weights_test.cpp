// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Fine-tuning with weights of tokens: the same bits on any number of ranks, and the same losses
// within rounding where ranks share layers or tokens.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TinyRun weighted_tuning(const std::string& weights) {
  TinyRun run;
  const std::filesystem::path file = run.folder() / "records.jsonl";
  std::ofstream out(file);
  for (int i = 0; i < 48; ++i) {
    const std::string word(static_cast<std::size_t>(1 + i % 4), static_cast<char>('a' + i % 5));
    out << R"({"prompt": ")" << word << R"(", "completion": ")" << (i % 2 == 0 ? "yes" : "no")
        << "\"}\n";
  }
  out.close();
  return run.set("data.train", "[\"" + file.string() + "\"]")
      .set("task", R"({"type": "sft", "params": {"token_weights": ")" + weights + "\"}}");
}

TEST(TokenWeights, GiveTheSameBitsInEveryLayout) {
  for (const char* weights : {"probability", "entropy"}) {
    SCOPED_TRACE(weights);
    const TinyRun run = weighted_tuning(weights);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);

    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}})
      expect_same_bits(one, run.train(layout, 4));
    EXPECT_EQ(run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 4).losses, one.losses);
    EXPECT_NE(weighted_tuning("equal").train({.ranks = 1, .accumulation = 4, .stage = 0}, 4).losses,
              one.losses);
  }
}

TEST(TokenWeights, GiveTheSameLossesWhereRanksShareLayersOrTokens) {
  for (const char* weights : {"probability", "entropy"}) {
    const TinyRun run = weighted_tuning(weights);
    const Trace one = run.train({.ranks = 1, .accumulation = 2, .stage = 0}, 4);

    for (const Layout& layout :
         std::vector<Layout>{{.ranks = 2, .accumulation = 2, .tensor = 2},
                             {.ranks = 2, .accumulation = 2, .tensor = 2, .sequence = true},
                             {.ranks = 2, .accumulation = 2, .context = 2}}) {
      SCOPED_TRACE(weights);
      const Trace shared = run.train(layout, 4);
      for (std::size_t step = 0; step < one.losses.size(); ++step)
        EXPECT_NEAR(shared.losses[step], one.losses[step], 2e-5 * one.losses[step]) << step;
    }
  }
}

}  // namespace
}  // namespace tessera::test
