// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Samples of several documents, of other lengths in every sample, that do not see each other: they
// train on any ranks as on one.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TinyRun separate(const char* dropout = "0.1") {
  TinyRun run;
  run.use_separate_documents().set("model.dropout", dropout);
  return run;
}

// Else the other tests would show nothing.
TEST(PackedDocuments, ThatDoNotSeeEachOtherHaveAnotherLoss) {
  TinyRun joined = separate();
  joined.set("data.separate_documents", "false");

  EXPECT_NE(separate().train({.ranks = 1}, 1).losses, joined.train({.ranks = 1}, 1).losses);
}

// Documents extend over chunks of several ranks, lie within one, and begin with one. With dropout a
// ring computes probabilities; without it, the kernel for blocks of keys runs.
TEST(PackedDocuments, AreSharedByRanksThatShareTokens) {
  for (const char* dropout : {"0", "0.1"}) {
    for (const char* mode : {"ring", "ulysses"}) {
      expect_same(
          separate(dropout),
          {{.ranks = 2, .context = 2, .context_mode = mode},
           {.ranks = 4, .context = 4, .context_mode = mode},
           {.ranks = 4, .accumulation = 2, .stage = 2, .context = 2, .context_mode = mode},
           {.ranks = 4, .tensor = 2, .sequence = true, .context = 2, .context_mode = mode}});
    }
  }
}

TEST(PackedDocuments, AreReadByRanksThatShareLayers) {
  expect_same(separate(),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(PackedDocuments, TrainThroughAPipelineAndZeroToTheBit) {
  const TinyRun run = separate();
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);

  EXPECT_EQ(run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3).losses, one.losses);
  EXPECT_EQ(run.train({.ranks = 4, .stage = 3}, 3).losses, one.losses);
}

TEST(PackedDocuments, InSixteenBitsStayWithinTheirRounding) {
  TinyRun run = separate("0");
  run.set("bf16.enabled", "true");

  expect_same(run,
              {{.ranks = 2, .context = 2},
               {.ranks = 2, .context = 2, .context_mode = "ulysses"},
               {.ranks = 2, .tensor = 2}},
              {kNarrowGradient, kNarrowLoss});
}

TEST(PackedDocuments, RecomputeChangesNothing) {
  TinyRun run = separate();
  const Trace plain = run.train({.ranks = 2, .context = 2}, 3);
  for (const char* granularity : {"selective", "full"}) {
    run.set("activation_checkpointing.granularity", '"' + std::string(granularity) + '"');
    EXPECT_EQ(run.train({.ranks = 2, .context = 2}, 3).digest, plain.digest) << granularity;
  }
}

}  // namespace
}  // namespace tessera::test
