// SPDX-License-Identifier: Apache-2.0
// tessera plan --device, tessera tune and --autotuning, as far as they start nothing.
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/autotuning.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class MachineCommands : public ::testing::Test {
 protected:
  MachineCommands() {
    files::write_atomic(config_, R"({
      "model": {"family": "gpt2", "num_layers": 4, "hidden_size": 512, "num_heads": 8, "vocab_size": 50304},
      "data": {"train": "no_such_file.txt", "sequence_length": 512}, "bf16": {"enabled": true},
      "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "trainer": {"max_steps": 1000}})");
  }
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin() + 1, config_);
    return run_program(words);
  }
  files::TempDir folder_;
  std::string config_ = (folder_.path() / "c.json").string();
};

TEST_F(MachineCommands, PlanShowsTimeMemoryAndPriceOnAMachineThatIsNotHere) {
  const Outcome o = run({"plan",
                         "-n",
                         "16",
                         "--device",
                         "h100",
                         "--hosts",
                         "2",
                         "--network",
                         "ib400",
                         "--price",
                         "2.5",
                         "--why"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("NVIDIA H100 SXM, 80 GB, 16 ranks on 2 hosts"),
                    HasSubstr("45 GB/s a rank between them"),
                    HasSubstr("tokens/s"),
                    HasSubstr("MFU"),
                    HasSubstr("1,000 steps"),
                    HasSubstr("price"),
                    HasSubstr("where the time of a step goes"),
                    HasSubstr("what a change would bring")));
}

TEST_F(MachineCommands, PlanAddsUpInJson) {
  const Outcome o = run({"plan", "-n", "8", "--device", "a100-80gb", "--json"});

  ASSERT_EQ(o.code, 0) << o.err;
  const json::Value out = json::parse(o.out, "plan");
  double sum = 0;
  for (const auto& [name, seconds] : out.find("parts_s")->members())
    sum += seconds.as_double();
  const double step = out.find("step_s")->as_double();
  EXPECT_NEAR(sum / step, 1, 1e-9);
  std::int64_t bytes = 0;
  for (const auto& [name, part] : out.find("memory_parts_bytes")->members())
    bytes += part.as_integer().value();
  EXPECT_EQ(bytes, out.find("memory_bytes")->as_integer());
  EXPECT_NEAR(out.find("tokens_per_s")->as_double() * step, 64 * 512, 1e-3);
  EXPECT_TRUE(out.find("fits")->as_bool());
}

TEST_F(MachineCommands, PlanOfAGpuPutsMastersAndStatesOnItsHostIfAsked) {
  const auto plan = [&](const char* device) {
    const Outcome o =
        run({"plan",
             "-n",
             "8",
             "--device",
             device,
             "--set",
             "zero_optimization={\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}",
             "--json"});
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out, "plan");
  };
  const json::Value gpu = plan("h100");
  EXPECT_EQ(gpu.find("memory_parts_bytes")->find("optimizer")->as_integer(), 0);
  EXPECT_GT(gpu.find("host_memory_bytes")->as_integer().value(), 0);
  EXPECT_EQ(plan("cpu-epyc-9005-2").find("host_memory_bytes")->as_integer(), 0);
}

TEST_F(MachineCommands, PlanOfManyRanksIsThatOfFewButForTheirNumber) {
  const auto step = [&](const char* ranks, const char* batch) {
    const Outcome o = run({"plan",
                           "-n",
                           ranks,
                           "--set",
                           std::string("train_batch_size=") + batch,
                           "--device",
                           "h100",
                           "--network",
                           "ib400",
                           "--json"});
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out, "plan");
  };
  const json::Value few = step("1024", "8192"), many = step("4096", "32768");

  EXPECT_EQ(few.find("layout")->find("gradient_accumulation_steps")->as_integer(), 4);
  EXPECT_EQ(many.find("layout")->find("gradient_accumulation_steps")->as_integer(), 4);
  EXPECT_EQ(many.find("ranks")->as_integer(), 4096);
  EXPECT_EQ(many.find("tokens_per_step")->as_integer(),
            4 * *few.find("tokens_per_step")->as_integer());
}

