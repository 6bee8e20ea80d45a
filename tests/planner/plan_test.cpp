// SPDX-License-Identifier: Apache-2.0
// The plans that configurations resolve to, and the errors of those that cannot be resolved.
#include "tessera/planner/plan.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/overrides.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

json::Value source_of(const std::string& text) {
  return json::parse(text, "c.json");
}

// A whole configuration with these members in addition to the required ones.
std::string with(const std::string& members) {
  return R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64})" +
         (members.empty() ? "" : ", " + members) + "}";
}

Plan plan_of(const std::string& text, int ranks = 1) {
  return make_plan(source_of(text), ranks, "dir/my.json");
}

// The message of a refused configuration, whose exit code must be 2; "" if it is accepted.
std::string refusal(const std::string& text, int ranks = 1) {
  try {
    plan_of(text, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.text();
  }
  return "";
}

TEST(Plans, HaveAFolderThatARunCanHave) {
  const auto refused = [](const std::string& dir) {
    return refusal(with(R"("train_batch_size": 4, "run": {"dir": ")" + dir + "\"}"));
  };
  std::string deep;
  while (deep.size() < 4050)
    deep += "/0123456789";

  for (const char* root : {"/", "//", "/.", "/tmp/.."})
    EXPECT_THAT(refused(root), AllOf(HasSubstr("run.dir"), HasSubstr("root of the file system")));
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  if (home.size() > 1 && home.starts_with('/')) {
    for (const char* place : {"", "/", "/x/..", "/.."}) {
      const bool is_root = std::filesystem::path(home + place).lexically_normal() == "/";
      EXPECT_THAT(refused(home + place),
                  HasSubstr(is_root ? "root of the file system" : "is the home folder"))
          << place;
    }
    EXPECT_EQ(refused(home + "/runs"), "");
    EXPECT_EQ(refused(home + "x"), "");
  }
  for (const char* place : {"~", "~/runs/my"})
    EXPECT_THAT(refused(place), AllOf(HasSubstr("run.dir"), HasSubstr("only shells replace")));
  EXPECT_THAT(refused(std::string(4050, 'a')), HasSubstr("has a name of 4050 bytes"));
  EXPECT_THAT(refused(deep), HasSubstr("need a path of up to 3840"));
  EXPECT_EQ(refused(deep.substr(0, 3000)), "");
  EXPECT_EQ(refused(std::string(255, 'a')), "");
}

TEST(Plans, HaveTheDefaultsOfTheDocumentation) {
  const Plan plan = plan_of(R"({"data": {"train": "a.txt"}, "train_batch_size": 4})");

  EXPECT_EQ(plan.model().resolved.num_layers, 4);
  EXPECT_EQ(plan.model().resolved.hidden_size, 128);
  EXPECT_EQ(plan.model().resolved.vocab_size, 256);
  EXPECT_EQ(plan.data().sequence_length, 1024);
  EXPECT_EQ(plan.model().resolved.max_positions, 1024);
  EXPECT_EQ(plan.data().tokenizer->name(), "byte");
  EXPECT_EQ(plan.recipe().seed, 1234);
  EXPECT_EQ(plan.run().printing.steps_per_print, 10);
  EXPECT_EQ(plan.run().checkpoint.keep, 3);
  EXPECT_EQ(plan.layout().working, DType::F32);
  EXPECT_EQ(plan.run().dir, "runs/my");
  EXPECT_TRUE(plan.notes().empty());
}

TEST(Plans, OneLengthIsTheOtherWhenOnlyOneIsGiven) {
  EXPECT_EQ(plan_of(with(R"("train_batch_size": 4)")).model().resolved.max_positions, 64);
  EXPECT_EQ(
      plan_of(R"({"model": {"max_positions": 32}, "data": {"train": "a"}, "train_batch_size": 4})")
          .data()
          .sequence_length,
      32);
}

