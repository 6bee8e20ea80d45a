// SPDX-License-Identifier: Apache-2.0
// Commands of other programs become the configuration that they mean.
#include "tessera/interop/foreign_command.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/command_folder.h"
#include "interop/make_schedule.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/cadence.h"
#include "tessera/data/sample_order.h"
#include "tessera/optim/batch_ramp.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Commands : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write(
        "d/train.jsonl",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    write("d/test.jsonl", R"({"messages": []})");
  }
  static std::string origin(const ForeignCommand& command, const std::string& path) {
    const json::Value* at = &command.source;
    for (const std::string& step : text::split(path, '.'))
      at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
    return at == nullptr ? "none" : at->place.text();
  }
};

constexpr const char* kClm = "run_clm.py --model_name_or_path m --train_file t.txt --do_train ";

TEST_F(Commands, AreRecognisedBehindTheirLaunchers) {
  for (const char* launcher : {"python ",
                               "python3 -u ",
                               "torchrun --nproc_per_node 2 ",
                               "torchrun --standalone --nproc-per-node=2 ",
                               "python -m torch.distributed.run --nproc_per_node 2 ",
                               "python -m torch.distributed.launch --nproc_per_node=2 ",
                               "accelerate launch --num_processes 2 ",
                               "deepspeed --num_gpus 2 ",
                               "deepspeed --num_gpus=2 --master_port 29500 ",
                               "colossalai run --nproc_per_node 2 ",
                               "srun -n 2 ",
                               "srun -n2 ",
                               "mpirun -np 2 ",
                               "mpirun -np 2 python ",
                               "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 ",
                               ""}) {
    const ForeignCommand command = read(std::string(launcher) + kClm);
    EXPECT_EQ(command.program, "Hugging Face's run_clm.py") << launcher;
    const bool many = std::string(launcher).find('2') != std::string::npos;
    EXPECT_EQ(command.ranks.value_or(1), many ? 2 : 1) << launcher;
    EXPECT_EQ(key(command, "model.from"), "\"m\"") << launcher;
  }
}

TEST_F(Commands, AreNotOtherWords) {
  EXPECT_FALSE(is_foreign_command({"train", "my.json"}));
  EXPECT_FALSE(is_foreign_command({"init"}));
  EXPECT_FALSE(is_foreign_command({}));
  EXPECT_TRUE(is_foreign_command({"trl", "sft"}));
  EXPECT_FALSE(knows_foreign_command({"python", "mine.py"}));
  EXPECT_FALSE(knows_foreign_command({"python", "train.py", "--lr", "1"}));
  EXPECT_TRUE(knows_foreign_command({"python", "LLaMA-Factory/src/train.py", "x.yaml"}));
  EXPECT_TRUE(knows_foreign_command({"torchrun", "--nproc_per_node", "8", "pretrain_gpt.py"}));
}

TEST_F(Commands, SayWhereEachKeyComesFrom) {
  const ForeignCommand command = read(std::string(kClm) + "--learning_rate 3e-5 --bf16");
  EXPECT_EQ(key(command, "optimizer.params.lr"), "3e-5");
  EXPECT_EQ(origin(command, "optimizer.params.lr"), "--learning_rate");
  EXPECT_THAT(origin(command, "trainer.seed"), HasSubstr("default of Hugging Face's run_clm.py"));
  const std::string text = with_origins(command.source);
  EXPECT_THAT(text, HasSubstr("// --learning_rate"));
  EXPECT_EQ(json::parse(text, "converted.json"), command.source);
}

