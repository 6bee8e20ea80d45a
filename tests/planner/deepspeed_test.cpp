// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's and Hugging Face's files: contradictions, and what "auto" comes to.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::string with(const std::string& members) {
  return R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64}, )" +
         members + "}";
}

Plan plan_of(const std::string& text, int ranks = 1) {
  return make_plan(json::parse(text, "ds.json"), ranks, "ds.json");
}

std::string refusal(const std::string& text, int ranks = 1) {
  try {
    plan_of(text, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.text();
  }
  return "";
}

// Each row has two or more keys that contradict each other, and words that the message must
// contain.
struct Contradiction {
  std::string members;
  std::vector<std::string> words;
};
class Contradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, HaveATextEach) {
  config::Problems problems;
  check_written(json::parse("{" + GetParam().members + "}", "ds.json"), problems);

  std::string message;
  try {
    problems.raise();
  } catch (const Error& error) {
    message = error.text();
  }
  for (const std::string& words : GetParam().words)
    EXPECT_THAT(message, HasSubstr(words));
  EXPECT_THAT(message, AllOf(HasSubstr("ds.json:1:"), HasSubstr("fix:")));
}

INSTANTIATE_TEST_SUITE_P(
    Keys,
    Contradictions,
    testing::Values(
        Contradiction{R"("fp16": {"enabled": true}, "bf16": {"enabled": true})",
                      {"bf16.enabled", "fp16.enabled (ds.json:1:22) is true as well"}},
        Contradiction{R"("amp": {"enabled": true}, "fp16": {"enabled": true})",
                      {"amp.enabled", "fp16.enabled (ds.json:1:48)"}},
        Contradiction{R"("amp": {"enabled": true}, "bf16": {"enabled": true})",
                      {"amp.enabled", "bf16.enabled"}},
        Contradiction{R"("amp": {"enabled": true}, "zero_optimization": {"stage": 2})",
                      {"amp.enabled", "zero_optimization.stage is 2"}},
        Contradiction{
            R"("bf16": {"bf16_optimizer_states": true}, "zero_optimization": {"stage": 1})",
            {"bf16.bf16_optimizer_states", "bf16_master_weights_and_grads"}},
        Contradiction{R"("torch_autocast": {"enabled": true}, "fp16": {"enabled": true})",
                      {"torch_autocast.enabled", "fp16.enabled (ds.json:1:59) is true as well"}},
        Contradiction{R"("torch_autocast": {"enabled": true}, "amp": {"enabled": true})",
                      {"torch_autocast.enabled", "amp.enabled"}},
        Contradiction{
            R"("fp16": {"enabled": true, "mode": "APEX"}, "parallel": {"pipeline": {"size": 2}})",
            {"fp16.mode", "\"APEX\" does not go with a pipeline of 2 stages"}},
        Contradiction{R"("fp16": {"mode": "AMP_TYPE.NAVE"})",
                      {"fp16.mode", "unknown value \"AMP_TYPE.NAVE\"", "AMP_TYPE.NAIVE"}},
        Contradiction{R"("pipeline": {"stages": 4}, "elasticity": {"enabled": true})",
                      {"pipeline.stages", "elasticity"}},
        Contradiction{
            R"("optimizer": {"params": {"max_grad_norm": 0.5}}, "gradient_clipping": 1.0)",
            {"optimizer.params.max_grad_norm", "1", "0.5", "\"gradient_clipping\": 0.5"}},
        Contradiction{
            R"("zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}})",
            {"zero_optimization.offload_optimizer.device", "stage is 0"}},
        Contradiction{
            R"("zero_optimization": {"stage": 0, "offload_optimizer": {"device": "nvme"}})",
            {"zero_optimization.offload_optimizer.device", "stage is 0"}},
        Contradiction{R"("zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}})",
                      {"zero_optimization.offload_param.device", "stage is 2"}},
        Contradiction{R"("zero_optimization": {"stage": 2, "offload_param": {"device": "nvme"}})",
                      {"zero_optimization.offload_param.device", "stage is 2"}},
        Contradiction{R"("zero_optimization": {"stage": 2, "offload_optimizer": {"ratio": 0.3}})",
                      {"zero_optimization.offload_optimizer.ratio", "0.3", "which is 2"}},
        Contradiction{
            R"("zero_optimization": {"stage": 3, "mics_shard_size": 4, "zero_hpz_partition_size": 8})",
            {"zero_optimization.mics_shard_size", "4", "zero_hpz_partition_size 8"}},
        Contradiction{R"("zero_optimization": {"stage": 1, "zero_quantized_gradients": true})",
                      {"zero_optimization.zero_quantized_gradients", "which is 1"}},
        Contradiction{R"("zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum")",
                      {"gradient_allreduce_op", "stage 3"}},
        Contradiction{R"("zero_optimization": {"stage": 3, "compute_grad_norm": false})",
                      {"zero_optimization.compute_grad_norm", "stage 1 or 2, which is 3"}},
        Contradiction{
            R"("gradient_clipping": 0.5, "zero_optimization": {"stage": 2, "compute_grad_norm": false})",
            {"zero_optimization.compute_grad_norm", "gradient_clipping, which is 0.5"}},
        Contradiction{R"("checkpoint": {"tag_validation": "Wran"})",
                      {"checkpoint.tag_validation", "unknown value \"Wran\"", "\"Warn\""}},
        Contradiction{R"("elasticity": {"enabled": true}, "train_batch_size": 64)",
                      {"train_batch_size", "64", "elasticity"}}));

