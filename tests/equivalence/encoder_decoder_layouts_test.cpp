// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// An encoder with a decoder trains on any number of ranks as on one: the encoder's output passes
// along the decoder's blocks, and the layers of a stack share one table of distances.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

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
                         testing::Values("t5", "mt5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera::test
