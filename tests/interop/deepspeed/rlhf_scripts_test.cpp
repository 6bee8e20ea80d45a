// SPDX-License-Identifier: Apache-2.0
// DeepSpeed-Chat's e2e_rlhf.py, chat.py and prompt_eval.py.
#include <filesystem>
#include <string>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class RlhfScripts : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    setenv("TESSERA_MODELS", "models", 1);
    setenv("TESSERA_DATA", "data", 1);
    for (const char* model : {"opt-1.3b", "opt-350m"})
      write(std::string("models/facebook/") + model + "/config.json", R"({"model_type": "opt"})");
    const std::string records =
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"response\": \"d\"}\n";
    std::string all;
    for (int i = 0; i < 20; ++i)
      all += records;
    write("data/Dahoas/rm-static/train.jsonl", all);
    write("data/Dahoas/rm-static/test.jsonl", all);
    script("step1_supervised_finetuning",
           "run_1.3b.sh",
           "#!/bin/bash\n# A comment\nOUTPUT=$1\nZERO_STAGE=$2\nif [ \"$OUTPUT\" == \"\" ]; then\n"
           "    OUTPUT=./output\nfi\nif [ \"$ZERO_STAGE\" == \"\" ]; then\n    ZERO_STAGE=2\nfi\n"
           "mkdir -p $OUTPUT\n\ndeepspeed --num_gpus 1 main.py --model_name_or_path "
           "facebook/opt-1.3b \\\n   --gradient_accumulation_steps 8 --lora_dim 128 --zero_stage "
           "$ZERO_STAGE \\\n   --deepspeed --output_dir $OUTPUT &> $OUTPUT/training.log\n");
    script("step2_reward_model_finetuning",
           "run_350m.sh",
           "OUTPUT=$1\nZERO_STAGE=$2\nif [ \"$ZERO_STAGE\" == \"\" ]; then\n    ZERO_STAGE=0\nfi\n"
           "deepspeed --num_gpus 1 main.py --model_name_or_path facebook/opt-350m \\\n   "
           "--num_padding_at_beginning 1 --weight_decay 0.1 --dropout 0.0 --zero_stage $ZERO_STAGE "
           "\\\n   --deepspeed --output_dir $OUTPUT\n");
    script(
        "step3_rlhf_finetuning",
        "run_1.3b.sh",
        "ACTOR_MODEL_PATH=$1\nCRITIC_MODEL_PATH=$2\nACTOR_ZERO_STAGE=${3}\nCRITIC_ZERO_STAGE=$4\n"
        "OUTPUT=$5\nif [ \"$ACTOR_ZERO_STAGE\" == \"\" ]; then\n    ACTOR_ZERO_STAGE=0\nfi\n"
        "if [ \"$CRITIC_ZERO_STAGE\" == \"\" ]; then\n    CRITIC_ZERO_STAGE=0\nfi\n"
        "deepspeed --num_gpus 1 main.py \\\n   --actor_model_name_or_path $ACTOR_MODEL_PATH "
        "--critic_model_name_or_path $CRITIC_MODEL_PATH \\\n   --actor_zero_stage "
        "$ACTOR_ZERO_STAGE --critic_zero_stage $CRITIC_ZERO_STAGE \\\n   "
        "--num_padding_at_beginning 1 --gradient_accumulation_steps 2 --deepspeed "
        "--actor_dropout 0.0 \\\n   --output_dir $OUTPUT\n");
  }
  void TearDown() override {
    unsetenv("TESSERA_MODELS");
    unsetenv("TESSERA_DATA");
    CommandFolder::TearDown();
  }
  static void script(const std::string& step, const std::string& name, const std::string& text) {
    write("DeepSpeed-Chat/training/" + step + "/training_scripts/opt/single_gpu/" + name, text);
  }
};

