// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <utility>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(PlanCommand, PrintsDeepSpeedsTableFromNumbersAlone) {
  const Outcome o = run_program({"plan",
                                 "--estimate",
                                 "zero3",
                                 "--total-params",
                                 "1889110016",
                                 "--largest-layer-params",
                                 "189530112"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out,
            "Estimated memory needed for params, optim states and gradients for a:\n"
            "HW: Setup with 1 node, 1 GPU per node.\n"
            "SW: Model with 1889M total params, 189M largest layer params.\n"
            "  per CPU  |  per GPU |   Options\n"
            "   47.50GB |   0.71GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
            "   47.50GB |   0.71GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
            "   42.22GB |   4.22GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
            "   42.22GB |   4.22GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
            "    1.06GB |  32.37GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
            "   10.56GB |  32.37GB | offload_param=none, offload_optimizer=none, zero_init=0\n");
}

TEST(PlanCommand, ShowsWhatAPresetTakesHereAsWell) {
  const Outcome o = run_program({"plan",
                                 "--estimate",
                                 "zero2",
                                 "--model",
                                 "gpt2-small",
                                 "--num_gpus_per_node",
                                 "4",
                                 "--num_nodes",
                                 "2"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("HW: Setup with 2 nodes, 4 GPUs per node."),
                    HasSubstr("SW: Model with 124M total params."),
                    HasSubstr("In tessera: stage 2, 8 ranks, bf16, AdamW"),
                    ContainsRegex("optimizer +[0-9.]+ MiB")));
}

// The published numbers, with the head for hidden tokens and one for two labels.
TEST(PlanCommand, KnowsPresetsThatDoNotContinueTexts) {
  for (const auto& [preset, parameters] : {std::pair{"bert-base-uncased", 109'514'298},
                                           {"t5-small", 60'506'624},
                                           {"vit-b-16", 85'800'194}}) {
    const Outcome o = run_program({"plan", "--estimate", "zero3", "--model", preset, "--json"});

    ASSERT_EQ(o.code, 0) << preset << ": " << o.err;
    EXPECT_EQ(json::parse_strict(o.out, "stdout").find("total_params")->as_integer(), parameters)
        << preset;
  }
}

TEST(PlanCommand, ReadsAConfigurationAndAFolder) {
  const files::TempDir folder;
  files::write_atomic(folder.path() / "my.json",
                      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt",
                          "sequence_length": 64}, "train_batch_size": 12})");
  files::write_atomic(folder.path() / "config.json",
                      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4,
                          "n_positions": 48, "n_ctx": 48, "vocab_size": 300})");

  const Outcome file = run_program(
      {"plan", "--estimate", "zero3", "--model", (folder.path() / "my.json").string(), "--json"});
  const Outcome hf =
      run_program({"plan", "--estimate", "zero3", "--model", folder.path().string(), "--json"});

  ASSERT_EQ(file.code, 0) << file.err;
  const json::Value out = json::parse_strict(file.out, "stdout");
  // 4 layers of 12 h^2 + 13 h, two norms' h, tables of 256 and 64 rows.
  EXPECT_EQ(out.find("total_params")->as_integer(),
            4 * (12 * 128 * 128 + 13 * 128) + 2 * 128 + (256 + 64) * 128);
  EXPECT_EQ(out.find("rows")->items().size(), 6U);
  EXPECT_EQ(out.find("tessera")->find("sequence_length")->as_integer(), 64);
  ASSERT_EQ(hf.code, 0) << hf.err;
  EXPECT_EQ(json::parse_strict(hf.out, "stdout").find("total_params")->as_integer(),
            2 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + (300 + 48) * 32);
}

TEST(PlanCommand, TakesTheTypeOfAConfiguration) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "my.json").string();
  const auto of_type = [&](const std::string& block) {
    files::write_atomic(
        path, R"({"model": {"preset": "nano"}, "data": {"train": "a.txt"})" + block + "}");
    return run_program({"plan", "--estimate", "zero2", "--model", path}).out;
  };

  EXPECT_THAT(of_type(R"(, "bf16": {"enabled": false})"), HasSubstr(", fp32, "));
  EXPECT_THAT(of_type(R"(, "fp16": {"enabled": true})"), HasSubstr(", fp16, "));
  EXPECT_THAT(of_type(""), HasSubstr(", bf16, "));
}