TEST(Contradictions, ValidConfigurationsBreakNoRule) {
  for (const char* members :
       {R"("checkpoint": {"tag_validation": "fail"})",
        R"("fp16": {"enabled": false}, "bf16": {"enabled": true})",
        R"("fp16": {"enabled": true, "mode": "AMP_TYPE.NAIVE"}, "parallel": {"pipeline": 2})",
        R"("fp16": {"enabled": true, "mode": "torch"})",
        R"("fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"})",
        R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
        R"("amp": {"enabled": true}, "zero_optimization": {"stage": 0})",
        R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})",
        R"("zero_optimization": {"stage": 0, "offload_optimizer": {"device": "none"}})",
        R"("optimizer": {"params": {"max_grad_norm": 0}})",
        R"("zero_optimization": {"stage": 2, "compute_grad_norm": false}, "gradient_clipping": 0)",
        R"("zero_optimization": {"stage": 3, "compute_grad_norm": true}, "gradient_clipping": 1)",
        R"("elasticity": {"enabled": true, "ignore_non_elastic_batch_info": true},
           "train_batch_size": 64)",
        R"("parallel": {"pipeline": 2}, "zero_optimization": {"stage": 3})"}) {
    config::Problems problems;
    check_written(json::parse("{" + std::string(members) + "}", "ds.json"), problems);
    EXPECT_TRUE(problems.empty()) << members;
  }
}

// The task rl, which generates, makes inference_tp_size its own option.
TEST(DeepSpeedFiles, MayHaveAHybridEngineWhereNothingIsGenerated) {
  for (const char* block : {R"({"enabled": true, "inference_tp_size": 2})",
                            R"({"enabled": false, "inference_tp_size": 2})",
                            R"({"enabled": true, "inference_tp_size": 1, "max_out_tokens": 4,
                                "release_inference_cache": true, "pin_parameters": false,
                                "tp_gather_partition_size": 4})"}) {
    EXPECT_EQ(refusal(with(std::string(R"("train_batch_size": 4, "hybrid_engine": )") + block), 1),
              "")
        << block;
  }
}

TEST(DeepSpeedFiles, ReportAllContradictionsAtOnce) {
  const std::string message = refusal(with(R"("train_batch_size": 16,
      "train_micro_batch_size_per_gpu": 3, "fp16": {"enabled": true}, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}},
      "optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}})"),
                                      2);

  EXPECT_THAT(message, HasSubstr("16 is not micro 3 x accumulation 2 x ranks 2 = 12"));
  for (const char* path : {"bf16.enabled: ",
                           "zero_optimization.offload_optimizer.device: ",
                           "optimizer.params.max_grad_norm: "}) {
    EXPECT_THAT(message, HasSubstr(path));
  }
}

TEST(DeepSpeedFiles, OffloadToADiskNeedsAFolderAndARuleWhoseStatesTravel) {
  const auto offload = [](const std::string& type, const std::string& path) {
    return refusal(with(R"("train_batch_size": 4, "optimizer": {"type": ")" + type +
                        R"("}, "zero_optimization": {"stage": 1, "offload_optimizer":
                        {"device": "nvme")" +
                        path + "}}"),
                   1);
  };

  EXPECT_EQ(offload("AdamW", R"(, "nvme_path": "/tmp")"), "");
  EXPECT_THAT(offload("AdamW", ""),
              AllOf(HasSubstr("offload_optimizer.nvme_path"), HasSubstr("is missing")));
  EXPECT_THAT(offload("OneBitAdam", R"(, "nvme_path": "/tmp")"),
              AllOf(HasSubstr("offload_optimizer.device"), HasSubstr("OneBitAdam")));
}