TEST_F(RlhfScripts, BecomeOneFileOfThreeSteps) {
  const ForeignCommand command = read(
      "python3 DeepSpeed-Chat/e2e_rlhf.py --actor-model facebook/opt-1.3b --reward-model "
      "facebook/opt-350m --deployment-type single_gpu --actor-zero-stage 3 --output-dir o");
  EXPECT_EQ(command.command, "rlhf");
  ASSERT_GE(command.words.size(), 1U);
  const json::Value all = json::parse_strict(files::read(command.words[0]), "rlhf");
  EXPECT_EQ(all.find("dir")->as_string(), "o");
  const auto at = [&](const std::string& path) {
    const json::Value* value = &all;
    for (const std::string& step : text::split(path, '.'))
      value = value != nullptr && value->is_object() ? value->find(step) : nullptr;
    return value == nullptr ? "none" : value->dump();
  };
  EXPECT_EQ(at("sft.model.from"), "\"facebook/opt-1.3b\"");
  EXPECT_EQ(at("sft.zero_optimization.stage"), "3");
  EXPECT_EQ(at("sft.adapter.r"), "128");
  EXPECT_EQ(at("sft.gradient_accumulation_steps"), "8");
  EXPECT_EQ(at("reward.model.from"), "\"facebook/opt-350m\"");
  EXPECT_EQ(at("reward.zero_optimization.stage"), "0");
  EXPECT_EQ(at("reward.optimizer.params.weight_decay"), "0.1");
  // What follows from the steps before.
  EXPECT_EQ(at("rl.model.from"), "none");
  EXPECT_EQ(at("rl.rl.rewards"), "none");
  EXPECT_EQ(at("rl.zero_optimization.stage"), "3");
  EXPECT_EQ(at("rl.run.dir"), "none");
  // Each step reads its own part of the data.
  EXPECT_NE(at("sft.data.train"), at("reward.data.train"));
}

// Its first versions had another name, and their scripts another folder.
TEST_F(RlhfScripts, OfOlderVersionsMeanTheSame) {
  const std::string options =
      " --step 1 2 3 --deployment-type single_gpu --actor-model 1.3b --reward-model 350m";
  const ForeignCommand now = read("python3 DeepSpeed-Chat/e2e_rlhf.py" + options);
  for (const char* step :
       {"step1_supervised_finetuning", "step2_reward_model_finetuning", "step3_rlhf_finetuning"}) {
    const std::filesystem::path scripts =
        std::string("DeepSpeed-Chat/training/") + step + "/training_scripts";
    std::filesystem::rename(scripts / "opt/single_gpu", scripts / "single_gpu");
    std::filesystem::remove(scripts / "opt");
  }

  const ForeignCommand then = read("python3 DeepSpeed-Chat/train.py" + options);

  EXPECT_EQ(then.command, "rlhf");
  EXPECT_EQ(then.words, now.words);
}

TEST_F(RlhfScripts, AreRefusedWithWhatIsMissing) {
  EXPECT_THAT(refusal("python3 e2e_rlhf.py --actor-model facebook/opt-1.3b"),
              HasSubstr("run_1.3b.sh, which does not exist"));
  EXPECT_THAT(refusal("python3 DeepSpeed-Chat/e2e_rlhf.py --actor-model facebook/opt-66b"),
              HasSubstr("run_66b.sh, which does not exist"));
  script("step1_supervised_finetuning", "run_1.3b.sh", "echo nothing\n");
  EXPECT_THAT(refusal("python3 DeepSpeed-Chat/e2e_rlhf.py"),
              HasSubstr("no line begins with deepspeed"));
  EXPECT_THAT(refusal("python3 DeepSpeed-Chat/e2e_rlhf.py --actor-modell x"),
              HasSubstr("did you mean actor_model?"));
}

TEST_F(RlhfScripts, ThatWouldNeverEndAreRefused) {
  script("step1_supervised_finetuning", "run_1.3b.sh", "deepspeed e2e_rlhf.py\n");
  EXPECT_THAT(refusal("python3 DeepSpeed-Chat/e2e_rlhf.py"), HasSubstr("e2e_rlhf.py again"));
  std::string doubling = "A=xxxxxxxx\n";
  for (int i = 0; i < 60; ++i)
    doubling += "A=$A$A\n";
  script("step1_supervised_finetuning", "run_1.3b.sh", doubling + "deepspeed main.py $A\n");
  EXPECT_THAT(refusal("python3 DeepSpeed-Chat/e2e_rlhf.py"), HasSubstr("is too long"));
}

TEST_F(RlhfScripts, TalkAndCompare) {
  const ForeignCommand chat = read("python DeepSpeed-Chat/chat.py --path out --max_new_tokens 64");
  EXPECT_EQ(chat.command, "chat");
  EXPECT_THAT(chat.words, testing::ElementsAre("out", "--max-new-tokens", "64"));
  const ForeignCommand compare =
      read("python prompt_eval.py --model_name_or_path_baseline a --model_name_or_path_finetune b");
  EXPECT_EQ(compare.command, "prompt-eval");
  ASSERT_GE(compare.words.size(), 4U);
  EXPECT_EQ(compare.words[1], "b");
  EXPECT_THAT(files::read(compare.words[3]), HasSubstr("How does a telescope work?"));
  EXPECT_THAT(refusal("python prompt_eval.py --model_name_or_path_baseline a "
                      "--model_name_or_path_finetune b --num_beams 4"),
              HasSubstr("both models answer greedily"));
  EXPECT_THAT(refusal("python chatbot.py"), HasSubstr("add --path MODEL"));
}

}  // namespace
}  // namespace tessera::interop