TEST_F(Commands, HaveTheDefaultsOfTheirPrograms) {
  const ForeignCommand clm = read(kClm);
  EXPECT_EQ(key(clm, "optimizer.params.lr"), "5e-05");
  EXPECT_EQ(key(clm, "optimizer.params.weight_decay"), "0.0");
  EXPECT_EQ(key(clm, "trainer.seed"), "42");
  EXPECT_EQ(key(clm, "gradient_clipping"), "1.0");
  EXPECT_EQ(key(clm, "bf16.enabled"), "none");
  EXPECT_EQ(key(clm, "data.drop_last"), "false");
  const ForeignCommand sft = read("trl sft --model_name_or_path m --dataset_name d");
  EXPECT_EQ(key(sft, "optimizer.params.lr"), "2e-05");
  EXPECT_EQ(key(sft, "bf16.enabled"), "true");
  EXPECT_EQ(key(sft, "activation_checkpointing.enabled"), "true");
  EXPECT_EQ(key(sft, "data.sequence_length"), "1024");
  EXPECT_EQ(key(sft, "data.pack"), "false");
  // All of a conversation is learned unless an option says otherwise.
  EXPECT_EQ(key(sft, "task.params.loss_on"), "\"all\"");
}

TEST_F(Commands, GiveWayToFlagsThenFilesThenLaunchers) {
  write("a.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\n");
  write("s.yaml",
        "model_name_or_path: m\ndataset_name: d\nlearning_rate: 1.0e-4\nmax_length: 64\n");
  const ForeignCommand command =
      read("accelerate launch --config_file a.yaml sft.py --config s.yaml --learning_rate 3e-4");
  EXPECT_EQ(key(command, "optimizer.params.lr"), "3e-4");
  EXPECT_EQ(key(command, "data.sequence_length"), "64");
  EXPECT_EQ(origin(command, "data.sequence_length"), "s.yaml:4:1: max_length");
  EXPECT_EQ(key(command, "zero_optimization.stage"), "3");
  EXPECT_EQ(origin(command, "zero_optimization.stage"), "a.yaml:5:3: zero_stage");
  EXPECT_EQ(key(command, "gradient_accumulation_steps"), "4");
  EXPECT_EQ(command.ranks, 2);
}

