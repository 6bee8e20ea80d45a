// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Families of decoders train on any ranks as on one: windows, soft caps and
// norms with an offset (Gemma 2), norms of heads (Qwen 3) and of all heads
// together (OLMo 2), and ALiBi (BLOOM), where ranks share layers, tokens and
// samples.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TinyRun run_of(const std::string& family) {
  TinyRun run;
  run.set("model", R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 16})");
  run.set("model.family", "\"" + family + "\"").set("model.attention_dropout", "0.1");
  if (family == "gemma2") run.set("model.sliding_window", "5");
  if (family == "gemma2" || family == "qwen3") run.set("model.num_kv_heads", "2");
  return run;
}

void expect_same_to_the_bit(const TinyRun& run) {
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 4, .pipeline = "2"},
                           {.ranks = 4, .stage = 3},
                           {.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trace other = run.train(layout, 3);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.eval_losses, one.eval_losses);
  }
}

class DecoderLayouts : public testing::TestWithParam<const char*> {};

TEST_P(DecoderLayouts, CutHeadsAndFeatures) {
  expect_same(run_of(GetParam()),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST_P(DecoderLayouts, ShareTokens) {
  expect_same(run_of(GetParam()),
              {{.ranks = 2, .context = 2}, {.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
}

TEST_P(DecoderLayouts, KeepDocumentsApart) {
  TinyRun run = run_of(GetParam());
  run.use_separate_documents();

  expect_same(run, {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
}

TEST_P(DecoderLayouts, TrainThroughAPipelineAndZeroToTheBit) {
  expect_same_to_the_bit(run_of(GetParam()));
}

TEST_P(DecoderLayouts, RecomputeChangesNothing) {
  TinyRun run = run_of(GetParam());
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
  const Trace stored = run.train(layout, 3);
  for (const char* kind : {"full", "selective"}) {
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         DecoderLayouts,
                         testing::Values("gemma2", "qwen3", "olmo2", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera::test