TEST_F(MachineCommands, PlanRefusesWhatIsNotKnownWithWhatIs) {
  EXPECT_THAT(run({"plan", "--device", "h1000"}).err, HasSubstr("h100"));
  EXPECT_THAT(run({"plan", "-n", "16", "--device", "h100", "--network", "ib40"}).err,
              HasSubstr("ib400"));
  EXPECT_THAT(run({"plan", "-n", "16", "--device", "h100", "--hosts", "3"}).err,
              HasSubstr("--hosts 3"));
  EXPECT_THAT(run({"plan", "--device", "v100-32gb"}).err,
              AllOf(HasSubstr("BF16"), HasSubstr("tessera bench machine")))
      << "this GPU has no bf16";
}

TEST_F(MachineCommands, FindMachinesInAFolderOfTheUser) {
  files::write_atomic(folder_.path() / "mine.json", R"({
    "title": "mine", "memory_bytes": 1e10, "flops_per_s": {"bf16": 1e14},
    "efficiency": {"large_product": 0.5}, "memory": {"bytes_per_s": 1e12},
    "in_host": {"bytes_per_s": 1e11}})");
  ::setenv("TESSERA_MACHINES", folder_.path().c_str(), 1);
  const Outcome o = run({"plan", "--device", "mine"});
  ::unsetenv("TESSERA_MACHINES");

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("mine, 1 rank on 1 host"));
  EXPECT_THAT(o.err, Not(HasSubstr("TESSERA_MACHINES"))) << "the variable is known";
}

TEST_F(MachineCommands, TuneWithADeviceOnlyPredicts) {
  const Outcome o = run({"tune", "-n", "8", "--device", "h100", "--fix", "parallel.context"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("layouts"),
                    HasSubstr("tokens/s"),
                    HasSubstr("not tried"),
                    HasSubstr("the best one differs from the configuration by")));
}

TEST_F(MachineCommands, TuneForAnotherCpuOnlyPredicts) {
  files::write_atomic(folder_.path() / "cpu-other.json", R"({
    "title": "another CPU", "memory_bytes": 6.4e10, "cores": 64, "collectives": "own",
    "flops_per_s": {"bf16": 4e12, "fp32": 2e12}, "efficiency": {"large_product": 0.5},
    "memory": {"bytes_per_s": 2e11}, "in_host": {"bytes_per_s": 1e10}})");
  ::setenv("TESSERA_MACHINES", folder_.path().c_str(), 1);
  const Outcome o = run({"tune", "-n", "4", "--device", "cpu-other", "--fix", "parallel"});
  ::unsetenv("TESSERA_MACHINES");

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("on another CPU"), HasSubstr("not tried")));
  EXPECT_THAT(o.out, Not(HasSubstr("kept in"))) << "nothing is measured";
}

TEST_F(MachineCommands, TuneReportsMistakesBeforeAnythingStarts) {
  for (const auto& [words, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--budget", "soon"}, "--budget soon"},
           {{"--metric", "speed"}, "metric speed"},
           {{"--fix", "optimizer.lr"}, "--fix optimizer.lr"},
           {{"--trials", "0"}, "--trials 0"}}) {
    std::vector<std::string> line = {"tune", "-n", "8", "--device", "h100"};
    line.insert(line.end(), words.begin(), words.end());
    const Outcome o = run(line);
    EXPECT_EQ(o.code, 2) << what;
    EXPECT_THAT(o.err, HasSubstr(what));
  }
}

json::Value block(const std::string& text) {
  return json::parse("{\"autotuning\": {" + text + "}}", "ds.json");
}

