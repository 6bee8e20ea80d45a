// SPDX-License-Identifier: Apache-2.0
// What the documents and scripts of other programs write, which their own parsers also accept.
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/interop/toml.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class PublishedCommands : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write(
        "d/train.jsonl",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    write("vocab.json", "{}");
    write("merges.txt", "");
  }
  /// Writes a file of axolotl with these lines more.
  static void axolotl(const std::string& lines) {
    write("x.yml",
          "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\n"
          "adapter: lora\nlora_r: 4\nlora_alpha: 8\nsequence_len: 64\nmicro_batch_size: 1\n"
          "num_epochs: 1\nlearning_rate: 0.0002\n" +
              lines);
  }
};

constexpr const char* kAxolotl = "axolotl train x.yml";
constexpr const char* kSft = "trl sft --model_name_or_path m --dataset_name d ";
constexpr const char* kMegatron =
    "pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
    "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 "
    "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 256 --lr-decay-style "
    "cosine ";

TEST_F(PublishedCommands, AdaptMatricesOfExperts) {
  const std::string list =
      "lora_target_parameters:\n  - mlp.experts.gate_up_proj\n  - mlp.experts.down_proj\n";
  const std::string names = R"(["mlp.experts.gate_up_proj","mlp.experts.down_proj"])";
  axolotl(list + "lora_target_modules:\n  - q_proj\n");
  ForeignCommand command = read(kAxolotl);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), R"(["q_proj"])");
  // PEFT adapts no layers then.
  axolotl(list);
  command = read(kAxolotl);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "[]");

  const std::string flags =
      "--use_peft --lora_target_parameters mlp.experts.gate_up_proj mlp.experts.down_proj ";
  command = read(kSft + flags);
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "[]");
  command = read(kSft + flags + "--lora_target_modules all-linear");
  EXPECT_EQ(key(command, "adapter.target_parameters"), names);
  EXPECT_EQ(key(command, "adapter.targets"), "none");
  EXPECT_EQ(key(read(std::string(kSft) + "--use_peft"), "adapter.target_parameters"), "none");
}

TEST_F(PublishedCommands, ReadStoredWeightsOfFewBitsOnlyAsAWhole) {
  axolotl(
      "model_quantization_config: Mxfp4Config\nmodel_quantization_config_kwargs:\n"
      "  dequantize: true\nquantize_moe_experts: true\n");
  EXPECT_EQ(key(read(kAxolotl), "model.from"), "\"m\"");
  for (const char* lines : {"model_quantization_config: Mxfp4Config\n",
                            "model_quantization_config: Mxfp4Config\n"
                            "model_quantization_config_kwargs:\n  dequantize: false\n",
                            "model_quantization_config: FineGrainedFP8Config\n"
                            "model_quantization_config_kwargs:\n  dequantize: true\n"}) {
    axolotl(lines);
    EXPECT_THAT(refusal(kAxolotl), HasSubstr("model_quantization_config")) << lines;
  }
}

TEST_F(PublishedCommands, SayWhatToDoInPlaceOfASlice) {
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: d\n    type: chat_template\n    split: train[:1%]\n"
        "sequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 0.0002\n");
  EXPECT_THAT(refusal(kAxolotl), HasSubstr("head -n 100"));
}

// DeepSpeed-Chat's scripts start main.py in the folder of the step.
TEST_F(PublishedCommands, AreRecognisedByTheFolderInWhichTheyAreTyped) {
  const std::string options =
      "main.py --data_path data --data_split 2,4,4 --model_name_or_path m "
      "--per_device_train_batch_size 1 --max_seq_len 16 --learning_rate 1e-5 "
      "--num_train_epochs 1 --output_dir out";
  EXPECT_THAT(refusal("deepspeed " + options), HasSubstr("does not know"));
  for (const auto& [folder, program] :
       {std::pair("step1_supervised_finetuning", "DeepSpeed-Chat's step 1"),
        std::pair("step2_reward_model_finetuning", "DeepSpeed-Chat's step 2"),
        std::pair("step2_dpo_finetuning", "DeepSpeed-Chat's step 2 with DPO")}) {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
    std::filesystem::create_directories("m");
    write("m/config.json", R"({"model_type": "opt"})");
    std::string records;
    for (int i = 0; i < 40; ++i)
      records += R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                 "\n";
    write("data/train.jsonl", records);
    std::string said;
    try {
      said = read("deepspeed " + options).program;
    } catch (const Error& error) {
      said = error.what();
    }
    std::filesystem::current_path(before);
    EXPECT_EQ(said, program) << folder;
  }
  // Part of a folder's name is not the folder.
  std::filesystem::create_directories("my_step2_dpo_finetuning");
  std::filesystem::current_path("my_step2_dpo_finetuning");
  EXPECT_THAT(refusal("deepspeed " + options), HasSubstr("does not know"));
  std::filesystem::current_path("..");
}