TEST(DeepSpeedFiles, OffloadOfWeightsNeedsAFolderAndPartsThatAreSentAsTheyAre) {
  const auto offload = [](const std::string& path, const std::string& more = "") {
    return refusal(with(R"("train_batch_size": 4, "zero_optimization": {"stage": 3)" + more +
                        R"(, "offload_param": {"device": "nvme")" + path + "}}"),
                   4);
  };
  const std::string path = R"(, "nvme_path": "/tmp")";

  EXPECT_EQ(offload(path), "");
  EXPECT_THAT(offload(""), AllOf(HasSubstr("offload_param.nvme_path"), HasSubstr("is missing")));
  for (const char* key : {"\"zero_quantized_weights\": true",
                          "\"zero_quantized_nontrainable_weights\": true",
                          "\"zero_hpz_partition_size\": 2",
                          "\"mics_shard_size\": 2"}) {
    EXPECT_THAT(offload(path, std::string(", ") + key),
                AllOf(HasSubstr("offload_param.device"), HasSubstr("fix: remove ")))
        << key;
  }
}

TEST(DeepSpeedFiles, KeysOfOffloadedWeightsAndDisksAreInForceOrReported) {
  const auto notes = [](const std::string& device) {
    const std::string text =
        with(R"("train_batch_size": 4, "aio": {"block_size": 65536, "queue_depth": 8,
                "intra_op_parallelism": 2, "single_submit": true},
                "zero_optimization": {"stage": 3, "offload_param": {"device": ")" +
             device + R"(", "nvme_path": "/tmp", "buffer_count": 5, "buffer_size": 1e8,
                "max_in_cpu": 1000, "pin_memory": true}})");
    return make_plan(json::parse(text, "ds.json"), 1, "my.json");
  };

  const Plan disk = notes("nvme");
  EXPECT_THAT(text::join(disk.notes(), "\n"), Not(HasSubstr("has no effect: ")));
  EXPECT_EQ(disk.layout().weight_offload,
            (parallel::WeightOffload{.folder = "/tmp", .buffers = 5, .in_memory = 1000}));
  EXPECT_EQ(disk.layout().disk, (memory::TierOptions{.block_bytes = 65536, .transfers = 16}));
  const std::string told = text::join(notes("cpu").notes(), "\n");
  EXPECT_THAT(told, HasSubstr("already in host memory"));
  for (const char* key : {"offload_param.nvme_path",
                          "offload_param.buffer_count",
                          "offload_param.max_in_cpu",
                          "aio.block_size",
                          "aio.queue_depth",
                          "aio.intra_op_parallelism"}) {
    EXPECT_THAT(told, HasSubstr(std::string(key) + " has no effect"));
  }
}

TEST(DeepSpeedFiles, SizesOfGroupsOutsideOfWhatIsUsefulAreReported) {
  const auto plan = [](const std::string& device, const std::string& sizes) {
    const std::string text = with(R"("train_batch_size": 4, "zero_optimization": {"stage": 1,
        "sub_group_size": )" + sizes +
                                  R"(, "nvme_path": "/tmp", "device": ")" + device + "\"}}");
    return make_plan(json::parse(text, "ds.json"), 1, "my.json");
  };
  const std::string few = R"(100, "offload_optimizer": {"buffer_count": 200)";

  const Plan disk = plan("nvme", few);
  EXPECT_THAT(text::join(disk.notes(), "\n"), HasSubstr("sub_group_size 100 runs as 1024"));
  EXPECT_EQ(disk.layout().offload->buffers, 200);
  EXPECT_EQ(disk.layout().offload->unit_elements, 1024);
  EXPECT_THAT(text::join(plan("cpu", few).notes(), "\n"), HasSubstr("buffer_count has no effect"));
}

