// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Adapters train on any number of ranks as on one, and frozen parameters stay unchanged.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

/// All layers, with dropout in the model and before the adapters.
TinyRun run_of(const std::string& type, const std::string& more = "") {
  TinyRun run;
  return run.set("adapter",
                 R"({"type": ")" + type + R"(", "r": 2, "alpha": 8, "dropout": 0.1)" + more + "}");
}

TEST(Adapters, AreAllThatIsTrained) {
  std::vector<std::string> names;
  for (const auto& [name, values] :
       run_of("lora", R"(, "targets": ["c_attn", "wte"])").first_gradient({}))
    names.push_back(name);

  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("transformer.h.0.attn.c_attn.lora_A.weight",
                                              "transformer.h.0.attn.c_attn.lora_B.weight",
                                              "transformer.h.1.attn.c_attn.lora_A.weight",
                                              "transformer.h.1.attn.c_attn.lora_B.weight",
                                              "transformer.wte.lora_embedding_A",
                                              "transformer.wte.lora_embedding_B"));
}

TEST(Adapters, LearnAndRanksTimesAccumulationGiveTheSameBits) {
  for (const char* type : {"lora", "dora"}) {
    const TinyRun run = run_of(type);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 6);
    EXPECT_LT(one.losses.back(), one.losses.front());
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 0},
                                                    {.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 2},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(type + (" " + text_of(layout)));
      expect_same_bits(one, run.train(layout, 6));
    }
  }
}

TEST(Adapters, GiveTheSameBitsInBf16) {
  TinyRun run = run_of("rslora", R"(, "bias": "lora_only")");
  run.set("bf16.enabled", "true");
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
  expect_same_bits(one, run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 4));
  expect_same_bits(one, run.train({.ranks = 4, .accumulation = 1, .stage = 3}, 4));
}

TEST(Adapters, TrainThroughAPipelineToTheBit) {
  const TinyRun run = run_of("dora");
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 4, .pipeline = "2"},
                           {.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trace other = run.train(layout, 3);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
  }
}

TEST(Adapters, TrainWhereRanksShareLayersAndTokens) {
  for (const char* type : {"lora", "dora"}) {
    SCOPED_TRACE(type);
    expect_same(run_of(type), {{.ranks = 2, .tensor = 2}, {.ranks = 4, .stage = 3, .tensor = 2}});
    TinyRun dry;
    dry.set("adapter", std::string(R"({"type": ")") + type + R"(", "r": 2})");
    expect_same(dry,
                {{.ranks = 2, .tensor = 2, .sequence = true},
                 {.ranks = 2, .context = 2},
                 {.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
  }
}

const Layout kTwo = {.ranks = 4, .tensor = 4, .mode = "2d"},
             kHalf = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
             kThree = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"};

TEST(Adapters, TrainOnGridsOfRanksAsOnOne) {
  for (const char* type : {"lora", "dora"}) {
    SCOPED_TRACE(type);
    expect_same(run_of(type), {kTwo, kHalf, kThree});
    expect_same(run_of(type, R"(, "bias": "lora_only")"), {kTwo});
  }
  // Parts of a fused projection, samples that do not divide, and ranks that share tokens too.
  Layout uneven = kThree, shared = kTwo;
  uneven.micro_batch = 7;
  shared.ranks = 8;
  shared.context = 2;
  TinyRun run;
  run.set("adapter", R"({"type": "dora", "r": 2, "targets": ["q_proj", "v_proj", "up_proj"]})")
      .set("model",
           R"({"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 4,
               "max_positions": 32, "ffn_hidden_size": 48})");
  expect_same(run, {uneven, shared});
}

TEST(Adapters, OnGridsTrainThroughShardsAndStages) {
  const TinyRun run = run_of("lora");
  expect_same(run,
              {{.ranks = 8, .stage = 3, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .accumulation = 2, .pipeline = "2", .tensor = 4, .mode = "2d"}});
}

TEST(Adapters, RecomputeChangesNothing) {
  for (const char* kind : {"full", "selective"}) {
    TinyRun run = run_of("dora");
    const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
    const Trace stored = run.train(layout, 3);
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

TEST(Adapters, LeaveTheBaseAsItWas) {
  const TinyRun run = run_of("lora", R"(, "modules_to_save": ["ln_f"])");
  const files::TempDir before, after;
  (void)run.train({}, 1, before.path());
  (void)run.train({.ranks = 2, .stage = 3}, 4, after.path());
  const checkpoint::Checkpoint one(*checkpoint::newest(before.path())),
      four(*checkpoint::newest(after.path()));
  int same = 0, other = 0;
  for (const auto& tensor : one.tensors()) {
    if (tensor.name.starts_with("optimizer.")) {
      EXPECT_TRUE(tensor.name.find("lora_") != std::string::npos ||
                  tensor.name.find("ln_f.") != std::string::npos)
          << tensor.name;
      continue;
    }
    const bool trained = tensor.name.find("lora_") != std::string::npos ||
                         tensor.name.find("ln_f.") != std::string::npos;
    EXPECT_EQ(one.values(tensor) != four.values(tensor), trained) << tensor.name;
    ++(trained ? other : same);
  }
  EXPECT_GT(same, 0);
  EXPECT_GT(other, 0);
}

}  // namespace
}  // namespace tessera::test