// In stage 3 a GPU holds at least the largest layer: without it there is no table.
TEST(PlanCommand, RefusesNumbersThatNoModelHas) {
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "--estimate", "zero3", "--total-params"});
    const Outcome o = run_program(words);
    EXPECT_EQ(o.code, 2) << o.out;
    return o.err;
  };

  EXPECT_THAT(refusal({"1000000"}), HasSubstr("--largest-layer-params is missing"));
  EXPECT_THAT(refusal({"100", "--largest-layer-params", "200"}),
              AllOf(HasSubstr("--largest-layer-params 200"), HasSubstr("1 to 100")));
  EXPECT_THAT(refusal({"100", "--largest-layer-params", "0"}), HasSubstr("expected 1 to 100"));
  EXPECT_THAT(refusal({"1000000000000001", "--largest-layer-params", "1"}),
              HasSubstr("--total-params 1000000000000001"));
  EXPECT_THAT(refusal({"0", "--largest-layer-params", "1"}), HasSubstr("--total-params 0"));
  EXPECT_THAT(refusal({"1000000000000000",
                       "--largest-layer-params",
                       "1",
                       "--num_gpus_per_node",
                       "1000000",
                       "--num_nodes",
                       "1000000"}),
              HasSubstr("more than there are bytes"));
  EXPECT_EQ(run_program({"plan", "--estimate", "zero2", "--total-params", "1000000"}).code, 0);
}

// The command reads no text and trains nothing: a folder needs no tokenizer, and batch size and
// learning rate need no value.
TEST(PlanCommand, NeedsNothingThatATrainingAloneWouldNeed) {
  const files::TempDir folder;
  files::write_atomic(folder.path() / "config.json",
                      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4,
                          "n_positions": 48, "n_ctx": 48, "vocab_size": 211})");
  files::write_atomic(folder.path() / "auto.json",
                      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt"},
                          "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
                          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})");
  const auto estimate = [&](const fs::path& model) {
    return run_program({"plan", "--estimate", "zero2", "--model", model.string(), "--json"});
  };

  const Outcome hf = estimate(folder.path()), file = estimate(folder.path() / "auto.json");

  ASSERT_EQ(hf.code, 0) << hf.err;
  EXPECT_EQ(json::parse_strict(hf.out, "stdout").find("total_params")->as_integer(),
            2 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + (211 + 48) * 32);
  ASSERT_EQ(file.code, 0) << file.err;
  EXPECT_EQ(
      json::parse_strict(file.out, "stdout").find("tessera")->find("micro_batch")->as_integer(), 1);
}

TEST(PlanCommand, SaysWhereThereAreMoreRanksThanTesseraRunsAndWhereMoreThanCanBeCounted) {
  const auto estimate = [](const char* ranks, const char* nodes) {
    return run_program({"plan",
                        "--estimate",
                        "zero2",
                        "--model",
                        "gpt2-small",
                        "--num_gpus_per_node",
                        ranks,
                        "--num_nodes",
                        nodes});
  };

  const Outcome many = estimate("8", "200"), absurd = estimate("1000000", "1000000");

  EXPECT_EQ(many.code, 0) << many.err;
  EXPECT_THAT(many.out,
              AllOf(HasSubstr("HW: Setup with 200 nodes, 8 GPUs per node."),
                    HasSubstr("1,600 ranks are more than the 1,024"),
                    Not(HasSubstr("stage 2"))));
  EXPECT_EQ(absurd.code, 2) << absurd.out;
  EXPECT_THAT(absurd.err, HasSubstr("1000000 hosts of 1000000 ranks: more than there are bytes"));
}

TEST(PlanCommand, OfAConfigurationIsItsDryRun) {
  const files::TempDir folder;
  const std::string file = (folder.path() / "m.json").string();
  files::write_atomic(folder.path() / "text.txt", std::string(5000, 'a'));
  files::write_atomic(file,
                      R"({"model": {"preset": "nano"}, "train_batch_size": 8, "run": {"dir": ")" +
                          (folder.path() / "run").string() + R"("}, "data": {"train": ")" +
                          (folder.path() / "text.txt").string() + R"(", "sequence_length": 16}})");

  const Outcome plan = run_program({"plan", file, "-n", "2", "--json"});
  const Outcome dry = run_program({"train", file, "-n", "2", "--json", "--dry-run"});

  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out, "plan").find("memory_per_rank")->find("parameters")->as_integer(),
            json::parse(dry.out, "dry").find("memory_per_rank")->find("parameters")->as_integer());
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(PlanCommand, SaysWhatIsMissing) {
  EXPECT_THAT(run_program({"plan"}).err, HasSubstr("a configuration or --estimate is missing"));
  EXPECT_THAT(run_program({"plan", "--estimate", "zero4", "--model", "nano"}).err,
              HasSubstr("expected zero2 or zero3"));
  EXPECT_THAT(run_program({"plan", "--estimate", "zero3"}).err, HasSubstr("--model is missing"));
  EXPECT_THAT(run_program({"plan", "--estimate", "zero3", "--model", "gpt2-smal"}).err,
              HasSubstr("\"gpt2-small\""));
  EXPECT_THAT(run_program({"plan", "--estimate", "zero3", "--model", "gpt2"}).err,
              HasSubstr("\"gpt2-small\""));
  EXPECT_THAT(
      run_program({"plan", "--estimate", "zero3", "--model", "nano", "--num_nodes", "0"}).err,
      HasSubstr("--num_nodes 0"));
}

}  // namespace
}  // namespace tessera::cli