TEST(Plans, ShardTheUpdateUnlessABlockSaysOtherwise) {
  EXPECT_EQ(plan_of(with(R"("train_batch_size": 4)"), 1).layout().zero_stage, 0);
  EXPECT_EQ(plan_of(with(R"("train_batch_size": 4)"), 2).layout().zero_stage, 1);
  EXPECT_EQ(
      plan_of(with(R"("train_batch_size": 4, "zero_optimization": {})"), 2).layout().zero_stage, 0);
  EXPECT_EQ(plan_of(with(R"("train_batch_size": 4, "zero_optimization": {"stage": 1})"), 1)
                .layout()
                .zero_stage,
            1);
}

TEST(Plans, Bfloat16IsTheOldNameOfBf16) {
  EXPECT_EQ(
      plan_of(with(R"("train_batch_size": 4, "bfloat16": {"enabled": true})")).layout().working,
      DType::BF16);
  EXPECT_THAT(
      refusal(with(
          R"("train_batch_size": 4, "bfloat16": {"enabled": true}, "bf16": {"enabled": false})")),
      HasSubstr("old name"));
}

TEST(Plans, ResolvedConfigurationsPlanTheSame) {
  const Plan plan = plan_of(with(R"("train_batch_size": 12, "scheduler": {"type": "WarmupCosine",
      "params": {"warmup_num_steps": 10}}, "trainer": {"max_steps": 50}, "eval": {"prompt": "x"})"),
                            2);

  const Plan again =
      make_plan(json::parse(plan.resolved().dump(2), "config.json"), 2, "runs/my/config.json");

  EXPECT_EQ(again.resolved(), plan.resolved());
  EXPECT_EQ(again.run().dir, "runs/my");
}

// The configuration that a run folder keeps, read again for `ranks` ranks with these overrides.
Plan again(const Plan& plan, int ranks, const std::vector<std::string>& overrides = {}) {
  json::Value source = json::parse(plan.resolved().dump(2), "runs/my/config.json");
  for (const std::string& assignment : overrides)
    config::apply_override(source, assignment);
  return make_plan(source, ranks, "runs/my/config.json");
}

