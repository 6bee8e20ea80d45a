// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Noise on embeddings (NEFTune) is a function of sample and position: the same on any number of
// ranks and after a resume.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

TinyRun tuning(const std::string& alpha) {
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
      .set("task", R"({"type": "sft", "params": {"neftune_alpha": )" + alpha + "}}");
}

TEST(EmbeddingNoise, GivesTheSameBitsInEveryLayout) {
  const TinyRun run = tuning("5.0");
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);

  for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                                                  {.ranks = 4, .accumulation = 1, .stage = 2},
                                                  {.ranks = 4, .accumulation = 1, .stage = 3}}) {
    SCOPED_TRACE(layout.ranks);
    expect_same_bits(one, run.train(layout, 4));
  }
  EXPECT_EQ(run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 4).losses, one.losses);
  EXPECT_NE(tuning("0.0").train({.ranks = 1, .accumulation = 4, .stage = 0}, 4).losses, one.losses);
}

TEST(EmbeddingNoise, ResumesAndRecomputesToTheBit) {
  TinyRun run = tuning("5.0");
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 1};
  const Trace undisturbed = run.train(layout, 4);
  const files::TempDir saved;
  (void)run.train(layout, 2, saved.path());

  const Trace resumed = run.train(
      {.ranks = 1, .accumulation = 4, .stage = 0}, 4, {}, *checkpoint::newest(saved.path()));

  EXPECT_EQ(resumed.digest, undisturbed.digest);
  run.set("activation_checkpointing.granularity", "\"full\"");
  expect_same_bits(undisturbed, run.train(layout, 4));
}

}  // namespace
}  // namespace tessera::test
