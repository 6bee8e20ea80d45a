// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// An encoder with a decoder trains on any number of ranks as on one: the encoder's output passes
// along the decoder's blocks, and the layers of a stack share one table of distances.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::test {
namespace {

/// Trains on texts of several lengths and their reverse.
TinyRun run_of(const std::string& family) {
  TinyRun run;
  std::string lines;
  for (int i = 0; i < 48; ++i) {
    std::string text;
    for (int t = 0; t < 4 + 3 * i % 11; ++t)
      text += static_cast<char>('a' + (7 * i + 5 * t * t) % 26);
    const std::string source = text;
    std::ranges::reverse(text);
    lines += R"({"source": ")" + source + R"(", "target": ")" + text + "\"}\n";
  }
  const std::filesystem::path path = run.folder() / "pairs.jsonl";
  files::write_atomic(path, lines);
  return run.set("model", R"({"num_layers": 2, "num_decoder_layers": 3, "hidden_size": 24})")
      .set("model.family", "\"" + family + "\"")
      .set("model.num_heads", "4")
      .set("model.head_dim", "8")
      .set("model.dropout", "0.1")
      .set("model.position_buckets", "8")
      .set("model.position_max_distance", "12")
      .set("task", R"({"type": "seq2seq", "params": {"target_length": 12}})")
      .set("data.train", "\"" + path.string() + "\"");
}

/// With five experts in one layer of each stack, whose capacity drops tokens, and noise of routers.
TinyRun switch_run() {
  return run_of("switch_transformers")
      .set("model.moe",
           R"({"num_experts": 5, "expert_capacity": 3, "router": {"jitter": 0.1},
               "losses": {"sequence_balance": 0.02, "z": 0.01}})");
}

class EncoderDecoderLayouts : public testing::TestWithParam<const char*> {};

// The table of distances is used by every layer, token and head, and the terms of its gradient
// cancel (those of one query add up to 0), so that it is small compared with their rounding.
constexpr double kBiasGradient = 2 * kGradient;

TEST_P(EncoderDecoderLayouts, CutHeadsAndFeatures) {
  expect_same(run_of(GetParam()),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 4, .stage = 3, .tensor = 2},
               {.ranks = 4, .accumulation = 2, .pipeline = "2", .tensor = 2}},
              {.gradient = kBiasGradient});
}

TEST_P(EncoderDecoderLayouts, TrainThroughTheSchedulesOfPipelinesToTheBit) {
  const TinyRun run = run_of(GetParam());
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 2);
  for (const char* pipeline : {R"({"size": 2, "schedule": "gpipe"})",
                               R"({"size": 2, "schedule": "zb-h1"})",
                               R"({"size": 2, "schedule": "interleaved", "chunks": 2})"}) {
    SCOPED_TRACE(pipeline);
    const Trace other = run.train({.ranks = 2, .accumulation = 4, .pipeline = pipeline}, 2);

    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
  }
}

TEST(EncoderDecoderLayout, OfSwitchTransformersGivesTheSameBitsHoweverExpertsAreDivided) {
  const TinyRun run = switch_run();
  const auto divided = [&](int experts) {
    return switch_run().set("parallel.expert", std::to_string(experts));
  };
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
  for (const auto& [experts, layout] :
       std::vector<std::pair<int, Layout>>{{1, {.ranks = 2, .accumulation = 2, .stage = 1}},
                                           {2, {.ranks = 2, .accumulation = 2, .stage = 0}},
                                           {2, {.ranks = 4, .stage = 2}},
                                           {4, {.ranks = 4, .stage = 3}}}) {
    SCOPED_TRACE(text_of(layout) + ", experts on " + std::to_string(experts));
    expect_same_bits(one, divided(experts).train(layout, 4));
  }
  TinyRun again = divided(4);
  again.set("activation_checkpointing.granularity", "\"full\"");
  expect_same_bits(one, again.train({.ranks = 4}, 4));
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    const std::string pipeline = R"({"size": 2, "schedule": ")" + std::string(schedule) + "\"}";
    const Trace two = divided(2).train({.ranks = 4, .accumulation = 2, .pipeline = pipeline}, 4);
    EXPECT_EQ(two.losses, one.losses);
    EXPECT_EQ(two.grad_norms, one.grad_norms);
    EXPECT_EQ(two.metrics, one.metrics);
  }
}

// Every key has an effect.
TEST(EncoderDecoderLayout, OfSwitchTransformersDependsOnItsKeys) {
  const Layout layout = {.ranks = 1, .accumulation = 2};
  const Trace one = switch_run().train(layout, 2);
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, const char*>>{{"model.moe.expert_capacity", "0"},
                                                        {"model.moe.router.jitter", "0"},
                                                        {"model.moe.losses.sequence_balance", "0"},
                                                        {"model.moe.losses.z", "0"}}) {
    SCOPED_TRACE(key);
    const Trace other = switch_run().set(key, value).train(layout, 2);
    EXPECT_NE(other.losses, one.losses);
  }
}

TEST(EncoderDecoderLayout, OfSwitchTransformersIsRefusedWhereRanksShareTokens) {
  try {
    (void)switch_run().plan({.ranks = 2, .context = 2});
    ADD_FAILURE() << "nothing is refused";
  } catch (const Error& error) {
    const std::string text = error.text();
    EXPECT_NE(text.find("model.moe.expert_capacity"), std::string::npos) << text;
    EXPECT_NE(text.find("counts whole samples"), std::string::npos) << text;
  }
}

// Without a capacity each rank chooses experts for its own tokens, and the terms of the loss are
// means over all of them.
TEST(EncoderDecoderLayout, OfSwitchTransformersWithoutACapacitySharesTokens) {
  TinyRun run = switch_run();
  run.set("model.moe.expert_capacity", "0").set("model.dropout", "0");
  expect_same(run, {{.ranks = 2, .context = 2}}, {.gradient = kBiasGradient});
}

// The spans that are left out are a function of a sample's number in the run.
TEST(EncoderDecoderLayout, NeverChangesWhichSpansAreLeftOut) {
  TinyRun run = run_of("t5");
  const std::filesystem::path path = run.folder() / "text.txt";
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += static_cast<char>('a' + (i * i + i / 7) % 26);
  files::write_atomic(path, text);
  run.set("model.vocab_size", "320")
      .set("task", R"({"type": "span_corruption", "params": {"sentinel_id": 319}})")
      .set("data.train", "\"" + path.string() + "\"");
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 3);
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 2},
                           {.ranks = 4, .stage = 3},
                           {.ranks = 2, .accumulation = 4, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trace other = run.train(layout, 3);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.eval_losses, one.eval_losses);
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         EncoderDecoderLayouts,
                         testing::Values("t5", "mt5", "switch_transformers"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera::test
