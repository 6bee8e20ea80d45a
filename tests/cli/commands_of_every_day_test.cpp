// SPDX-License-Identifier: Apache-2.0
// Small commands, names of options, and configurations made from flags alone.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(EveryDay, VersionNamesWhatMattersInAReport) {
  const Outcome o = run_program({"version"});

  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.out, AllOf(HasSubstr("tessera "), HasSubstr("libtorch "), HasSubstr("kernels ")));
}

TEST(EveryDay, CompletionKnowsCommandsAndTheirOptions) {
  const Outcome bash = run_program({"completion", "bash"});
  EXPECT_EQ(bash.code, 0) << bash.err;
  EXPECT_THAT(bash.out,
              AllOf(HasSubstr("compgen"), HasSubstr("train) words="), HasSubstr("--dry-run")));
  EXPECT_THAT(bash.out, HasSubstr("bench) words=\"step comm"));
  EXPECT_THAT(run_program({"completion", "zsh"}).out, StartsWith("#compdef tessera\n"));
  EXPECT_THAT(
      run_program({"completion", "fish"}).out,
      HasSubstr("complete -c tessera -n '__fish_seen_subcommand_from generate' -l prompt -r"));
  EXPECT_THAT(run_program({"completion", "bsh"}).err, HasSubstr("\"bash\""));
}

