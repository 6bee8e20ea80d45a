// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Encoders train on any ranks as on one: BERT's, with norms behind its branches, ModernBERT's, with
// local layers, and ViT's, on pictures, where ranks share layers, samples and stages.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/config/json.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// Pictures of two classes: the files of the reader's tests, four times over.
void write_pictures(const fs::path& folder) {
  const fs::path path = fs::path(TESSERA_SOURCE_DIR) / "tests/data/reference_pillow.json";
  const json::Value reference = json::parse_strict(files::read(path), path.string());
  int number = 0;
  for (int round = 0; round < 4; ++round) {
    for (const json::Value& one : reference.find("files")->items()) {
      const fs::path to =
          folder / (number % 3 == 0 ? "one" : "two") / (std::to_string(number) + ".png");
      fs::create_directories(to.parent_path());
      const std::string hex = one.find("file")->as_string();
      std::ofstream file(to, std::ios::binary);
      for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        file.put(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
      ++number;
    }
  }
}

TinyRun run_of(const std::string& family) {
  TinyRun run;
  const std::string sizes =
      R"({"family": ")" + family + R"(", "num_layers": 2, "hidden_size": 32, "num_heads": 4, )";
  if (family == "vit") {
    write_pictures(run.folder() / "pictures");
    run.set("model", sizes + R"("image_size": 8, "patch_size": 4, "dropout": 0.1})");
    run.set("data.train", "\"" + (run.folder() / "pictures").string() + "\"");
    return run.set("task", "\"image_classify\"");
  }
  run.set("model",
          sizes + (family == "modernbert"
                       ? R"("max_positions": 16, "attention_dropout": 0.1, "local_attention": 6})"
                       : R"("max_positions": 16, "dropout": 0.1})"));
  return run.set("task", R"({"type": "masked_lm", "params": {"mask_token_id": 7}})");
}

class EncoderLayouts : public testing::TestWithParam<const char*> {};

TEST_P(EncoderLayouts, CutHeadsAndFeatures) {
  expect_same(run_of(GetParam()),
              {{.ranks = 2, .tensor = 2}, {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST_P(EncoderLayouts, TrainThroughAPipelineAndZeroToTheBit) {
  const TinyRun run = run_of(GetParam());
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 0},
                           {.ranks = 4, .stage = 2},
                           {.ranks = 4, .stage = 3},
                           {.ranks = 2, .accumulation = 4, .pipeline = "2"},
                           {.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trace other = run.train(layout, 3);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.eval_losses, one.eval_losses);
  }
}

TEST_P(EncoderLayouts, RecomputeChangesNothing) {
  TinyRun run = run_of(GetParam());
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
  const Trace stored = run.train(layout, 3);
  for (const char* kind : {"full", "selective"}) {
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         EncoderLayouts,
                         testing::Values("bert", "modernbert", "vit"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera::test
