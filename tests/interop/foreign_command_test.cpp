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

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A working directory with a folder of a model and files of data.
class Commands : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    fs::current_path(folder_.path());
    fs::create_directories("m");
    write("m/config.json", R"({"model_type": "llama"})");
    write("t.txt", "one two three\n");
    fs::create_directories("d");
    write(
        "d/train.jsonl",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    write("d/test.jsonl", R"({"messages": []})");
  }
  void TearDown() override { fs::current_path(before_); }

  static void write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }

  static std::vector<std::string> words(const std::string& line) {
    std::vector<std::string> out;
    for (const std::string& word : text::split(line, ' ')) {
      if (!word.empty()) out.push_back(word);
    }
    return out;
  }
  static ForeignCommand read(const std::string& line) { return read_foreign_command(words(line)); }

  /// The text of a key, or "none".
  static std::string key(const ForeignCommand& command, const std::string& path) {
    const json::Value* at = &command.source;
    for (const std::string& step : text::split(path, '.'))
      at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
    return at == nullptr ? "none" : at->dump();
  }
  static std::string origin(const ForeignCommand& command, const std::string& path) {
    const json::Value* at = &command.source;
    for (const std::string& step : text::split(path, '.'))
      at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
    return at == nullptr ? "none" : at->place.text();
  }
  static std::string refusal(const std::string& line) {
    try {
      read(line);
    } catch (const Error& error) {
      return error.text();
    }
    return "accepted";
  }

 private:
  files::TempDir folder_;
  fs::path before_;
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

TEST_F(Commands, ReportAllProblemsAtOnce) {
  const std::string text =
      refusal("trl sft --model_name_or_path m --dataset_nam d --learningrate 1e-4 --loss_type dft");
  EXPECT_THAT(text,
              HasSubstr("--dataset_nam is no option of TRL's sft: did you mean dataset_name?"));
  EXPECT_THAT(text, HasSubstr("did you mean learning_rate?"));
  EXPECT_THAT(text, HasSubstr("--loss_type dft is not supported"));
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
              HasSubstr("tokenized when a training starts"));
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
  EXPECT_EQ(key(command, "data.train"), "\"data/x.json\"");
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

optim::MadeSchedule schedule_in(const json::Value& source, std::int64_t steps) {
  const json::Value* const scheduler = source.find("scheduler");
  const json::Value* const params = scheduler->find("params");
  return optim::make_schedule(
      scheduler->find("type")->as_string(),
      params == nullptr ? "{}" : params->dump(),
      {.base_lr = number_at(source, "optimizer.params.lr", 0), .max_steps = steps});
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

    const optim::MadeSchedule schedule = schedule_in(source, steps);
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
    bool grows = false;
    for (const json::Value& flag : one.find("flags")->items()) {
      line.push_back(flag.as_string());
      shown += flag.as_string() + " ";
      grows = grows || flag.as_string() == "--step-batch-size-schedule";
    }
    SCOPED_TRACE(shown);
    if (grows) {
      EXPECT_THROW(read_foreign_command(line), Error);
      continue;
    }
    const ForeignCommand command = read_foreign_command(line);
    const auto steps = static_cast<std::int64_t>(number_at(command.source, "trainer.max_steps", 0));
    ASSERT_EQ(steps, *one.find("iterations")->as_integer());
    const optim::MadeSchedule schedule = schedule_in(command.source, steps);
    std::int64_t step = 0;
    for (const json::Value& row : one.find("steps")->items()) {
      EXPECT_EQ(number_at(command.source, "train_batch_size", 0), row.items()[0].as_double());
      EXPECT_EQ(schedule.lr(++step), row.items()[1].as_double()) << step;
    }
    ++compared;
  }
  EXPECT_GE(compared, 5);
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
  EXPECT_THAT(refusal(llama + "--num-experts 4 --moe-layer-freq [1]"), HasSubstr("names 1 layers"));
  EXPECT_THAT(refusal(std::string(kGpt) + "--train-iters 5 --lr 1e-3 --num-experts 4"),
              HasSubstr("only models with RMSNorm"));
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
    // Norms of queries and keys are refused, and experts in a model of this form.
    const bool refused = shown.find("experts") != std::string::npos ||
                         shown.find("qk-layernorm") != std::string::npos;
    if (refused) {
      EXPECT_THROW(read_foreign_command(line), Error);
      continue;
    }
    if (shown.find("RMSNorm") != std::string::npos)
      line.insert(line.end(), {"--hidden-dropout", "0"});
    const ForeignCommand command = read_foreign_command(line);
    EXPECT_EQ(number_at(command.source, "model.vocab_size", 0),
              one.find("padded_vocab_size")->as_double());
  }
}

}  // namespace
}  // namespace tessera::interop