TEST(Autotuning, ReadsTheBlockWithDeepSpeedsDefaults) {
  const AutotuningBlock defaults = read_autotuning(block(""));
  EXPECT_EQ(defaults.start_step, 3);
  EXPECT_EQ(defaults.end_step, 5);
  EXPECT_EQ(defaults.num_trials, 50);
  EXPECT_EQ(defaults.early_stopping, 5);
  EXPECT_EQ(defaults.results, "autotuning_results");
  const AutotuningBlock given = read_autotuning(block(
      R"("metric": "latency", "tuner_type": "model_based", "max_train_batch_size": 64, "fast": false,
         "exps_dir": "here", "arg_mappings": {"train_micro_batch_size_per_gpu": "--per_device_train_batch_size"})"));
  EXPECT_EQ(given.metric, tune::Metric::Latency);
  EXPECT_EQ(given.order, tune::TuneOptions::Order::ModelBased);
  EXPECT_EQ(given.max_batch, 64);
  EXPECT_FALSE(given.fast);
  EXPECT_EQ(given.experiments, "here");
  EXPECT_EQ(given.mappings.size(), 1U);
}

TEST(Autotuning, RefusesWrongValuesWithTheirPlace) {
  for (const char* text :
       {R"("tuner_type": "genetic")",
        R"("metric": "speed")",
        R"("start_profile_step": 6)",
        R"("tuner_num_trials": 0)",
        R"("results_dir": "")",
        R"("max_train_micro_batch_size_per_gpu": 1, "min_train_micro_batch_size_per_gpu": 2)",
        R"("arg_mappings": {"train_batch_size": "--no_such_flag"})"}) {
    try {
      (void)read_autotuning(block(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ds.json:1:")) << text;
    }
  }
}

TEST(Autotuning, ReadsWhatIsStatedOfTheModel) {
  const AutotuningBlock given = read_autotuning(block(
      R"("model_info": {"profile": true, "num_params": 1500000000, "hidden_size": null, "num_layers": 48},
         "metric_path": "out/metrics.json", "model_info_path": "out/info.json")"));
  EXPECT_EQ(given.model_info,
            (std::map<std::string, std::int64_t>{{"num_layers", 48}, {"num_params", 1500000000}}));
  EXPECT_EQ(given.metric_path, "out/metrics.json");
  EXPECT_EQ(given.model_info_path, "out/info.json");
  for (const char* text : {R"("model_info": 3)",
                           R"("model_info": {"num_layers": 0})",
                           R"("model_info": {"activation_mem_per_gpu": 100})",
                           R"("metric_path": "/")"})
    EXPECT_THROW((void)read_autotuning(block(text)), Error) << text;
}

TEST(Autotuning, GivesTheValuesOfATrialToTheFlagsOfTheirKeys) {
  const json::Value config = json::parse(
      R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "zero_optimization": {"stage": 3}, "fp16": {"enabled": true}})",
      "ds.json");

  EXPECT_EQ(mapped_flags({{"train_micro_batch_size_per_gpu", "--per_device_train_batch_size"},
                          {"gradient_accumulation_steps", "--gradient-accumulation-steps"}},
                         config),
            (std::vector<std::string>{
                "--gradient-accumulation-steps", "2", "--per_device_train_batch_size", "4"}));
  EXPECT_THROW((void)mapped_flags(
                   {{"train_micro_batch_size_per_gpu", "--gradient_accumulation_steps"}}, config),
               Error)
      << "the flag sets another key";
  EXPECT_THROW((void)mapped_flags({{"train_batch_size", "--train_batch_size"}}, config), Error)
      << "the configuration has no such key";
  EXPECT_THROW((void)mapped_flags({{"fp16.enabled", "--fp16"}}, config), Error)
      << "a flag without a value";
}

TEST(Autotuning, TakesItsFlagFromAnyPlace) {
  std::vector<std::string> words = {"c.json", "--autotuning", "tune", "-n", "2"};
  EXPECT_EQ(take_autotuning(words), "tune");
  EXPECT_EQ(words, (std::vector<std::string>{"c.json", "-n", "2"}));
  words = {"--autotuning=run"};
  EXPECT_EQ(take_autotuning(words), "run");
  EXPECT_EQ(take_autotuning(words), std::nullopt);
  words = {"--autotuning", "later"};
  EXPECT_THROW((void)take_autotuning(words), Error);
}

}  // namespace
}  // namespace tessera::cli