TEST(ResolvedConfigurations, KeepBatchAndMicroBatchOnOtherRanks) {
  const Plan one =
      plan_of(with(R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 2)"), 1);

  for (const int ranks : {1, 2, 4, 8}) {
    const Plan plan = again(one, ranks);

    EXPECT_EQ(plan.recipe().global_batch, 16);
    EXPECT_EQ(plan.layout().micro_batch, 2);
    EXPECT_EQ(plan.layout().accumulation, 8 / ranks);
    EXPECT_EQ(plan.layout().zero_stage, ranks > 1 ? 1 : 0);
    EXPECT_EQ(again(plan, 1).resolved(), one.resolved());
  }
}

TEST(ResolvedConfigurations, ReportDerivedValues) {
  const Plan plan =
      again(plan_of(with(R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 2)"), 1), 4);

  EXPECT_THAT(plan.notes(), Contains(HasSubstr("gradient_accumulation_steps was 8 and is 2")));
}

TEST(ResolvedConfigurations, GiveUpAMicroBatchThatNobodyAskedForWhereItDoesNotFit) {
  const Plan two = plan_of(with(R"("train_batch_size": 16)"), 2);
  ASSERT_EQ(two.layout().micro_batch, 8);

  const Plan one = again(two, 1), four = again(two, 4);

  EXPECT_EQ(one.layout().micro_batch, 8);
  EXPECT_EQ(one.layout().accumulation, 2);
  EXPECT_EQ(four.layout().micro_batch, 4);
  EXPECT_EQ(again(one, 4).layout().micro_batch, 4);
}

TEST(ResolvedConfigurations, RefuseRanksThatTheUsersOwnKeysExclude) {
  const Plan two =
      plan_of(with(R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4)"), 2);

  try {
    again(two, 3);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("16 is not micro 4 x accumulation 1 x ranks 3 = 12"),
                      HasSubstr("config.json:")));
  }
}

TEST(ResolvedConfigurations, ObeyWhatIsWrittenOverThem) {
  const Plan one = plan_of(
      with(
          R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "run": {"threads_per_rank": 1})"),
      1);

  EXPECT_EQ(again(one, 2, {"train_micro_batch_size_per_gpu=1"}).layout().accumulation, 8);
  EXPECT_EQ(again(one, 2, {"train_batch_size=32"}).layout().accumulation, 8);
  EXPECT_EQ(again(one, 2, {"zero_optimization.stage=0"}).layout().zero_stage, 0);
  EXPECT_EQ(again(one, 2).layout().threads, 1);
}

TEST(ResolvedConfigurations, OfADeepSpeedBlockKeepItsStage) {
  const Plan two = plan_of(with(R"("train_batch_size": 16, "zero_optimization": {})"), 2);

  EXPECT_EQ(again(two, 4).layout().zero_stage, 0);
}

TEST(Plans, ResolvedConfigurationsHaveEveryNumber) {
  const json::Value resolved = plan_of(with(R"("train_batch_size": 12)"), 2).resolved();

  EXPECT_EQ(resolved.find("train_micro_batch_size_per_gpu")->as_integer(), 6);
  EXPECT_EQ(resolved.find("gradient_accumulation_steps")->as_integer(), 1);
  EXPECT_EQ(resolved.find("zero_optimization")->find("stage")->as_integer(), 1);
  EXPECT_EQ(resolved.find("data")->find("stride")->as_integer(), 64);
  EXPECT_EQ(resolved.find("optimizer")->find("params")->find("lr")->as_double(), 1e-3);
  EXPECT_EQ(resolved.find("scheduler")->find("type")->as_string(), "constant");
  EXPECT_EQ(resolved.find("model")->find("num_layers")->as_integer(), 4);
  EXPECT_GE(*resolved.find("run")->find("threads_per_rank")->as_integer(), 1);
}

TEST(Plans, ReportKeysWithoutAMeaningAndWarnOfCrowdedCores) {
  const Plan plan = plan_of(with(R"("train_batch_size": 1024, "prescale_gradients": true)"), 1024);

  ASSERT_EQ(plan.notes().size(), 1U);
  EXPECT_THAT(plan.notes()[0], HasSubstr("prescale_gradients"));
  EXPECT_THAT(warnings_of(plan.recipe(), {}, plan.ranks()),
              Contains(HasSubstr("1024 ranks share")));
}

TEST(Plans, AScheduleWithoutParametersNamesWhatToChange) {
  try {
    plan_of(with(R"("train_batch_size": 4, "scheduler": {"params": {"warmup_num_steps": 3}})"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("scheduler.params.warmup_num_steps"),
                      HasSubstr("scheduler.type \"constant\" takes no parameters")));
  }
}

TEST(Plans, AConstantRateWarnsThatItDoesNotWarmUp) {
  const auto notes = [](const std::string& params) {
    return plan_of(with(R"("train_batch_size": 4, "scheduler": {"type": "constant", "params": )" +
                        params + "}"))
        .notes();
  };

  EXPECT_THAT(notes(R"({"num_warmup_steps": 0, "num_training_steps": 9})"), testing::IsEmpty());
  EXPECT_THAT(notes(R"({"num_warmup_steps": 3})"),
              testing::ElementsAre(HasSubstr("constant_with_warmup does")));
}

struct BatchCase {
  std::string keys;
  int ranks;
  std::int64_t global, micro, accumulation;
};
class BatchTriangle : public testing::TestWithParam<BatchCase> {};

TEST_P(BatchTriangle, IsCompleted) {
  const BatchCase& c = GetParam();

  const Plan plan = plan_of(with(c.keys), c.ranks);

  EXPECT_EQ(plan.recipe().global_batch, c.global);
  EXPECT_EQ(plan.layout().micro_batch, c.micro);
  EXPECT_EQ(plan.layout().accumulation, c.accumulation);
}

INSTANTIATE_TEST_SUITE_P(
    Given,
    BatchTriangle,
    testing::Values(
        BatchCase{
            R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2)",
            2,
            16,
            4,
            2},
        BatchCase{R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4)", 2, 16, 4, 2},
        BatchCase{R"("train_batch_size": 16, "gradient_accumulation_steps": 2)", 2, 16, 4, 2},
        BatchCase{R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2)",
                  2,
                  16,
                  4,
                  2},
        BatchCase{R"("train_batch_size": 16)", 2, 16, 8, 1},
        BatchCase{R"("train_micro_batch_size_per_gpu": 4)", 3, 12, 4, 1}));

