// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Tokens of steps of reinforcement learning, counted without padding.
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "rlhf/support.h"
#include <gtest/gtest.h>

#include "tessera/config/json.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4, kBatch = 8, kMiniBatches = 2;

/// Tokens that a step learned, and that were generated for it.
using Counts = std::vector<std::pair<std::int64_t, std::int64_t>>;

TinyRun answering() {
  std::string prompts;
  for (int i = 0; i < 16; ++i)  // two rollouts
    prompts += R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
  return reinforcing(prompts,
                     R"({"samples": 2, "max_new_tokens": 4, "mini_batches": 2,
                         "rewards": [{"type": "length", "max": 3}]})");
}

Counts counted(const TinyRun& run, const Layout& layout, const std::filesystem::path& folder) {
  Counts out;
  (void)train(run,
              layout,
              {.steps = kSteps, .run_dir = folder, .see = [&](const engine::StepReport& report) {
                 out.emplace_back(report.batch_tokens, report.generated_tokens);
               }});
  return out;
}

/// Returns the numbers of tokens that the ledger has of these steps.
Counts in_ledger(const std::filesystem::path& file) {
  Counts out(kSteps);
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    const json::Value line = json::parse_strict(text, "ledger");
    if (line.find("kind")->as_string() != "completion") continue;
    const auto rollout = line.find("version")->as_integer().value(),
               update = line.find("number")->as_integer().value() / kBatch;
    const auto prompt = std::ssize(line.find("prompt_ids")->items()),
               ids = std::ssize(line.find("ids")->items());
    out.at(static_cast<std::size_t>(rollout + update)).first += prompt + ids;
    out.at(static_cast<std::size_t>(rollout)).second += ids;
  }
  return out;
}

TEST(RlTokens, AreThoseOfPromptsAndCompletions) {
  const TinyRun run = answering();
  const files::TempDir folder;
  const Counts found = counted(run, {.ranks = 1, .accumulation = 4}, folder.path());

  EXPECT_EQ(found, in_ledger(folder.path() / "rollouts.jsonl"));
  for (std::size_t step = 0; step < found.size(); ++step) {
    EXPECT_GE(found[step].first, 2 * kBatch);  // a token of a prompt, and one of a completion
    EXPECT_LE(found[step].first, kBatch * (3 + 4));
    EXPECT_EQ(found[step].second > 0, step % kMiniBatches == 0);
  }
  EXPECT_EQ(counted(run, {.ranks = 2, .accumulation = 2}, {}), found);
}

}  // namespace
}  // namespace tessera::test
