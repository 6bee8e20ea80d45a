// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Every loss of the task rl, and the mask of truncated completions, for a policy that ends some of
// its completions: the same on any ranks, after stops, and in replays.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gtest/gtest.h>

#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/ledger.h"
#include "tessera/rlhf/replay.h"

namespace tessera::test {
namespace {

constexpr Layout kAlone{.ranks = 1, .accumulation = 4, .stage = 0};

class RlLosses : public ::testing::Test {
 protected:
  /// Fine-tunes a model on answers of which half have fewer than four tokens.
  static void SetUpTestSuite() {
    base_ = new files::TempDir;
    TinyRun run;
    const std::filesystem::path file = run.folder() / "answers.jsonl";
    std::ofstream out(file);
    for (int i = 0; i < 64; ++i)
      out << R"({"prompt": "a", "completion": ")" << (i % 2 == 0 ? "x" : "yyyyyy") << "\"}\n";
    out.close();
    (void)run.set("data.train", "[\"" + file.string() + "\"]")
        .set("data.validation_fraction", "0.1")
        .set("model.dropout", "0")
        .set("task", "\"sft\"")
        .set("optimizer.params.lr", "1e-2")
        .train({.micro_batch = 16, .stage = 0}, 30, base_->path());
  }
  static void TearDownTestSuite() {
    delete base_;
    base_ = nullptr;
  }
  /// Three large updates a rollout, so that ratios differ from 1 and are clipped.
  static TinyRun learning(const std::string& loss, const std::string& more = "") {
    std::string prompts;
    for (int i = 0; i < 12; ++i)
      prompts += "{\"prompt\": \"a\"}\n";
    TinyRun run = reinforcing(
        prompts,
        R"({"rewards": [{"type": "regex", "pattern": "x"}, {"type": "length", "max": 3, "weight": 0.5}],
            "samples": 4, "max_new_tokens": 4, "iterations": 3, "loss": )" +
            loss + more + "}");
    return run.set("model", R"({"from": ")" + base_->path().string() + R"(", "dropout": 0})")
        .set("optimizer.params.lr", "0.02");
  }
  static files::TempDir* base_;
};
files::TempDir* RlLosses::base_ = nullptr;

const char* const kMask = R"(, "truncated": "mask")";

TEST_F(RlLosses, AreTheSameOnAnyRanksAndAfterAnyStop) {
  std::set<std::vector<double>> different;
  for (const char* const loss : {R"({"type": "bnpo"})",
                                 R"({"type": "cispo", "epsilon_high": 1.2})",
                                 R"({"type": "sapo"})",
                                 R"({"type": "luspo", "ratio": "mean"})",
                                 R"({"type": "vespo"})",
                                 R"({"type": "grpo", "ratio": "mean"})"}) {
    SCOPED_TRACE(loss);
    const TinyRun run = learning(loss, kMask);
    const files::TempDir folder;
    const Trace one = train(run,
                            kAlone,
                            {.steps = 5,
                             .run_dir = folder.path(),
                             .root = folder.path() / "checkpoints",
                             .save_at = {2, 3, 4}});
    different.insert(one.grad_norms);

    expect_same_bits(one, train(run, {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = 5}));
    expect_same_bits(one, train(run, {.ranks = 4, .accumulation = 1, .stage = 3}, {.steps = 5}));
    for (const std::filesystem::path& saved : checkpoint::list(folder.path() / "checkpoints")) {
      const Trace after = train(run,
                                {.ranks = 2, .accumulation = 2, .stage = 2},
                                {.steps = 5, .run_dir = folder.path(), .resume = saved});
      EXPECT_EQ(after.digest, one.digest);
      EXPECT_EQ(after.losses.back(), one.losses.back());
    }
    const planner::Plan made = run.plan(kAlone);
    const auto data = engine::open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    std::vector<double> replayed;
    comm::run_threads(1, [&](comm::World& world) {
      rlhf::replay(plan, world, data, folder.path(), 3, [&](const auto& update) {
        replayed.push_back(update.report.loss);
      });
    });
    EXPECT_EQ(replayed, std::vector<double>{one.losses.at(2)});
  }
  EXPECT_EQ(different.size(), 6U);  // no loss is computed as another
}

// A completion without an end leaves the loss, and those that end stay in it.
TEST_F(RlLosses, OfMaskedCompletionsAreThoseOfTheEnded) {
  const files::TempDir kept, masked;
  const char* const loss = R"({"type": "bnpo"})";
  const Trace all = train(learning(loss), kAlone, {.steps = 1, .run_dir = kept.path()}),
              ended = train(learning(loss, kMask), kAlone, {.steps = 1, .run_dir = masked.path()});
  const auto lines = [](const files::TempDir& folder, const char* kind) {
    std::vector<json::Value> out;
    std::ifstream file(folder.path() / "rollouts.jsonl");
    for (std::string line; std::getline(file, line);) {
      json::Value value = json::parse_strict(line, "rollouts.jsonl");
      if (value.find("kind")->as_string() == kind) out.push_back(std::move(value));
    }
    return out;
  };
  const auto completions = lines(masked, "completion"), worths = lines(masked, "worth"),
             all_worths = lines(kept, "worth");
  ASSERT_EQ(completions.size(), 8U);
  ASSERT_EQ(worths.size(), 8U);
  std::int64_t ends = 0, tokens = 0, tokens_of_ended = 0;
  for (std::size_t i = 0; i < worths.size(); ++i) {
    const bool end = completions[i].find("ended")->as_bool();
    EXPECT_EQ(worths[i].find("learned")->as_bool(), end);
    EXPECT_TRUE(all_worths[i].find("learned")->as_bool());
    // The advantages are those of the whole group.
    EXPECT_EQ(worths[i].find("advantages")->dump(), all_worths[i].find("advantages")->dump());
    const auto count = std::ssize(completions[i].find("ids")->items());
    ends += end ? 1 : 0;
    tokens += count;
    tokens_of_ended += end ? count : 0;
  }
  EXPECT_GT(ends, 0);
  EXPECT_LT(ends, 8);
  // The mean over tokens divides by those that are learned.
  EXPECT_LT(tokens_of_ended, tokens);
  EXPECT_NE(all.losses, ended.losses);
  EXPECT_NE(all.grad_norms, ended.grad_norms);
  EXPECT_GT(ended.grad_norms.front(), 0.0);
}

}  // namespace
}  // namespace tessera::test