// Files of accelerate with FSDP: ranks, the stage of ZeRO, precision.
TEST_F(Commands, ReadFilesOfAccelerate) {
  struct Case {
    const char *fsdp, *stage;
  };
  for (const Case& one : {Case{"  fsdp_sharding_strategy: FULL_SHARD\n", "3"},
                          Case{"  fsdp_sharding_strategy: 2\n", "2"},
                          Case{"  fsdp_sharding_strategy: NO_SHARD\n", "0"},
                          Case{"  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n", "3"},
                          Case{"  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n", "2"}}) {
    write("fsdp.yaml",
          std::string("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
                      "num_processes: 4\nmixed_precision: bf16\nfsdp_config:\n") +
              one.fsdp + "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
    const ForeignCommand command = read("accelerate launch --config_file fsdp.yaml " +
                                        std::string(kClm) + "--learning_rate 1e-4");
    EXPECT_EQ(command.ranks, 4);
    EXPECT_EQ(key(command, "zero_optimization.stage"), one.stage) << one.fsdp;
    EXPECT_EQ(key(command, "bf16.enabled"), "true");
  }
}

TEST_F(Commands, ReportAllProblemsAtOnce) {
  const std::string text =
      refusal("trl sft --model_name_or_path m --dataset_nam d --learningrate 1e-4 --eval_delay 3");
  EXPECT_THAT(text,
              HasSubstr("--dataset_nam is not an option of TRL's sft: did you mean dataset_name?"));
  EXPECT_THAT(text, HasSubstr("did you mean learning_rate?"));
  EXPECT_THAT(text, HasSubstr("--eval_delay 3 is not supported"));
}

TEST_F(Commands, RefuseOptionsOnlyIfTheyAskForSomething) {
  EXPECT_EQ(refusal(std::string(kClm) + "--auto_find_batch_size False"), "accepted");
  EXPECT_THAT(refusal(std::string(kClm) + "--auto_find_batch_size"), HasSubstr("not supported"));
  EXPECT_EQ(refusal(std::string(kClm) + "--eval_delay 0"), "accepted");
  EXPECT_THAT(refusal(std::string(kClm) + "--eval_delay 10"), HasSubstr("not supported"));
}

TEST_F(Commands, RefuseWhatCannotBeMeant) {
  EXPECT_THAT(refusal("torchrun accelerate launch run_clm.py"), HasSubstr("two launchers"));
  EXPECT_THAT(refusal("torchrun --nproc_per_node 2"), HasSubstr("the script is missing"));
  EXPECT_THAT(refusal("trl dpo --model_name_or_path $MODEL"), HasSubstr("shell variable"));
  EXPECT_THAT(refusal("trl dpo \xE2\x80\x94model m"), HasSubstr("typographic dash"));
  EXPECT_THAT(refusal("trl dpo --model \xE2\x80\x9Cm\xE2\x80\x9D"), HasSubstr("typographic quote"));
  EXPECT_THAT(refusal("python run_qa.py"), HasSubstr("no task that marks an answer"));
  EXPECT_THAT(refusal("python3 preprocess.py --corpus_path c.txt --data_processor mlm"),
              HasSubstr("there is no such file"));
  EXPECT_THAT(refusal("python mine.py"), HasSubstr("scripts are not executed"));
  EXPECT_THAT(refusal("run_clm.py --model_name_or_path m --train_file t.txt"),
              HasSubstr("--do_train"));
  EXPECT_THAT(refusal("run_clm.py --do_train --train_file t.txt"), HasSubstr("without a model"));
  EXPECT_THAT(refusal(std::string(kClm) + "--fsdp full_shard --deepspeed ds.json"),
              HasSubstr("ds.json"));
  write("ds.json", "{}");
  EXPECT_THAT(refusal(std::string(kClm) + "--fsdp full_shard --deepspeed ds.json"),
              HasSubstr("FSDP and DeepSpeed at once"));
  EXPECT_THAT(refusal("accelerate launch --use_fsdp --use_deepspeed sft.py"), HasSubstr("at once"));
}

// What people type by mistake, or copy from a page: one sentence each.
TEST_F(Commands, SayOneSentenceOfEachMistake) {
  write("tab.yaml", "base_model: m\ndatasets:\n\t- path: d\n");
  write("twice.yaml", "base_model: m\nbase_model: n\n");
  write("second.yaml", "base_model: m\n---\nbase_model: m\n");
  write("open.yaml", "base_model: [m\n");
  std::string bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 8; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k)
      bomb += fmt::format("{}*a{}", k == 0 ? "" : ", ", i - 1);
    bomb += "]\n";
  }
  write("bomb.yaml", bomb);
  write("unknown.yaml", "base_model: *nothing\n");
  write("both.yaml",
        "num_processes: 2\ndeepspeed_config:\n  zero_stage: 3\nfsdp_config:\n  "
        "fsdp_sharding_strategy: FULL_SHARD\n");
  write("ds.json", "{}");
  const std::string clm = kClm;
  for (const auto& [line, what] :
       {std::pair<std::string, const char*>{"torchrun accelerate launch run_clm.py",
                                            "two launchers: torchrun and accelerate launch"},
        {"deepspeed --num_gpus 2 torchrun --nproc_per_node 2 run_clm.py", "two launchers"},
        {"mpirun -np 2 torchrun run_clm.py", "two launchers"},
        {"torchrun --nproc_per_node 8", "the script is missing"},
        {"accelerate launch --num_processes 8", "the script is missing"},
        {"torchrun --nproc_per_node many run_clm.py", "expected a number of ranks"},
        {clm + "--fsdp full_shard --deepspeed ds.json", "FSDP and DeepSpeed at once"},
        {"accelerate launch --use_fsdp --use_deepspeed " + clm, "at once"},
        {"accelerate launch --config_file both.yaml " + clm, "DeepSpeed and of FSDP at once"},
        {clm + "--fp16 --bf16", "--fp16 and --bf16 at once"},
        {clm + "--load_best_model_at_end", "without evaluations"},
        {"run_clm.py --do_train --train_file t.txt", "without a model"},
        {"run_clm.py --do_train --model_name_or_path m", "without data"},
        {"trl sft --model_name_or_path m", "without data"},
        {"axolotl train tab.yaml", "tab.yaml:3:"},
        {"axolotl train twice.yaml", "twice.yaml:2:1"},
        {"axolotl train second.yaml", "second document"},
        {"axolotl train open.yaml", "not YAML"},
        {"axolotl train bomb.yaml", "100000 values"},
        {"axolotl train unknown.yaml", "not YAML"},
        {"axolotl train none.yaml", "none.yaml does not exist"},
        {"trl sft --model_name_or_path $MODEL", "the shell variable in $MODEL is left in"},
        {"trl sft --model_name_or_path ${MODEL}", "the shell variable in ${MODEL}"},
        {"trl sft --model_name_or_path=$_m", "the shell variable"},
        {"trl sft --model_name_or_path $model", "the shell variable in $model"},
        {"trl sft --output_dir out/$name --model_name_or_path m",
         "the shell variable in out/$name"},
        {"trl sft --model_name_or_path m $@", "the shell variable in $@"},
        {"trl sft --model_name_or_path m --output_dir $1", "the shell variable in $1"},
        {"trl sft \xE2\x80\x93\xE2\x80\x93model m", "typographic dash"},
        {"trl sft \xE2\x80\x94model m", "typographic dash"},
        {"trl sft \xE2\x88\x92\xE2\x88\x92model m", "typographic dash"},
        {"trl sft --model \xE2\x80\x9Cm\xE2\x80\x9D", "typographic quote"},
        {"trl sft --model \xE2\x80\x98m\xE2\x80\x99", "typographic quote"},
        {"trl stf --model_name_or_path m", "is not a command"},
        {"python nothing.py", "scripts are not executed"}}) {
    try {
      read(line);
      ADD_FAILURE() << line << " is accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), HasSubstr(what)) << line;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST_F(Commands, ReadAnchorsOfYaml) {
  write("x.yml",
        "base_model: &model m\ntokenizer_config: *model\ndatasets:\n  - path: d/train.jsonl\n    "
        "type: chat_template\nsequence_len: 64\nmicro_batch_size: 1\nlearning_rate: 1e-4\n");
  EXPECT_EQ(key(read("axolotl train x.yml"), "model.from"), "\"m\"");
}

TEST_F(Commands, NameModelsAndDataThatAreNotHere) {
  EXPECT_THAT(refusal("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d"),
              HasSubstr("hf download Qwen/Qwen2.5-0.5B"));
  EXPECT_THAT(refusal("trl sft --model_name_or_path m --dataset_name trl-lib/Capybara"),
              HasSubstr("hf download --repo-type dataset trl-lib/Capybara"));
}

TEST_F(Commands, FindDataByItsName) {
  fs::create_directories("all/trl-lib/Capybara/data");
  write("all/trl-lib/Capybara/data/train-00000-of-00001.jsonl", "{}");
  write("all/trl-lib/Capybara/data/test-00000-of-00001.jsonl", "{}");
  setenv("TESSERA_DATA", "all", 1);
  const ForeignCommand command =
      read("trl sft --model_name_or_path m --dataset_name trl-lib/Capybara --eval_strategy steps");
  unsetenv("TESSERA_DATA");
  EXPECT_EQ(key(command, "data.train"), "\"all/trl-lib/Capybara/data/train-00000-of-00001.jsonl\"");
  EXPECT_EQ(key(command, "data.validation"),
            "\"all/trl-lib/Capybara/data/test-00000-of-00001.jsonl\"");
  fs::create_directories("cache/glue/mrpc/0.0.0/abc");
  write("cache/glue/mrpc/0.0.0/abc/glue-train.arrow", "x");
  write("cache/glue/mrpc/0.0.0/abc/glue-validation.arrow", "x");
  setenv("HF_DATASETS_CACHE", "cache", 1);
  const ForeignCommand glue =
      read("run_glue.py --model_name_or_path m --task_name mrpc --do_train --do_eval");
  unsetenv("HF_DATASETS_CACHE");
  EXPECT_EQ(key(glue, "data.train"), "\"cache/glue/mrpc/0.0.0/abc/glue-train.arrow\"");
  EXPECT_EQ(key(glue, "task.type"), "\"classify\"");
}

// Each place in which a data set may be, and the sentence where it is in none.
TEST_F(Commands, FindDataInEachPlace) {
  const std::string sft = "trl sft --model_name_or_path m --dataset_name ";
  // A folder of save_to_disk, with its splits.
  write("saved/dataset_dict.json", R"({"splits": ["train", "test"]})");
  write("saved/train/data-00000-of-00001.arrow", "x");
  write("saved/train/dataset_info.json", "{}");
  write("saved/test/data-00000-of-00001.arrow", "x");
  ForeignCommand command = read(sft + "saved --eval_strategy epoch");
  EXPECT_EQ(key(command, "data.train"), "\"saved/train\"");
  EXPECT_EQ(key(command, "data.validation"), "\"saved/test\"");
  // The snapshot that a ref of the hub's cache names, and no other.
  write("hub/datasets--a--b/refs/main", "new");
  write("hub/datasets--a--b/snapshots/old/train.jsonl", "{}");
  write("hub/datasets--a--b/snapshots/new/data/train-00000-of-00001.jsonl", "{}");
  setenv("HF_HUB_CACHE", "hub", 1);
  command = read(sft + "a/b");
  EXPECT_EQ(key(command, "data.train"),
            "\"hub/datasets--a--b/snapshots/new/data/train-00000-of-00001.jsonl\"");
  unsetenv("HF_HUB_CACHE");
  // Hugging Face's home has both caches.
  write("home/datasets/a___c/default/0.0.0/abc/c-train.arrow", "x");
  write("home/hub/models--o--llm/refs/main", "r1");
  write("home/hub/models--o--llm/snapshots/r1/config.json", R"({"model_type": "llama"})");
  setenv("HF_HOME", "home", 1);
  command = read("trl sft --model_name_or_path o/llm --dataset_name a/c");
  EXPECT_EQ(key(command, "data.train"), "\"home/datasets/a___c/default/0.0.0/abc/c-train.arrow\"");
  EXPECT_EQ(key(command, "model.from"), "\"o/llm\"");
  // --dataset_name glue with a task, and a part of a data set.
  write("home/datasets/glue/mrpc/0.0.0/abc/glue-train.arrow", "x");
  write("home/datasets/glue/mrpc/0.0.0/abc/glue-validation.arrow", "x");
  write("home/datasets/glue/cola/0.0.0/abc/glue-train.arrow", "x");
  for (const char* line :
       {"run_glue.py --model_name_or_path m --dataset_name glue --task_name mrpc --do_train",
        "run_glue.py --model_name_or_path m --dataset_name glue --dataset_config_name mrpc "
        "--do_train"}) {
    EXPECT_EQ(key(read(line), "data.train"),
              "\"home/datasets/glue/mrpc/0.0.0/abc/glue-train.arrow\"")
        << line;
  }
  unsetenv("HF_HOME");
  // Folders of one's own.
  write("mine/a.jsonl", "{}");
  write("more/x/d/train.csv", "a\n1\n");
  setenv("TESSERA_DATA", "mine:more", 1);
  EXPECT_EQ(key(read(sft + "a"), "data.train"), "\"mine/a.jsonl\"");
  EXPECT_EQ(key(read(sft + "x/d"), "data.train"), "\"more/x/d/train.csv\"");
  unsetenv("TESSERA_DATA");
  EXPECT_THAT(refusal(sft + "a/none"), HasSubstr("hf download --repo-type dataset a/none"));
}

TEST_F(Commands, ReadYamlOfLlamaFactory) {
  fs::create_directories("data");
  write(
      "data/dataset_info.json",
      R"({"mine": {"file_name": "x.json"}, "chat": {"file_name": "c.json", "formatting": "sharegpt"}})");
  write("data/x.json", R"([{"instruction": "a", "input": "", "output": "b"}])");
  write("data/c.json", R"([{"conversations": []}])");
  write("f.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: mine\n"
        "cutoff_len: 128\nmax_samples: 1000\nlearning_rate: 1.0e-4\nlr_scheduler_type: cosine\n"
        "warmup_ratio: 0.1\nbf16: true\nresume_from_checkpoint: null\noutput_dir: out\n");
  const ForeignCommand command = read("llamafactory-cli train f.yaml learning_rate=2e-4");
  EXPECT_EQ(key(command, "data.train"), "\"data/x.json[:1000]\"");
  EXPECT_EQ(key(command, "data.format"), "\"alpaca\"");
  EXPECT_EQ(key(command, "optimizer.params.lr"), "2e-4");
  EXPECT_EQ(key(command, "adapter.alpha"), "16");
  EXPECT_EQ(key(command, "scheduler.params.warmup_ratio"), "0.1");
  write("g.yaml", "model_name_or_path: m\nstage: sft\ndo_train: true\ndataset: min\n");
  EXPECT_THAT(refusal("llamafactory-cli train g.yaml"), HasSubstr("did you mean \"mine\"?"));
}

TEST_F(Commands, ReadYamlOfAxolotl) {
  write(
      "x.yml",
      "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\nval_set_size: "
      "0.1\n"
      "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\nlora_target_linear: true\n"
      "sequence_len: 64\nsample_packing: true\nmicro_batch_size: 2\nnum_epochs: 2\n"
      "optimizer: adamw_bnb_8bit\nlearning_rate: 0.0002\nevals_per_epoch: 4\nsaves_per_epoch: 1\n");
  const ForeignCommand command = read("axolotl train x.yml");
  EXPECT_EQ(key(command, "adapter.quantize_base"), "\"nf4\"");
  EXPECT_EQ(key(command, "optimizer.type"), "\"AdamW8bit\"");
  EXPECT_EQ(key(command, "eval.every"), "0.125");
  EXPECT_EQ(key(command, "checkpoint.every"), "0.5");
  EXPECT_EQ(key(command, "data.pack"), "true");
}

// ---- what the programs themselves do ----

json::Value golden(const std::string& name) {
  const fs::path file = test::source_dir() / "tests/interop/data/commands" / name;
  return json::parse_strict(files::read(file), file.string());
}

double number_at(const json::Value& source, const std::string& path, double absent) {
  const json::Value* at = &source;
  for (const std::string& step : text::split(path, '.'))
    at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
  return at != nullptr && at->is_number() ? at->as_double() : absent;
}

optim::BatchRamp batches_in(const json::Value& source) {
  const auto global = static_cast<std::int64_t>(number_at(source, "train_batch_size", 1));
  const json::Value* const ramp = source.find("rampup_batch_size");
  if (ramp == nullptr) return optim::BatchRamp(global);
  config::Problems problems;
  auto out = optim::read_batch_ramp(*ramp, "rampup_batch_size", global, 2, problems);
  problems.raise();
  return out.value();
}

optim::MadeSchedule schedule_in(const json::Value& source,
                                std::int64_t steps,
                                const optim::BatchRamp& batches) {
  const json::Value* const scheduler = source.find("scheduler");
  const json::Value* const params = scheduler->find("params");
  return optim::make_schedule(scheduler->find("type")->as_string(),
                              params == nullptr ? "{}" : params->dump(),
                              {.base_lr = number_at(source, "optimizer.params.lr", 0),
                               .max_steps = steps,
                               .samples_before = [batches](std::int64_t update) {
                                 return batches.samples_before(update);
                               }});
}

std::vector<std::int64_t> steps_of(const json::Value* every, std::int64_t steps) {
  std::vector<std::int64_t> out;
  if (every == nullptr) return out;
  const config::Cadence when = config::cadence_of(*every).in_run_of(steps);
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (when.due(step, false) || step == steps) out.push_back(step);
  }
  return out;
}