TEST(EveryDay, ManIsMadeFromTheHelp) {
  const Outcome o = run_program({"man"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(StartsWith(".TH TESSERA 1"),
                    HasSubstr(".SS tessera train\n"),
                    HasSubstr("\\-\\-dry\\-run")));
}

TEST(EveryDay, FlagsOfWatchWithoutAnEffectAreRefused) {
  EXPECT_THAT(run_program({"watch", "none", "--once"}).err,
              HasSubstr("--once has no effect without --text"));
  EXPECT_THAT(run_program({"watch", "none", "--text", "--port", "8080"}).err,
              HasSubstr("--port has no effect"));
}

TEST(EveryDay, UnderscoresAndDashesAreAlike) {
  EXPECT_THAT(run_program({"watch", "none", "--text", "--on_ce"}).err, HasSubstr("unknown option"));
  // Both names lead to the same error about what is missing.
  EXPECT_EQ(run_program({"generate", "none", "--prompt", "a", "--max_new_tokens", "3"}).err,
            run_program({"generate", "none", "--prompt", "a", "--max-new-tokens", "3"}).err);
}

TEST(EveryDay, ExplainsKeysOfDeepSpeed) {
  EXPECT_THAT(run_program({"config", "explain", "zero_optimization.overlap_comm"}).out,
              HasSubstr("prefetched one block ahead"));
  EXPECT_THAT(run_program({"config", "explain", "compression_training"}).out,
              HasSubstr("compression_training.layer_reduction.enabled"));
}

TEST(EveryDay, ReportWritesAPageThatStandsAlone) {
  const files::TempDir dir;
  files::write_atomic(dir.path() / "metrics.jsonl", "{\"step\":1,\"epoch\":0.5,\"loss\":2.5}\n");
  const std::string page = (dir.path() / "a.html").string();

  EXPECT_EQ(run_program({"report", dir.path().string(), "--html", page}).code, 0);

  EXPECT_THAT(files::read(page), HasSubstr("\"loss\":[2.5]"));
  EXPECT_EQ(run_program({"report", "--html", page}).code, 2);
}

json::Value made_from(std::vector<std::string> words,
                      const std::string& model,
                      const std::string& data) {
  interop::ForeignFlags flags = interop::take_foreign_flags(words);
  json::Value out = configuration_from_flags(model, data, flags);
  add_model_and_data(model, data, flags);
  apply(flags, out);
  return out;
}

TEST(FlagsAlone, AreThePresetThatInitWrites) {
  const json::Value made = made_from({}, "mini", "my.txt");

  EXPECT_EQ(made.find("model")->find("preset")->as_string(), "mini");
  EXPECT_EQ(made.find("data")->find("train")->as_string(), "my.txt");
  EXPECT_EQ(made.find("train_batch_size")->as_integer(), 16);
}

TEST(FlagsAlone, LeaveToFlagsWhatTheySay) {
  const json::Value made = made_from({"--micro-batch-size",
                                      "2",
                                      "--train-iters",
                                      "7",
                                      "--lr",
                                      "1e-4",
                                      "--lr-decay-style",
                                      "cosine",
                                      "--lr-warmup-iters",
                                      "3"},
                                     "nano",
                                     "my.txt");

  EXPECT_EQ(made.find("train_batch_size"), nullptr);
  EXPECT_EQ(made.find("train_micro_batch_size_per_gpu")->as_integer(), 2);
  EXPECT_EQ(made.find("trainer")->find("max_steps")->as_integer(), 7);
  EXPECT_EQ(made.find("scheduler")->dump(),
            R"({"type":"Megatron","params":{"lr_decay_style":"cosine","lr_warmup_iters":3}})");
}

/// The learning rates of a training of 100 updates with these flags.
std::vector<double> rates_of(const std::vector<std::string>& flags) {
  json::Value made = made_from(flags, "nano", "my.txt");
  const planner::PlanWithData plan(planner::make_plan(made, 1, "my.json"), {.max_steps = 100});
  const auto rule = planner::make_rule(plan.recipe());
  const auto schedule = planner::make_schedule(plan.recipe(), plan.course(), *rule);
  std::vector<double> out;
  for (std::int64_t update = 1; update <= plan.course().max_steps; ++update)
    out.push_back(schedule->lr(update));
  return out;
}

// The schedule of `tessera init` ends at a tenth of its own rate, which may be above another one.
TEST(FlagsAlone, NeverTrainAboveTheRateThatTheySay) {
  for (const char* rate : {"5e-5", "1e-6", "0.1"}) {
    for (const char* flag : {"--learning_rate", "--lr"}) {
      const std::vector<double> rates =
          rates_of({flag, rate, "--per_device_train_batch_size", "4", "--num_train_epochs", "1"});

      // The Trainer's default: linear, without a warm-up.
      EXPECT_DOUBLE_EQ(rates.front(), std::stod(rate)) << flag;
      EXPECT_TRUE(std::ranges::is_sorted(rates, std::greater<>())) << flag;
      EXPECT_NEAR(rates.back(), std::stod(rate) / 100, 1e-9) << flag;
    }
  }
}

TEST(FlagsAlone, OfTheOptimizerLeaveTheRateOfInit) {
  const json::Value made = made_from({"--weight_decay", "0.3"}, "nano", "my.txt");

  EXPECT_EQ(made.find("optimizer")->find("params")->dump(),
            R"({"lr":1e-3,"betas":[0.9,0.99],"weight_decay":0.3})");
  EXPECT_EQ(made.find("scheduler")->find("type")->as_string(), "WarmupCosine");
}

TEST(FlagsAlone, ChangeSizesOfAPreset) {
  const json::Value made =
      made_from({"--num-layers", "2", "--vocab-file", "v.json"}, "gpt2-small", "my.txt");

  EXPECT_EQ(made.find("model")->find("preset")->as_string(), "gpt2-small");
  EXPECT_EQ(made.find("model")->find("num_layers")->as_integer(), 2);
  EXPECT_EQ(made.find("tokenizer")->dump(), R"({"type":"gpt2","vocab":"v.json"})");
}

TEST(FlagsAlone, NeedData) {
  EXPECT_THAT(run_program({"train"}).err, HasSubstr("CONFIG is missing"));
  EXPECT_THAT(run_program({"train", "--model", "nano"}).err, HasSubstr("CONFIG is missing"));
}

TEST(FlagsAlone, SplitLikeMegatron) {
  const json::Value made = made_from({"--split", "90,10,0"}, "nano", "my.txt");

  EXPECT_EQ(made.find("data")->find("validation_fraction")->as_double(), 0.1);
  std::vector<std::string> bad = {"--split", "90,x"};
  EXPECT_THROW(interop::take_foreign_flags(bad), Error);
}

}  // namespace
}  // namespace tessera::cli
