// SPDX-License-Identifier: Apache-2.0
// torchtitan's TOML files become configurations.
#include <string>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/interop/toml.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class Torchtitan : public CommandFolder {
 protected:
  void SetUp() override {
    if (!reads_toml()) GTEST_SKIP() << "built without toml++";
    CommandFolder::SetUp();
    write("x.toml",
          "[job]\ndump_folder = \"./outputs\"\n\n[model]\nname = \"llama3\"\nflavor = "
          "\"debugmodel\"\n\n[optimizer]\nname = \"AdamW\"\nlr = 8e-4\n\n[lr_scheduler]\n"
          "warmup_steps = 2\ndecay_ratio = 0.8\ndecay_type = \"linear\"\n\n[training]\n"
          "local_batch_size = 4\nseq_len = 64\nsteps = 10\ndataset = \"t.txt\"\n\n[parallelism]\n"
          "data_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n\n[checkpoint]\nenable = "
          "true\ninterval = 5\n\n[activation_checkpoint]\nmode = \"full\"\n");
  }
  void TearDown() override {
    if (reads_toml()) CommandFolder::TearDown();
  }
};

constexpr const char* kTitan =
    "torchrun --nproc_per_node 4 torchtitan/train.py --job.config_file x.toml ";

TEST_F(Torchtitan, GivesItsLayoutAndPrecision) {
  const ForeignCommand command = read(kTitan);
  EXPECT_EQ(command.program, "torchtitan's train.py");
  EXPECT_EQ(command.ranks, 4);
  EXPECT_EQ(key(command, "zero_optimization.stage"), "3");
  EXPECT_EQ(key(command, "parallel.tensor.size"), "2");
  EXPECT_EQ(key(command, "parallel.sequence"), "true");
  EXPECT_EQ(key(command, "bf16.enabled"), "true");
  EXPECT_EQ(key(command, "model.hidden_size"), "256");
  EXPECT_EQ(key(command, "optimizer.params.betas"), "[0.9,0.95]");
  EXPECT_EQ(key(command, "optimizer.params.weight_decay"), "0.1");
  EXPECT_EQ(key(command, "optimizer.decay_all"), "true");
  EXPECT_EQ(key(command, "scheduler.params.num_decay_steps"), "8");
  EXPECT_EQ(key(command, "trainer.max_steps"), "10");
  EXPECT_EQ(key(command, "checkpoint.every"), "5");
  EXPECT_EQ(key(command, "activation_checkpointing.granularity"), "\"full\"");
  EXPECT_EQ(key(command, "data.train"), "\"t.txt\"");
}

TEST_F(Torchtitan, GivesWayToOptionsAndModules) {
  const ForeignCommand command = read(
      "torchrun --nproc_per_node 2 -m torchtitan.train --job.config_file x.toml "
      "--training.steps 20 --parallelism.tensor_parallel_degree=1 "
      "--parallelism.fsdp_reshard_after_forward never --lr_scheduler.decay_ratio 0.5");
  EXPECT_EQ(key(command, "trainer.max_steps"), "20");
  EXPECT_EQ(key(command, "parallel.tensor.size"), "1");
  EXPECT_EQ(key(command, "zero_optimization.stage"), "2");
  EXPECT_EQ(key(command, "scheduler.params.num_decay_steps"), "10");
}

TEST_F(Torchtitan, KnowsTheSizesOfItsModels) {
  const std::string start = std::string(kTitan) + "--parallelism.tensor_parallel_degree 1 ";
  ForeignCommand command = read(start + "--model.name qwen3 --model.flavor 0.6B");
  EXPECT_EQ(key(command, "model.preset"), "\"qwen3-0.6b\"");
  command = read(start + "--model.name qwen3 --model.flavor debugmodel_moe");
  EXPECT_EQ(key(command, "model.family"), "\"qwen3_moe\"");
  EXPECT_EQ(key(command, "model.moe.top_k"), "8");
  EXPECT_EQ(key(command, "model.moe.router.bias_update"), "0.001");
  const std::string deepseek = start + "--model.name deepseek_v3 --model.flavor 671B ";
  command = read(deepseek + "--training.seq_len 4096 --parallelism.expert_parallel_degree 2");
  EXPECT_EQ(key(command, "model.kv_lora_rank"), "512");
  EXPECT_EQ(key(command, "model.moe.router.groups"), "8");
  EXPECT_EQ(key(command, "model.rope_scaling"), "none") << "no longer than the original";
  EXPECT_EQ(key(command, "parallel.expert"), "2");
  EXPECT_EQ(key(read(deepseek + "--training.seq_len 8192"), "model.rope_scaling"), "\"yarn\"");
  EXPECT_EQ(key(read(start + "--model.name gpt_oss"), "model.head_dim"), "64");
  command = read(start + "--model.name llama4 --model.flavor debugmodel_irope");
  EXPECT_EQ(key(command, "model.no_rope_layers"), "[0,4]");
  EXPECT_EQ(key(command, "data.separate_documents"), "true");
  command = read(std::string(kTitan) +
                 "--model.name llama4 --parallelism.expert_tensor_parallel_degree 2");
  EXPECT_EQ(key(command, "parallel.expert_tensor"), "2");
  EXPECT_EQ(key(command, "parallel.sequence"), "none") << "experts hold whole tokens";
}

TEST_F(Torchtitan, RefusesWhatIsNotBuilt) {
  for (const auto& [option, what] :
       {std::pair("--model.converters float8", "there is no such precision"),
        std::pair("--model.flavor 1T", "sizes of 1T are part of torchtitan"),
        std::pair("--training.step 5", "did you mean training.steps?"),
        std::pair("--training.dataset c4", "no such data set on this machine"),
        std::pair("--lr_scheduler.decay_ratio 0.9", "longer than the training")})
    EXPECT_THAT(refusal(std::string(kTitan) + option), HasSubstr(what)) << option;
  write("x.toml", "[training]\nstep = 5\n");
  EXPECT_THAT(refusal(kTitan), HasSubstr("x.toml:2:1: training.step"));
  write("x.toml", "[training]\nsteps = \n");
  EXPECT_THAT(refusal(kTitan), HasSubstr("x.toml:2:"));
}

}  // namespace
}  // namespace tessera::interop
