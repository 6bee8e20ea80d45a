// SPDX-License-Identifier: Apache-2.0
// Reports of profilers about real steps on two ranks.
#include "tessera/engine/hooks/profilers.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/trainer.h"
#include "tessera/report/expert_loads.h"

namespace tessera::engine {
namespace {

using tessera::test::on_engines;
using tessera::test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsSupersetOf;

namespace fs = std::filesystem;

/// Trains on two ranks with these sections and returns the run folder's path.
fs::path trained(TinyRun& run) {
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);
  on_engines(run, {.ranks = 2}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });
  return folder;
}

TEST(Profilers, TraceEveryRankOnOneClock) {
  TinyRun run;
  run.set("trainer.max_steps", "4").set("profile", R"({"steps": [2, 3]})");

  const json::Value file =
      json::parse_strict(files::read(trained(run) / "profile/steps-2-3.json"), "trace");

  std::set<std::string> names;
  double begin[2] = {1e300, 1e300}, end[2] = {0, 0};
  for (const json::Value& event : file.find("traceEvents")->items()) {
    if (event.find("ph")->as_string() != "X") continue;
    names.insert(event.find("name")->as_string());
    const auto rank = static_cast<std::size_t>(*event.find("pid")->as_integer());
    const double from = event.find("ts")->as_double();
    begin[rank] = std::min(begin[rank], from);
    end[rank] = std::max(end[rank], from + event.find("dur")->as_double());
  }
  EXPECT_THAT(names,
              IsSupersetOf({"step 2",
                            "step 3",
                            "data",
                            "reduction",
                            "update",
                            "h.0 forward",
                            "h.1 backward",
                            "linear",
                            "attention"}));
  EXPECT_FALSE(names.contains("step 4"));
  // Steps end together: the ranks' times overlap.
  EXPECT_LT(begin[0], end[1]);
  EXPECT_LT(begin[1], end[0]);
}

// Two stages of a pipeline have a sparse layer each.
TEST(Profilers, ReportTheLoadsOfEveryExpert) {
  TinyRun run;
  run.set("trainer.max_steps", "3").set("model", R"({"family": "llama", "num_layers": 2,
      "hidden_size": 32, "num_heads": 4, "max_positions": 16,
      "moe": {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 24, "capacity": 0.5}})");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);
  on_engines(run, {.ranks = 2, .accumulation = 2, .pipeline = "2"}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  const report::ExpertLoads loads = report::read_expert_loads(folder);

  EXPECT_EQ(loads.step, 3);
  EXPECT_EQ(loads.steps, 3);
  ASSERT_EQ(loads.layers.size(), 2U);
  // Three steps of 2 micro-batches with 2 x 16 tokens, which choose 2 experts each.
  for (const report::LayerLoads& layer : loads.layers) {
    EXPECT_EQ(layer.chosen.size(), 4U);
    EXPECT_EQ(layer.total(), 3 * 2 * 2 * 16 * 2);
    EXPECT_GE(layer.dropped_share(), 0.5) << "half of the choices have room";
  }
  EXPECT_NE(loads.layers[0].layer, loads.layers[1].layer);
  EXPECT_THAT(files::read(folder / "experts.svg"), HasSubstr("<svg"));
  const std::string metrics = files::read(folder / "metrics.jsonl");
  for (const report::LayerLoads& layer : loads.layers) {
    EXPECT_THAT(metrics, HasSubstr("\"load." + layer.layer + "\""));
    EXPECT_THAT(metrics, HasSubstr("\"entropy." + layer.layer + "\""));
    EXPECT_THAT(metrics, HasSubstr("\"dropped." + layer.layer + "\""));
  }
}

TEST(Profilers, ReportMemoryAndWaitsOfEveryRank) {
  TinyRun run;
  run.set("trainer.max_steps", "3").set("model.num_layers", "2");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);
  on_engines(run, {.ranks = 2, .accumulation = 2, .pipeline = "2"}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  const json::Value table = json::parse_strict(files::read(folder / "ranks.json"), "ranks.json");

  EXPECT_EQ(table.find("step")->as_integer(), 3);
  EXPECT_THAT(table.find("mesh")->as_string(), HasSubstr("pp 2"));
  // Two stages of equal length and two micro-batches: of three turns each computes in two.
  EXPECT_NEAR(table.find("planned_waits")->as_double(), 1.0 / 3, 1e-9);
  const auto& stages = table.find("stages")->items();
  const auto& ranks = table.find("ranks")->items();
  ASSERT_EQ(stages.size(), 2U);
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_GT(*table.find("planned")->find("parameters")->as_integer(), 0);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ranks[i].find("pp")->as_integer(), static_cast<std::int64_t>(i));
    const double waits = ranks[i].find("waits")->as_double();
    EXPECT_EQ(stages[i].find("waits")->as_double(), waits);
    EXPECT_GT(waits, 0);
    EXPECT_LE(waits, ranks[i].find("collectives")->as_double());
    EXPECT_LT(ranks[i].find("collectives")->as_double(), 1);
    const std::int64_t held = *ranks[i].find("memory")->find("parameters")->as_integer();
    EXPECT_GT(held, 0);
    EXPECT_GT(*ranks[i].find("peak_bytes")->as_integer(), held);
    EXPECT_GT(*ranks[i].find("resident_bytes")->as_integer(), 0);
  }
}

// For each of 2 layers: 4 C^2 weights of attention and 8 C^2 of the MLP, times 2 samples of 16
// tokens.
TEST(Profilers, CountTheArithmeticOfABlock) {
  TinyRun run;
  run.set("trainer.max_steps", "2")
      .set("flops_profiler", R"({"enabled": true, "profile_step": 2, "module_depth": 2})");

  const std::string report = files::read(trained(run) / "flops_profile.txt");

  EXPECT_THAT(report, AllOf(HasSubstr("profile of step 2"), HasSubstr("world size:")));
  // 12 x 32 x 32 weights x 32 tokens = 393,216 products forward and twice as many backward, besides
  // attention's.
  EXPECT_THAT(report, HasSubstr("linear "));
  EXPECT_THAT(report, HasSubstr("393.2kMACs"));
}

TEST(Profilers, SumUpTheCollectives) {
  TinyRun run;
  run.set("trainer.max_steps", "3").set("comms_logger", R"({"enabled": true})");

  const std::string table = files::read(trained(run) / "comms.txt");

  EXPECT_THAT(table,
              AllOf(HasSubstr("busbw GB/s"), HasSubstr("reduce_scatter"), HasSubstr("all_gather")));
}

}  // namespace
}  // namespace tessera::engine