TEST(BatchProblems, PrintTheEquation) {
  EXPECT_THAT(refusal(with(R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 3)"), 2),
              AllOf(HasSubstr("16 is not micro 3 x accumulation 2 x ranks 2 = 12"),
                    HasSubstr("12 or 18"),
                    HasSubstr("c.json:1:")));
  EXPECT_THAT(refusal(with(R"("train_batch_size": 15)"), 2),
              AllOf(HasSubstr("= 14"), HasSubstr("14 or 16")));
  EXPECT_THAT(
      refusal(
          with(
              R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3)"),
          2),
      AllOf(HasSubstr("= 24"), HasSubstr("set train_batch_size to 24")));
}

TEST(BatchProblems, NeedASize) {
  EXPECT_THAT(refusal(with("")),
              AllOf(HasSubstr("batch size is missing"), HasSubstr("train_batch_size")));
  EXPECT_THAT(refusal(with(R"("gradient_accumulation_steps": 2)")),
              HasSubstr("gradient_accumulation_steps"));
}

TEST(BatchProblems, MoreRanksThanSequences) {
  EXPECT_THAT(refusal(with(R"("train_batch_size": 2)"), 4),
              AllOf(HasSubstr("4 ranks"), HasSubstr("2 sequences")));
}

TEST(BatchProblems, AbsurdNumbersOfRanks) {
  EXPECT_THAT(refusal(with(R"("train_batch_size": 2)"), 1025),
              AllOf(HasSubstr("1025"), HasSubstr("1024")));
  EXPECT_THAT(refusal(with(R"("train_batch_size": 2)"), 0), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal(with(R"("train_batch_size": 2)"), -3), HasSubstr("-3"));
}

// Each row has members of a configuration that is refused, and words that the message contains.
struct Refused {
  std::string text;
  std::vector<std::string> words;
};
class PlanRefuses : public testing::TestWithParam<Refused> {};

TEST_P(PlanRefuses, WithPlaceAndRemedy) {
  const std::string message = refusal(GetParam().text);

  for (const std::string& words : GetParam().words)
    EXPECT_THAT(message, HasSubstr(words));
}

const std::string kBatch = R"("train_batch_size": 4)";

INSTANTIATE_TEST_SUITE_P(
    Configurations,
    PlanRefuses,
    testing::Values(
        Refused{
            R"({"model": {"hidden_size": 100, "num_heads": 3, "num_layers": 1}, "data": {"train": "a"}, )" +
                kBatch + "}",
            {"c.json:1:", "model.num_heads", "3", "100"}},
        Refused{
            R"({"model": {"max_positions": 32}, "data": {"train": "a", "sequence_length": 64}, )" +
                kBatch + "}",
            {"data.sequence_length", "64", "32"}},
        Refused{R"({"model": {"vocab_size": 100}, "data": {"train": "a"}, )" + kBatch + "}",
                {"model.vocab_size", "100", "256"}},
        Refused{R"({"model": {"preset": "nanno"}, "data": {"train": "a"}, )" + kBatch + "}",
                {"model.preset", "\"nano\""}},
        Refused{R"({"model": {"family": "lama"}, "data": {"train": "a"}, )" + kBatch + "}",
                {"model.family"}},
        Refused{R"({"modle": {}, "data": {"train": "a"}, )" + kBatch + "}", {"modle", "\"model\""}},
        Refused{"{" + kBatch + "}", {"data.train", "missing"}},
        Refused{with(kBatch + R"(, "zero_optimization": {"stage": 4})"),
                {"zero_optimization.stage", "found 4", "at most 3"}},
        Refused{with(kBatch + R"(, "rampup_batch_size": [3])"),
                {"rampup_batch_size", "three integers"}},
        Refused{with(kBatch + R"(, "rampup_batch_size": [100000, 1, 10])"),
                {"rampup_batch_size", "above the batch size"}},
        Refused{with(kBatch + R"(, "gradient_reduction": "twice")"),
                {"gradient_reduction", "once"}},
        Refused{with(kBatch + R"(, "optimizer": {"groups": [{"pattern": "wtee", "lr": 1}]})"),
                {"optimizer.groups[0].pattern", "wtee", "matches no parameter"}},
        Refused{with(kBatch + R"(, "optimizer": {"groups": [{"pattern": ".", "frozen": true}]})"),
                {"optimizer.groups", "nothing to train"}},
        Refused{with(kBatch + R"(, "optimizer": {"groups": [{"pattern": "(", "lr": 1}]})"),
                {"optimizer.groups[0]", "not a valid regular expression"}},
        Refused{with(kBatch + R"(, "optimizer": {"groups": [{"lr": 1, "patern": "x"}]})"),
                {"optimizer.groups[0].patern", "pattern"}},
        Refused{with(kBatch +
                     R"(, "zero_optimization": {"stage": 3, "stage3_max_live_parameters": -1})"),
                {"zero_optimization.stage3_max_live_parameters", "at least 0 elements"}},
        Refused{with(kBatch + R"(, "optimizer": {"type": "OneBitAdam"},
                              "fp16": {"enabled": true, "fp16_master_weights_and_grads": true})"),
                {"fp16.fp16_master_weights_and_grads", "OneBitAdam", "16 bits would lose again"}},
        Refused{with(kBatch + R"(, "optimizer": {"type": "Adamw2"})"), {"optimizer", "\"AdamW\""}},
        Refused{with(kBatch +
                     R"(, "optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 2})"),
                {"zero_optimization.stage", "OneBitAdam", "set zero_optimization.stage to 1"}},
        Refused{
            with(kBatch +
                 R"(, "optimizer": {"type": "ZeroOneAdam"}, "zero_optimization": {"stage": 3})"),
            {"zero_optimization.stage", "ZeroOneAdam", "set zero_optimization.stage to 0"}},
        Refused{
            with(kBatch + R"(, "optimizer": {"type": "OneBitLamb"}, "gradient_reduction": "each")"),
            {"gradient_reduction", "OneBitLamb", "\"once\""}},
        Refused{with(kBatch + R"(, "optimizer": {"type": "OneBitAdam",
                     "params": {"freeze_step": 0}})"),
                {"optimizer.params.freeze_step", "at least 1"}},
        Refused{with(kBatch + R"(, "optimizer": {"params": {"lr": -1}})"),
                {"c.json:1:", "optimizer.params.lr", "at least 0"}},
        Refused{with(kBatch + R"(, "optimizer": {"params": {"learning_rate": 1}})"),
                {"optimizer.params.learning_rate", "unknown key"}},
        Refused{with(kBatch + R"(, "optimizer": {"params": [1]})"),
                {"optimizer.params", "an object"}},
        Refused{with(kBatch + R"(, "scheduler": {"type": "reduce_lr_on_plateau"})"),
                {"scheduler", "evaluation loss"}},
        Refused{with(kBatch + R"(, "scheduler": {"type": "PolynomialWarmupLR",
                     "params": {"warmup_steps": 20, "total_steps": 20}})"),
                {"scheduler.params.total_steps", "warm-up of 20"}},
        Refused{
            with(kBatch + R"(, "scheduler": {"type": "WarmupCosine", "params": {"warmup": 1}})"),
            {"scheduler.params.warmup", "warmup_num_steps"}},
        Refused{with(kBatch + R"(, "eval": {"every": 10})"), {"eval.every", "nothing to evaluate"}},
        Refused{with(kBatch + R"(, "checkpoint": {"best": true})"),
                {"checkpoint.best", "eval.every"}},
        Refused{with(kBatch + R"(, "trainer": {"epochs": 0})"), {"trainer.epochs", "more than 0"}},
        Refused{with(kBatch + R"(, "tokenizer": {"type": "bpe"})"), {"tokenizer.type", "gpt2"}},
        Refused{R"({"model": {"from": "/no/such/folder"}, "data": {"train": "a"}, )" + kBatch + "}",
                {"c.json:1:", "model.from", "/no/such/folder"}}));