TEST_F(PublishedCommands, HaveNumbersAsPythonWritesThem) {
  for (const auto& [typed, read_as] : {std::pair(".5", "0.5"), std::pair("0.5", "0.5")}) {
    const ForeignCommand command =
        read(std::string(kMegatron) + "--lr-warmup-fraction " + typed + " --min-lr .0001");
    EXPECT_EQ(key(command, "scheduler.params.lr_warmup_fraction"), read_as) << typed;
    EXPECT_EQ(key(command, "scheduler.params.min_lr"), "1e-04");
  }
}

TEST_F(PublishedCommands, LeaveTheScaleOfLossesToDeepSpeedsFile) {
  write("ds.json",
        R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 500,
            "initial_scale_power": 11, "min_loss_scale": 1}})");
  const ForeignCommand command =
      read(std::string("deepspeed ") + kMegatron + "--fp16 --deepspeed --deepspeed_config ds.json");
  EXPECT_EQ(key(command, "fp16.enabled"), "true");
  EXPECT_EQ(key(command, "fp16.initial_scale_power"), "11");
  for (const char* one : {"fp16.scaler", "fp16.initial_scale", "fp16.growth_interval"})
    EXPECT_EQ(key(command, one), "none") << one;
  EXPECT_EQ(key(read(std::string(kMegatron) + "--fp16"), "fp16.scaler"), "\"megatron\"");
}

TEST_F(PublishedCommands, GiveValuesWithEqualsSigns) {
  const ForeignCommand command = read(
      "run_clm.py --model_type gpt2 --train_file t.txt --do_train --config_overrides "
      "n_embd=32,n_layer=1");
  EXPECT_EQ(key(command, "model.hidden_size"), "32");
  EXPECT_EQ(key(command, "model.num_layers"), "1");
}

TEST_F(PublishedCommands, KnowTheColumnsOfSummaries) {
  write("m/config.json", R"({"model_type": "t5"})");
  write("cnn_dailymail/train.jsonl", R"({"article": "a", "highlights": "b"})");
  const std::string line =
      "run_summarization.py --model_name_or_path m --do_train --dataset_name cnn_dailymail "
      "--output_dir out ";
  ForeignCommand command = read(line);
  EXPECT_EQ(key(command, "task.params.source_field"), "\"article\"");
  EXPECT_EQ(key(command, "task.params.target_field"), "\"highlights\"");
  command = read(line + "--text_column id");
  EXPECT_EQ(key(command, "task.params.source_field"), "\"id\"");
}

TEST_F(PublishedCommands, NameTheLayoutsOfTrl) {
  for (const auto& [name, stage, ranks] : {std::tuple("zero1", "1", 8),
                                           std::tuple("zero2", "2", 8),
                                           std::tuple("zero3", "3", 8),
                                           std::tuple("fsdp2", "3", 8),
                                           std::tuple("multi_gpu", "0", 8),
                                           std::tuple("single_gpu", "none", 1)}) {
    const ForeignCommand command = read(kSft + std::string("--accelerate_config ") + name);
    EXPECT_EQ(key(command, "zero_optimization.stage"), stage) << name;
    EXPECT_EQ(command.ranks, ranks) << name;
  }
  EXPECT_EQ(read(std::string(kSft) + "--accelerate_config zero2 --num_processes 4").ranks, 4);
  EXPECT_THAT(refusal(std::string(kSft) + "--accelerate_config my.yaml"),
              HasSubstr("give the file to accelerate"));
}

TEST_F(PublishedCommands, HaveSectionsOfConvertersThatAreNotUsed) {
  if (!reads_toml()) GTEST_SKIP() << "built without toml++";
  write("x.toml",
        "[job]\ndump_folder = \"out\"\n\n[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n\n"
        "[training]\nseq_len = 64\nsteps = 10\ndataset = \"t.txt\"\n\n"
        "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = false\n"
        "filter_fqns = [\"output\"]\n\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n");
  const std::string command = "torchrun -m torchtitan.train --job.config_file x.toml ";
  EXPECT_EQ(key(read(command), "trainer.max_steps"), "10");
  EXPECT_THAT(refusal(command + "--model.converters quantize.linear.float8"),
              HasSubstr("there is no such precision"));
}

}  // namespace
}  // namespace tessera::interop
