// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Evaluations let the model answer samples, score the answers, and choose the best weights by them.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/trainer.h"
#include "tessera/tasks/text_scores.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::TinyRun;

/// Every text is answered by one of two words, which a tiny model learns in a few steps.
TinyRun run_of(const std::string& task) {
  TinyRun run;
  std::string lines;
  for (int i = 0; i < 64; ++i) {
    const bool a = i % 2 == 0;
    const std::string text(static_cast<std::size_t>(2 + i % 4), a ? 'a' : 'b');
    lines += task == "sft" ? R"({"prompt": ")" + text + R"(", "completion": ")"
                           : R"({"source": ")" + text + R"(", "target": ")";
    lines += std::string(a ? "x x" : "y y") + "\"}\n";
  }
  const fs::path path = run.folder() / "pairs.jsonl";
  files::write_atomic(path, lines);
  const bool answers = task == "seq2seq";
  run.set("model",
          answers ? R"({"family": "t5", "num_layers": 1, "hidden_size": 32, "num_heads": 2,
                        "dropout": 0.0})"
                  : R"({"num_layers": 1, "hidden_size": 32, "num_heads": 2, "max_positions": 16,
                        "dropout": 0.0})")
      .set("task", "\"" + task + "\"")
      .set("data.train", "\"" + path.string() + "\"")
      .set("data.pack", "false")
      .set("optimizer.params.lr", "1e-2")
      .set("eval.generate", "6")
      .set("eval.max_new_tokens", "8");
  return run;
}

Metrics evaluated(const TinyRun& run, const Layout& layout) {
  Metrics out;
  on_engines(run, layout, [&](Engine& engine) {
    for (int step = 0; step < 3; ++step)
      (void)engine.train_step();
    const Metrics metrics = engine.evaluate().metrics;
    if (engine.world().is_leader()) out = metrics;
  });
  return out;
}

class AnswerScores : public testing::TestWithParam<const char*> {};

TEST_P(AnswerScores, AreMetricsOfAnEvaluationOnAnyRanks) {
  const TinyRun run = run_of(GetParam());
  const Metrics one = evaluated(run, {.ranks = 1, .accumulation = 2});
  for (const std::string_view name : tasks::kTextScores) {
    ASSERT_NE(find_metric(one, name), nullptr) << name;
    EXPECT_EQ(find_metric(one, name)->denominator, 6);
  }
  const double loss = find_metric(one, "loss")->mean;
  EXPECT_EQ(find_metric(one, "perplexity")->mean, std::exp(loss));
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .stage = 3}, {.ranks = 2, .stage = 0}}) {
    EXPECT_EQ(test::bits_of(evaluated(run, layout)), test::bits_of(one)) << layout.stage;
  }
}

TEST_P(AnswerScores, ChooseTheBestWeights) {
  const files::TempDir folder;
  TinyRun run = run_of(GetParam());
  run.set("eval.every", "10").set("eval.best", "\"exact_match\"").set("eval.patience", "8");
  run.set("trainer.max_steps", "600").set("scheduler", R"({"type": "Constant"})");
  run.set("checkpoint.keep", "1");
  std::string early;
  std::optional<BestEvaluation> best;

  on_engines(run, {.ranks = 2, .micro_batch = 4}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder.path());
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), kExitOk);
    if (!engine.world().is_leader()) return;
    early = trainer.early_stop();
    best = engine.evaluator().best();
  });

  // Two words are soon known, and nothing is better than all answers right.
  EXPECT_THAT(early, testing::HasSubstr("without a gain of exact_match; the best, 1.0000"));
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->value, 1.0);
  EXPECT_TRUE(fs::exists(folder.path() / "checkpoints/best"));
}

INSTANTIATE_TEST_SUITE_P(Tasks,
                         AnswerScores,
                         testing::Values("seq2seq", "sft"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Perplexity, CanChooseTheBestWeightsOfALanguageModel) {
  const files::TempDir folder;
  TinyRun run;
  run.set("eval.every", "2").set("eval.best", "\"perplexity\"").set("trainer.max_steps", "4");
  double best = 0, loss = 0;

  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder.path());
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), kExitOk);
    best = engine.evaluator().best()->value;
    loss = trainer.last_eval()->loss;
  });

  EXPECT_EQ(best, std::exp(loss));
}

}  // namespace
}  // namespace tessera::engine