TEST(Plans, ReportAllProblemsAtOnce) {
  const std::string message = refusal(R"({
    "model": {"hidden_size": 100, "num_heads": 3, "num_layers": 1},
    "data": {"sequence_length": "long"},
    "optimzer": {},
    "zero_optimization": {"stage": 4},
    "train_batch_size": 5, "train_micro_batch_size_per_gpu": 2})");

  for (const char* path : {"model.num_heads",
                           "data.sequence_length",
                           "data.train",
                           "optimzer",
                           "zero_optimization.stage",
                           "train_batch_size"}) {
    EXPECT_THAT(message, HasSubstr(std::string(path) + ": "));
  }
}

TEST(Plans, ZeroKeysSetWhatIsGatheredAndWhatStays) {
  const Plan plan = plan_of(with(R"("train_batch_size": 4, "zero_optimization": {"stage": 3,
      "stage3_prefetch_bucket_size": 1e6, "reduce_bucket_size": 5e8})"));

  EXPECT_EQ(plan.layout().gather.prefetch, 1'000'000);
  EXPECT_EQ(plan.layout().persistence_threshold, 100'000);
  EXPECT_EQ(plan.layout().gather.max_live, 1'000'000'000);
  EXPECT_EQ(plan.layout().gather.max_reuse_distance, 0);
  EXPECT_EQ(plan.layout().residency(), parallel::Residency::Sharded);
}

TEST(Plans, CutTheRanksIntoGroupsThatShardTheWeights) {
  const auto groups = [](const std::string& keys, int ranks) {
    return plan_of(
        with(R"("train_batch_size": 8, "zero_optimization": {"stage": 3, )" + keys + "}"), ranks);
  };
  const Plan two = groups(R"("zero_hpz_partition_size": 2)", 8);

  EXPECT_EQ(two.mesh().size(mesh::Axis::DpShard), 2);
  EXPECT_EQ(two.mesh().size(mesh::Axis::DpRep), 4);
  EXPECT_EQ(two.mesh().group(5, {mesh::Axis::DpShard}), (std::vector<int>{4, 5}));
  EXPECT_EQ(groups(R"("mics_shard_size": 4)", 8).layout().shard_ranks, 4);
  EXPECT_EQ(groups(R"("mics_shard_size": 1)", 8).layout().residency(), parallel::Residency::Whole);
  for (const char* off : {R"("zero_hpz_partition_size": 1)",
                          R"("mics_shard_size": -1)",
                          R"("zero_hpz_partition_size": 0, "mics_shard_size": 0)"}) {
    EXPECT_EQ(groups(off, 8).layout().shard_ranks, 8) << off;
  }
  EXPECT_EQ(groups(R"("mics_shard_size": 4)", 1).layout().shard_ranks, 1)
      << "one rank shards nothing";
}

TEST(Plans, RefuseGroupsThatDoNotDivideTheRanks) {
  const std::string keys =
      with(R"("train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 3})");

  EXPECT_THAT(refusal(keys, 8),
              AllOf(HasSubstr("zero_optimization.mics_shard_size"),
                    HasSubstr("8 ranks cannot be cut into groups of 3"),
                    HasSubstr("set it to 2 or 4, or use -n 9")));
  EXPECT_THAT(refusal(keys, 2), HasSubstr("set it to 2, or use -n 3"));
}

TEST(Plans, ReportOnceWhereSparseGradientsDoNotPay) {
  const auto notes = [](const std::string& keys, int ranks) {
    return plan_of(with(R"("train_batch_size": 8, "sparse_gradients": true)" + keys), ranks)
        .notes();
  };

  EXPECT_THAT(notes("", 2), Contains(HasSubstr("the tied table's use by the head")));
  EXPECT_THAT(notes("", 1), Not(Contains(HasSubstr("sparse_gradients"))));
  EXPECT_THAT(
      notes(R"(, "communication_data_type": "bf16")", 2),
      Contains("communication_data_type is narrower than fp32: sparse_gradients has no effect, "
               "gradients travel whole"));
  const std::string untied = R"({"model": {"preset": "nano", "tie_embeddings": false},
      "data": {"train": "a.txt"}, "train_batch_size": 8, "sparse_gradients": true})";
  EXPECT_THAT(plan_of(untied, 2).notes(), Not(Contains(HasSubstr("sparse_gradients"))));
}