std::vector<std::int64_t> integers(const json::Value& list) {
  std::vector<std::int64_t> out;
  for (const json::Value& item : list.items())
    out.push_back(*item.as_integer());
  return out;
}

TEST_F(Commands, OfTheTrainerMakeItsUpdates) {
  const json::Value all = golden("trainer.json");
  int compared = 0;
  for (const json::Value& one : all.find("cases")->items()) {
    std::vector<std::string> line = words(kClm);
    std::string shown;
    for (const json::Value& flag : one.find("flags")->items()) {
      line.push_back(flag.as_string());
      shown += flag.as_string() + " ";
    }
    SCOPED_TRACE(shown);
    const bool evaluates = *one.find("eval_records")->as_integer() > 0;
    if (evaluates) line.insert(line.end(), {"--validation_file", "t.txt", "--do_eval"});
    const ForeignCommand command = read_foreign_command(line);
    const json::Value& source = command.source;

    const auto batch =
        static_cast<std::int64_t>(number_at(source, "train_micro_batch_size_per_gpu", 0) *
                                  number_at(source, "gradient_accumulation_steps", 0));
    const bool drop_last = source.find("data")->find("drop_last")->as_bool();
    const data::BatchPlan plan(*one.find("records")->as_integer(), batch, drop_last);
    const double by_steps = number_at(source, "trainer.max_steps", HUGE_VAL);
    const double epochs = number_at(source, "trainer.epochs", HUGE_VAL);
    const double by_epochs = std::isfinite(epochs) ? plan.steps_in(epochs) : HUGE_VAL;
    const auto steps = static_cast<std::int64_t>(std::min(by_steps, by_epochs));
    ASSERT_EQ(steps, *one.find("optimizer_steps")->as_integer());

    const optim::MadeSchedule schedule = schedule_in(source, steps, optim::BatchRamp(batch));
    const std::vector<json::Value>& rates = one.find("learning_rates")->items();
    for (std::int64_t step = 0; step < steps; ++step)
      EXPECT_EQ(schedule.lr(step + 1), rates[static_cast<std::size_t>(step)].as_double()) << step;

    const json::Value* const eval = source.find("eval");
    EXPECT_EQ(steps_of(eval == nullptr ? nullptr : eval->find("every"), steps),
              evaluates ? integers(*one.find("evaluations")) : std::vector<std::int64_t>{});
    EXPECT_EQ(steps_of(source.find("checkpoint")->find("every"), steps),
              integers(*one.find("saves")));
    EXPECT_EQ(number_at(source, "gradient_clipping", 0), one.find("max_grad_norm")->as_double());
    EXPECT_EQ(number_at(source, "optimizer.params.weight_decay", -1),
              one.find("groups")->items().front().find("weight_decay")->as_double());
    const json::Value& defaults = *one.find("optimizer_defaults");
    if (const json::Value* const betas = defaults.find("betas")) {
      EXPECT_EQ(source.find("optimizer")->find("params")->find("betas")->dump(), betas->dump());
    }
    ++compared;
  }
  EXPECT_GE(compared, 15);
}

