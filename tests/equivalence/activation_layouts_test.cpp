// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The activation memory of a step in each layout, from the ledger, compared with the prediction.
#include <string>
#include <utility>
#include <vector>

#include "equivalence/activations.h"

namespace tessera::test {
namespace {

TinyRun run_of(const std::string& family) {
  TinyRun run;
  const bool grouped = family != "gpt2";
  run.set("model",
          R"({"family": ")" + family + R"(", "num_layers": 4, "hidden_size": 64, "num_heads": 4,
              "max_positions": 128)" +
              (grouped ? R"(, "num_kv_heads": 2, "ffn_hidden_size": 192})" : "}"))
      .set("data.sequence_length", "128");
  return run;
}

const std::vector<std::pair<std::string, Layout>>& layouts() {
  static const std::vector<std::pair<std::string, Layout>> all = {
      {"one rank", {.ranks = 1, .micro_batch = 4, .stage = 0}},
      {"three micro-batches", {.ranks = 1, .accumulation = 3, .micro_batch = 4, .stage = 0}},
      {"two ranks, stage 2", {.ranks = 2, .micro_batch = 4, .stage = 2}},
      {"tensor 2", {.ranks = 2, .micro_batch = 4, .stage = 0, .tensor = 2}},
      {"tensor 2, sequence",
       {.ranks = 2, .micro_batch = 4, .stage = 0, .tensor = 2, .sequence = true}},
      {"2d", {.ranks = 4, .micro_batch = 4, .stage = 0, .tensor = 4, .mode = "2d"}},
      {"2.5d", {.ranks = 8, .micro_batch = 8, .stage = 0, .tensor = 8, .mode = "2.5d", .depth = 2}},
      {"3d", {.ranks = 8, .micro_batch = 8, .stage = 0, .tensor = 8, .mode = "3d"}},
      {"ring", {.ranks = 2, .micro_batch = 4, .stage = 0, .context = 2}},
      {"ulysses",
       {.ranks = 2, .micro_batch = 4, .stage = 0, .context = 2, .context_mode = "ulysses"}},
      {"two stages",
       {.ranks = 2, .accumulation = 4, .micro_batch = 4, .stage = 0, .pipeline = "2"}},
      {"two stages, halves",
       {.ranks = 2,
        .accumulation = 4,
        .micro_batch = 4,
        .stage = 0,
        .pipeline = R"({"size": 2, "schedule": "zb-h1"})"}}};
  return all;
}

void expect_all_planned(const std::string& family) {
  for (const auto& [name, layout] : layouts())
    expect_planned(run_of(family), layout, family + ", " + name);
}

TEST(ActivationLayouts, OfGpt2NeedWhatWasPlanned) {
  expect_all_planned("gpt2");
}

TEST(ActivationLayouts, OfLlamaNeedWhatWasPlanned) {
  expect_all_planned("llama");
}

TEST(ActivationLayouts, NeedWhatWasPlannedWhenTheyRecompute) {
  for (const char* kind : {"full", "selective"}) {
    TinyRun run = run_of("gpt2");
    run.set("activation_checkpointing.granularity", '"' + std::string(kind) + '"');
    expect_planned(run, {.ranks = 1, .micro_batch = 4, .stage = 0}, kind);
  }
  TinyRun some = run_of("gpt2");
  some.set("activation_checkpointing.granularity", "\"full\"")
      .set("activation_checkpointing.every_n", "2");
  expect_planned(some, {.ranks = 1, .micro_batch = 4, .stage = 0}, "every second layer");
}

TEST(ActivationLayouts, NeedWhatWasPlannedInBf16) {
  TinyRun run = run_of("gpt2");
  run.set("bf16.enabled", "true");
  expect_planned(run, {.ranks = 1, .micro_batch = 4, .stage = 0}, "bf16");
}

}  // namespace
}  // namespace tessera::test