TEST(Plans, RefuseTwoNarrowTypesOfGradients) {
  EXPECT_THAT(refusal(with(R"("train_batch_size": 8, "communication_data_type": "fp16",
                              "data_types": {"grad_accum_dtype": "bf16"})")),
              AllOf(HasSubstr("communication_data_type: fp16 does not go with sums in bf16"),
                    HasSubstr("set it to \"bf16\"")));
  EXPECT_THAT(refusal(with(R"("train_batch_size": 8, "communication_data_type": "int4")")),
              HasSubstr("communication_data_type"));
  EXPECT_THAT(refusal(with(R"("train_batch_size": 8, "bf16": {"enabled": true},
      "data_types": {"grad_accum_dtype": "bf16"},
      "zero_optimization": {"stage": 3, "zero_quantized_gradients": true})")),
              AllOf(HasSubstr("zero_quantized_gradients: needs sums in fp32"),
                    HasSubstr("grad_accum_dtype")));
}

TEST(Plans, ReportStageThreeKeysThatNobodyReads) {
  const Plan plan = plan_of(with(R"("train_batch_size": 4, "zero_optimization": {"stage": 1,
      "stage3_max_live_parameters": 1e8, "stage3_max_reuse_distance": 1e9})"));

  ASSERT_EQ(plan.notes().size(), 1U);
  EXPECT_THAT(plan.notes()[0],
              AllOf(HasSubstr("stage is 1"), HasSubstr("stage3_max_live_parameters")));
}

TEST(Plans, RunRulesOfLocalWeightsInStageZeroAndSayIt) {
  const Plan plan = plan_of(with(R"("train_batch_size": 4, "zero_optimization": {"stage": 1},
      "optimizer": {"type": "ZeroOneAdam"})"));

  EXPECT_EQ(plan.layout().zero_stage, 0);
  ASSERT_EQ(plan.notes().size(), 1U);
  EXPECT_THAT(plan.notes()[0], AllOf(HasSubstr("runs as stage 0"), HasSubstr("ZeroOneAdam")));
}

TEST(Plans, KeepGradientsOfRanksApartForRulesThatExchangeSigns) {
  const Plan plan = plan_of(with(R"("train_batch_size": 4, "optimizer": {"type": "OneBitAdam"})"));

  EXPECT_EQ(plan.layout().reduction, parallel::Reduction::Once);
  // And the resolved configuration plans the same again.
  EXPECT_EQ(make_plan(plan.resolved(), plan.ranks(), "c.json").layout().reduction,
            parallel::Reduction::Once);
}

TEST(Plans, NameAnOverrideInMessages) {
  json::Value source = source_of(with(kBatch));
  config::apply_override(source, "optimizer.lr=fast");

  try {
    make_plan(source, 1, "c.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--set optimizer.lr=fast"), HasSubstr("optimizer.params.lr")));
  }
}

// A folder with a GPT-2 description and nothing else.
class HuggingFaceFolder : public testing::Test {
 protected:
  void SetUp() override {
    files::write_atomic(
        folder_.path() / "config.json",
        R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 48,
                            "vocab_size": 300, "n_ctx": 48})");
  }
  std::string from(const std::string& more) const {
    return R"({"model": {"from": ")" + folder_.path().string() + "\"" + more +
           R"(}, "tokenizer": {"type": "byte"}, "data": {"train": "a"}, "train_batch_size": 2})";
  }
  files::TempDir folder_;
};

TEST_F(HuggingFaceFolder, KeysThatContradictItAreRefused) {
  EXPECT_THAT(refusal(from(R"(, "num_layers": 3)")),
              AllOf(HasSubstr("model.num_layers"), HasSubstr("model.from")));
}

TEST_F(HuggingFaceFolder, WithoutWeightsIsAFormatError) {
  try {
    plan_of(from(""));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 4) << error.text();
  }
}

TEST(Plans, GiveMuPTheWidthOfTheModel) {
  const Plan plan = plan_of(with(
      R"("train_batch_size": 4, "optimizer": {"type": "MuAdamW", "params": {"base_hidden_size": 32}})"));

  const json::Value* params = plan.resolved().find("optimizer")->find("params");
  EXPECT_EQ(params->find("hidden_size")->as_integer(), 128);
}

}  // namespace
}  // namespace tessera::planner