TEST(DeepSpeedFiles, KeysOfOffloadAreInForceOrReported) {
  const auto notes = [](const std::string& keys) {
    const std::string text = with(R"("train_batch_size": 4, "zero_optimization": {"stage": 3,
        "sub_group_size": 5e8, "offload_optimizer": {)" +
                                  keys + "}}");
    const Plan plan = make_plan(json::parse(text, "ds.json"), 1, "my.json");
    return text::join(plan.notes(), "\n");
  };
  const std::string sizes = R"("nvme_path": "/tmp", "buffer_count": 5, "pipeline_read": false,
      "pipeline_write": false, "ratio": 0.5)";

  EXPECT_THAT(notes(R"("device": "nvme", )" + sizes), Not(HasSubstr("has no effect: zero_opt")));
  const std::string told = notes(R"("device": "cpu", )" + sizes);
  EXPECT_THAT(told, HasSubstr("already in host memory"));
  for (const char* key : {"sub_group_size",
                          "offload_optimizer.nvme_path",
                          "offload_optimizer.buffer_count",
                          "offload_optimizer.pipeline_read",
                          "offload_optimizer.pipeline_write",
                          "offload_optimizer.ratio"}) {
    EXPECT_THAT(told, HasSubstr(std::string(key) + " has no effect"));
  }
}

// The file that Hugging Face's documentation gives for stage 3.
constexpr const char* kTrainerFile = R"(
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                  "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
                  "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto")";

// The file with the values that the command line sets in it.
json::Value from_trainer(const std::vector<std::pair<std::string, std::string>>& flags) {
  json::Value source = json::parse(with(kTrainerFile), "ds.json");
  for (const auto& [key, value] : flags)
    config::set_key(source, key, json::parse(value, "flag"), "--flag");
  return source;
}

TEST(AutoValues, ComeFromTheCommandLineAndTheModel) {
  const Plan plan = make_plan(from_trainer({{"optimizer.lr", "3e-5"},
                                            {"train_micro_batch_size_per_gpu", "2"},
                                            {"trainer.max_steps", "100"},
                                            {"bf16.enabled", "true"}}),
                              2,
                              "ds.json");

  const parallel::Layout& layout = plan.layout();
  EXPECT_EQ(plan.recipe().global_batch, 4);  // 2 x 1 x 2 ranks
  EXPECT_EQ(plan.layout().working, DType::BF16);
  EXPECT_EQ(layout.bucket, 128 * 128);
  EXPECT_EQ(layout.gather.prefetch, 14745);  // int(0.9 x 128 x 128)
  EXPECT_EQ(layout.persistence_threshold, 1280);
  EXPECT_EQ(plan.recipe().clip_norm, 1.0);
  const json::Value& optimizer = plan.recipe().optimizer.params;
  EXPECT_EQ(optimizer.find("weight_decay")->as_double(), 0.0);
  EXPECT_EQ(optimizer.find("eps")->as_double(), 1e-8);
  const json::Value& scheduler = plan.recipe().scheduler.params;
  EXPECT_EQ(scheduler.find("warmup_max_lr")->as_double(), 3e-5);
  EXPECT_EQ(scheduler.find("warmup_num_steps")->as_integer(), 0);
  EXPECT_EQ(scheduler.find("total_num_steps"), nullptr);  // the run's
  EXPECT_THAT(plan.notes(),
              Contains(AllOf(HasSubstr("gradient_clipping"), HasSubstr("--max_grad_norm"))));
}

TEST(AutoValues, ThatNobodySaysStopTrainingBeforeItStarts) {
  const std::string message = refusal(with(kTrainerFile));

  EXPECT_THAT(message,
              AllOf(HasSubstr("optimizer.params.lr: is \"auto\""),
                    HasSubstr("--learning_rate"),
                    HasSubstr("--per_device_train_batch_size"),
                    HasSubstr("ds.json:3:")));
  EXPECT_THAT(message, Not(HasSubstr("weight_decay")));
  EXPECT_THAT(message, Not(HasSubstr("batch size is missing")));
}

TEST(AutoValues, OfTheBatchAreCompletedFromTheOthers) {
  const Plan plan = plan_of(with(R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": "auto")"),
                            3);

  EXPECT_EQ(plan.recipe().global_batch, 12);
  EXPECT_EQ(plan.layout().accumulation, 1);
}

TEST(AutoValues, HaveNoMeaningForKeysOfThisHouse) {
  EXPECT_THAT(refusal(with(R"("train_batch_size": 4, "trainer": {"seed": "auto"})")),
              AllOf(HasSubstr("trainer.seed"), HasSubstr("\"auto\" is not allowed")));
}

}  // namespace
}  // namespace tessera::planner