constexpr const char* kGpt =
    "pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
    "--max-position-embeddings 32 --micro-batch-size 2 --transformer-impl local --data-path p "
    "--tokenizer-type NullTokenizer --vocab-size 100 ";

TEST_F(Commands, OfMegatronHaveItsRates) {
  const json::Value all = golden("megatron.json");
  int compared = 0;
  for (const json::Value& one : all.find("schedules")->items()) {
    std::vector<std::string> line = words(kGpt);
    std::string shown;
    for (const json::Value& flag : one.find("flags")->items()) {
      line.push_back(flag.as_string());
      shown += flag.as_string() + " ";
    }
    SCOPED_TRACE(shown);
    const ForeignCommand command = read_foreign_command(line);
    const auto steps = static_cast<std::int64_t>(number_at(command.source, "trainer.max_steps", 0));
    ASSERT_EQ(steps, *one.find("iterations")->as_integer());
    const optim::BatchRamp batches = batches_in(command.source);
    const optim::MadeSchedule schedule = schedule_in(command.source, steps, batches);
    std::int64_t step = 0;
    for (const json::Value& row : one.find("steps")->items()) {
      EXPECT_EQ(batches.size(batches.samples_before(step + 1)), row.items()[0].as_double());
      EXPECT_EQ(schedule.lr(++step), row.items()[1].as_double()) << step;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

TEST_F(Commands, OfMegatronMayHaveNoData) {
  std::string line = kGpt;
  line.replace(line.find("--data-path p"), 13, "--mock-data");
  const ForeignCommand command = read(line + "--train-iters 5 --lr 1e-3 --split 90,10,0");
  const std::string file = command.source.find("data")->find("train")->as_string();
  EXPECT_GT(fs::file_size(file), 4'000'000U);
  EXPECT_TRUE(fs::exists(fs::path(file).replace_extension(".idx")));
  EXPECT_EQ(key(command, "data.validation_fraction"), "0.1");
  // The first tokens of 16 bits: 1, 2, 3.
  EXPECT_EQ(files::read(file).substr(0, 6), std::string("\1\0\2\0\3\0", 6));
}

TEST_F(Commands, OfMegatronHaveItsExperts) {
  const std::string llama =
      std::string(kGpt) +
      "--train-iters 5 --lr 1e-3 --normalization RMSNorm --swiglu "
      "--disable-bias-linear --position-embedding-type rope --hidden-dropout 0 ";
  const ForeignCommand command =
      read(llama +
           "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-aux-loss-coeff 1e-2 "
           "--moe-layer-freq [0,1] --moe-router-load-balancing-type aux_loss --moe-grouped-gemm");
  EXPECT_EQ(key(command, "model.moe.num_experts"), "8");
  EXPECT_EQ(key(command, "model.moe.layers"), "[1]");
  EXPECT_EQ(key(command, "model.moe.router.normalize"), "true");
  EXPECT_EQ(key(command, "model.moe.losses.balance"), "1e-2");
  EXPECT_EQ(
      key(read(llama + "--num-experts 4 --moe-router-pre-softmax --moe-layer-freq ([0]*1+[1]*1)"),
          "model.moe.router.normalize"),
      "false");
  const std::string spread =
      llama + "--num-experts 4 --tensor-model-parallel-size 2 --expert-model-parallel-size 4 ";
  EXPECT_EQ(key(read(spread), "parallel.expert"), "4");
  EXPECT_EQ(key(read(spread), "parallel.expert_tensor"), "2") << "the default there";
  EXPECT_EQ(key(read(spread + "--expert-tensor-parallel-size 1"), "parallel.expert_tensor"),
            "none");
  EXPECT_EQ(key(read(spread + "--sequence-parallel"), "parallel.sequence"), "none")
      << "experts hold whole tokens";
  EXPECT_THAT(read(spread + "--sequence-parallel").notes,
              testing::Contains(HasSubstr("beside experts")));
  EXPECT_EQ(
      key(read(llama + "--tensor-model-parallel-size 2 --sequence-parallel"), "parallel.sequence"),
      "true");
  EXPECT_THAT(refusal(llama + "--num-experts 4 --moe-layer-freq [1]"), HasSubstr("names 1 layers"));
  // With layer norms and learned positions they are those of GPT-2.
  const std::string plain = std::string(kGpt) + "--train-iters 5 --lr 1e-3 --num-experts 4 ";
  EXPECT_EQ(key(read(plain), "model.family"), "\"gpt2\"");
  EXPECT_EQ(key(read(plain), "model.moe.num_experts"), "4");
  EXPECT_EQ(key(read(plain), "model.bias"), "none");
  EXPECT_EQ(key(read(plain + "--disable-bias-linear --swiglu"), "model.bias"), "false");
  EXPECT_EQ(key(read(plain + "--disable-bias-linear --swiglu"), "model.feed_forward"), "\"gated\"");
  EXPECT_THAT(refusal(plain + "--position-embedding-type rope"),
              HasSubstr("experts are built for"));
}

TEST_F(Commands, OfMegatronHaveItsVocabulary) {
  const json::Value all = golden("megatron.json");
  for (const json::Value& one : all.find("models")->items()) {
    std::vector<std::string> line = words(kGpt);
    line.insert(line.end(), {"--train-iters", "5", "--lr", "1e-3"});
    std::string shown;
    for (const json::Value& flag : one.find("flags")->items()) {
      line.push_back(flag.as_string());
      shown += flag.as_string() + " ";
    }
    SCOPED_TRACE(shown);
    // A composed model, with norms of queries and keys, has one dropout.
    if (shown.find("RMSNorm") != std::string::npos &&
        shown.find("qk-layernorm") == std::string::npos)
      line.insert(line.end(), {"--hidden-dropout", "0"});
    const ForeignCommand command = read_foreign_command(line);
    EXPECT_EQ(number_at(command.source, "model.vocab_size", 0),
              one.find("padded_vocab_size")->as_double());
  }
}

}  // namespace
}  // namespace tessera::interop
