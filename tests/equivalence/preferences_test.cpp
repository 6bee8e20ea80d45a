// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Training on preferences gives the same results on any number of ranks as on one, and continues
// after a stop with its original reference model.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "equivalence/activations.h"
#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

struct Preference {
  const char *task, *params;
  const char* adapter = nullptr;
};

TinyRun preferring(const Preference& preference) {
  const std::string task = preference.task, params = preference.params;
  TinyRun run;
  const std::filesystem::path file = run.folder() / "preferences.jsonl";
  std::ofstream out(file);
  for (int i = 0; i < 40; ++i) {
    const std::string word(static_cast<std::size_t>(1 + i % 3), static_cast<char>('a' + i % 7));
    if (params.find("kto") != std::string::npos) {
      out << R"({"prompt": ")" << word << R"(", "completion": ")" << (i % 2 == 0 ? "y" : "no")
          << R"(", "label": )" << (i % 2 == 0 ? "true" : "false") << "}\n";
    } else {
      out << R"({"prompt": ")" << word << R"(", "chosen": "y", "rejected": "no"})"
          << "\n";
    }
  }
  out.close();
  run.set("data.train", "[\"" + file.string() + "\"]")
      .set("task", R"({"type": ")" + task + R"(", "params": )" + params + "}");
  if (preference.adapter != nullptr) run.set("adapter", preference.adapter);
  return run;
}

// The reference of an adapter is its base.
const Preference kTasks[] = {
    {"reward", R"({"centering": 0.01})"},
    {"reward", R"({"compare": "tokens"})"},
    {"prefer", R"({"loss": {"type": ["sigmoid", "sft"], "weights": [1, 0.1]}})"},
    {"prefer", R"({"loss": {"type": "aot"}})"},
    {"prefer", R"({"method": "orpo"})"},
    {"prefer", R"({"method": "kto"})"},
    {"prefer",
     R"({"loss": {"type": "sigmoid", "beta": 0.5}})",
     R"({"type": "lora", "r": 2, "alpha": 16})"}};

std::string text_of(const Preference& one) {
  return std::string(one.task) + one.params + (one.adapter != nullptr ? one.adapter : "");
}

TEST(Preferences, TrainOnAnyRanksToTheBit) {
  for (const Preference& one_of : kTasks) {
    SCOPED_TRACE(text_of(one_of));
    const TinyRun run = preferring(one_of);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 3);

    expect_same_bits(one, run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 3));
    expect_same_bits(one, run.train({.ranks = 4, .accumulation = 1, .stage = 2}, 3));
    expect_same_bits(one, run.train({.ranks = 2, .accumulation = 2, .stage = 3}, 3));
    EXPECT_EQ(run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3).losses, one.losses);
  }
}

TEST(Preferences, TrainOnRanksThatShareLayers) {
  for (const Preference& one_of : kTasks) {
    SCOPED_TRACE(text_of(one_of));
    expect_same(preferring(one_of),
                {{.ranks = 2, .tensor = 2},
                 {.ranks = 4, .micro_batch = 4, .stage = 0, .tensor = 4, .mode = "2d"}});
  }
}

TEST(Preferences, GoOnWithTheReferenceThatTheyBeganWith) {
  for (const Preference& one_of : kTasks) {
    SCOPED_TRACE(text_of(one_of));
    const TinyRun run = preferring(one_of);
    const Layout layout{.ranks = 2, .accumulation = 2};
    const Trace whole = run.train(layout, 4);
    const files::TempDir saved;

    const Trace before = run.train(layout, 2, saved.path());
    const Trace after =
        run.train({.ranks = 1, .accumulation = 4}, 4, {}, *checkpoint::newest(saved.path()));

    EXPECT_EQ(after.losses, (std::vector<double>{whole.losses[2], whole.losses[3]}));
    EXPECT_EQ(after.digest, whole.digest);
  }
}

TEST(Preferences, NeedTheMemoryThatWasPlanned) {
  for (const Preference& one_of : kTasks) {
    TinyRun run = preferring(one_of);
    run.set("model.max_positions", "128").set("data.sequence_length", "128");
    expect_planned(run, {.micro_batch = 4, .stage = 0}, text_of(one_of));
  }
}

// Else the others would show nothing.
TEST(Preferences, BeginWithTheLossOfAGuessAndLearn) {
  for (const char* const adapter : {"", R"({"type": "lora", "r": 2, "alpha": 16})"}) {
    SCOPED_TRACE(adapter);
    const bool adapts = *adapter != '\0';
    TinyRun run = preferring({"prefer", R"({"loss": {"beta": 0.5}})", adapts ? adapter : nullptr});
    run.set("model.dropout", "0");  // the reference has none
    if (adapts) run.set("optimizer.params.lr", "1e-2");
    const Trace trace = run.train({.ranks = 2, .accumulation = 2}, 12);

    EXPECT_NEAR(trace.losses.front(), std::log(2.0), 1e-12);
    EXPECT_LT(trace.losses.back(), 0.9 * trace.losses.front());
  }
}

}  // namespace
}  // namespace tessera::test
