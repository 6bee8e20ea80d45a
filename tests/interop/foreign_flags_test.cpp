// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/foreign_flags.h"

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

using testing::ElementsAre;

// Returns the configuration that `words` set in an empty configuration, or in `source`.
std::string set_by(std::vector<std::string> words, const std::string& source = "{}") {
  json::Value out = json::parse(source, "c.json");
  apply(take_foreign_flags(words), out);
  return out.dump();
}

TEST(ForeignFlags, SetTheirKeys) {
  EXPECT_EQ(set_by({"--learning_rate", "3e-4"}), R"({"optimizer":{"params":{"lr":3e-4}}})");
  EXPECT_EQ(set_by({"--per-device-train-batch-size=4"}), R"({"train_micro_batch_size_per_gpu":4})");
  EXPECT_EQ(set_by({"--num_train_epochs", "2", "--seed", "7"}),
            R"({"trainer":{"epochs":2,"seed":7}})");
  EXPECT_EQ(set_by({"--output_dir", "out"}), R"({"run":{"dir":"out"}})");
  EXPECT_EQ(set_by({"--save_steps", "100"}), R"({"checkpoint":{"every":100}})");
  EXPECT_EQ(set_by({"--weight_decay", "0.1"}), R"({"optimizer":{"params":{"weight_decay":0.1}}})");
}

TEST(ForeignFlags, SwitchesNeedNoValue) {
  EXPECT_EQ(set_by({"--bf16"}), R"({"bf16":{"enabled":true}})");
  EXPECT_EQ(set_by({"--bf16", "False"}), R"({"bf16":{"enabled":false}})");
  EXPECT_EQ(set_by({"--fp16", "x.json"}), R"({"fp16":{"enabled":true}})");
}

TEST(ForeignFlags, WaysToDivideStatesAreStagesOfZero) {
  for (const auto& [flag, value, stage] : {std::tuple("--fsdp", "full_shard auto_wrap", 3),
                                           std::tuple("--fsdp", "shard_grad_op", 2),
                                           std::tuple("--fsdp", "no_shard", 0),
                                           std::tuple("--sharded_ddp", "zero_dp_2", 2),
                                           std::tuple("--sharded_ddp", "zero_dp_3,offload", 3),
                                           std::tuple("--sharded_ddp", "simple", 2)})
    EXPECT_EQ(set_by({flag, value}),
              R"({"zero_optimization":{"stage":)" + std::to_string(stage) + "}}")
        << value;
  EXPECT_THROW(set_by({"--fsdp", "hybrid_shard"}), Error);
}

TEST(ForeignFlags, OfHuggingFacesTrainerSayWhatTheyDoHere) {
  EXPECT_EQ(set_by({"--save_on_each_node"}), R"({"checkpoint":{"use_node_local_storage":true}})");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--fp16_full_eval"},
                                                {"--bf16_full_eval", "true"},
                                                {"--half_precision_backend", "apex"},
                                                {"--fp16_opt_level", "O1"}}) {
    std::vector<std::string> rest = words;
    EXPECT_THAT(take_foreign_flags(rest).notes,
                ElementsAre(testing::HasSubstr(words.front() + " has no effect here")));
    EXPECT_TRUE(rest.empty());
  }
}

TEST(ForeignFlags, DeepSpeedChatsAdapterIsScaledByItsRank) {
  EXPECT_EQ(set_by({"--lora_dim", "8", "--only_optimize_lora", "--lora_learning_rate", "5e-4"}),
            R"({"adapter":{"type":"lora","r":8,"alpha":1},"optimizer":{"params":{"lr":5e-4}}})");
  EXPECT_EQ(set_by({"--lora_dim", "0"}), "{}");
  EXPECT_EQ(set_by({"--lora_module_name", "decoder.layers."}),
            R"({"adapter":{"exclude":"(?!.*decoder\\.layers\\.).*"}})");
}

// All else is frozen: the optimizer has the adapter's rate, in whatever order the flags stand.
TEST(ForeignFlags, DeepSpeedChatsAdapterHasItsOwnRate) {
  EXPECT_EQ(set_by({"--lora_learning_rate", "5e-4", "--learning_rate", "9e-6", "--lora_dim", "4"}),
            R"({"optimizer":{"params":{"lr":5e-4}},"adapter":{"type":"lora","r":4,"alpha":1}})");
  std::vector<std::string> words = {"--lora_learning_rate", "5e-4", "--learning_rate", "9e-6"};
  json::Value source = json::Value::object();
  EXPECT_THAT(apply(take_foreign_flags(words), source),
              ElementsAre(testing::HasSubstr("no effect without an adapter")));
  EXPECT_EQ(source.dump(), R"({"optimizer":{"params":{"lr":9e-6}}})");
}

TEST(ForeignFlags, OfDeepSpeedChatSetTheirKeys) {
  EXPECT_EQ(set_by({"--dtype", "bf16", "--dropout", "0.1", "--print_steps", "5"}),
            R"({"bf16":{"enabled":true},"model":{"dropout":0.1},"steps_per_print":5})");
  EXPECT_THROW(set_by({"--dtype", "int8"}), Error);
  EXPECT_EQ(set_by({"my.json", "--data_path", "a.jsonl", "b.jsonl", "--seed", "1"}),
            R"({"data":{"train":["a.jsonl","b.jsonl"]},"trainer":{"seed":1}})");
  EXPECT_EQ(set_by({"--lr_scheduler_type", "cosine", "--minimum_learning_rate", "1e-6"}),
            R"({"scheduler":{"type":"cosine_with_min_lr","params":{"min_lr":1e-6}}})");
  EXPECT_EQ(set_by({"--minimum_learning_rate", "0"}), "{}");
  EXPECT_THROW(set_by({"--lr_scheduler_type", "linear", "--minimum_learning_rate", "1e-6"}), Error);
  EXPECT_EQ(set_by({"--train_data_path", "a", "--val_data_path", "b", "--test_data_path", "c"}),
            R"({"data":{"train":"a","validation":"b","test":"c"}})");
  EXPECT_EQ(set_by({"--only_query", "--template", "t.jinja"}),
            R"({"task":{"params":{"history":"questions","chat_template":"t.jinja"}}})");
}

// The order of the flags does not matter. The later steps of DeepSpeed-Chat do not read these
// files.
TEST(ForeignFlags, DataOfTheFirstStepAloneIsAdded) {
  const char* const flag = "--sft_only_data_path";
  EXPECT_EQ(set_by({"my.json", flag, "c", "d", "--data_path", "a", "b"}),
            R"({"data":{"train":["a","b","c","d"]}})");
  EXPECT_EQ(set_by({flag, "c"}, R"({"data": {"train": "a"}, "task": "sft"})"),
            R"({"data":{"train":["a","c"]},"task":"sft"})");
  EXPECT_EQ(set_by({flag, "c"}), R"({"data":{"train":["c"]}})");
  std::vector<std::string> words = {flag, "c"};
  json::Value source = json::parse(R"({"data": {"train": "a"}, "task": {"type": "rl"}})", "c.json");
  EXPECT_THAT(apply(take_foreign_flags(words), source),
              ElementsAre(testing::HasSubstr("no effect in the task rl")));
  EXPECT_EQ(source.find("data")->find("train")->as_string(), "a");
}

TEST(ForeignFlags, FieldsOfTheDataAreAnObject) {
  EXPECT_EQ(set_by({"--data_map", R"({"prompt": "question", "label": "label_id"})"}),
            R"({"data":{"map":{"prompt":"question","label":"label_id"}}})");
  EXPECT_EQ(set_by({R"(--data_map={"history": "context_info"})"}),
            R"({"data":{"map":{"history":"context_info"}}})");
  EXPECT_THROW(set_by({"--data_map", "question"}), Error);
  EXPECT_THROW(set_by({"--data_map", "[1]"}), Error);
  EXPECT_THROW(set_by({"--data_map"}), Error);
}

// The flags of DeepSpeed-Chat's first step, and of classifiers that were derived from it: each sets
// a key, is reported as having no effect, or is refused with an alternative.
TEST(ForeignFlags, NamesOfClassesAreAList) {
  const std::string names = R"(["sport","arts"]}}})";
  for (const char* value : {"sport,arts", "sport, arts", R"(["sport", "arts"])"})
    EXPECT_EQ(set_by({"--class_list", value}), R"({"task":{"params":{"labels":)" + names) << value;
  EXPECT_EQ(set_by({"--class_list", "sport,arts"}, R"({"task": "classify"})"),
            R"({"task":{"type":"classify","params":{"labels":)" + names);
  EXPECT_THROW(set_by({"--class_list", "[sport"}), Error);
}

TEST(ForeignFlags, OfSupervisedFineTuningAreAllKnown) {
  for (const char* flag : {"data_path",
                           "data_split",
                           "sft_only_data_path",
                           "data_output_path",
                           "model_name_or_path",
                           "num_padding_at_beginning",
                           "per_device_train_batch_size",
                           "per_device_eval_batch_size",
                           "max_seq_len",
                           "learning_rate",
                           "minimum_learning_rate",
                           "weight_decay",
                           "num_train_epochs",
                           "gradient_accumulation_steps",
                           "num_warmup_steps",
                           "class_weight",
                           "seed",
                           "dropout",
                           "zero_stage",
                           "lora_dim",
                           "lora_module_name",
                           "lora_learning_rate",
                           "eval_interval",
                           "eval_iters",
                           "print_steps",
                           "save_steps",
                           "tensorboard_path",
                           "im_start",
                           "im_end",
                           "system",
                           "user",
                           "assistant",
                           "train_data_path",
                           "val_data_path",
                           "test_data_path",
                           "checkpoint",
                           "model_name",
                           "template",
                           "label1_dim",
                           "label2_dim",
                           "label3_dim",
                           "chinese_percent",
                           "cut_flag_token",
                           "cut_flag_token_id"}) {
    std::vector<std::string> words = {std::string("--") + flag, "1"};
    try {
      const ForeignFlags taken = take_foreign_flags(words);
      EXPECT_THAT(words, testing::IsEmpty()) << flag;
      EXPECT_FALSE(taken.settings.empty() && taken.notes.empty()) << flag;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported) << flag;
      EXPECT_FALSE(error.fix().empty()) << flag;
    }
  }
  for (const char* flag : {"gradient_checkpointing",
                           "offload",
                           "only_optimize_lora",
                           "compute_fp32_loss",
                           "enable_tensorboard",
                           "add_eot_token",
                           "only_query",
                           "inference",
                           "restore",
                           "debug"}) {
    std::vector<std::string> words = {std::string("--") + flag};
    try {
      const ForeignFlags taken = take_foreign_flags(words);
      EXPECT_THAT(words, testing::IsEmpty()) << flag;
      EXPECT_FALSE(taken.settings.empty() && taken.notes.empty()) << flag;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported) << flag;
    }
  }
  EXPECT_EQ(set_by({"--lr_scheduler_type", "polynomial", "--device", "cpu", "--output_dir", "o"}),
            R"({"scheduler":{"type":"polynomial"},"run":{"device":"cpu","dir":"o"}})");
}

// A word behind the data may be the configuration.
TEST(ForeignFlags, DataMayBeSeveralFilesOnceTheConfigurationIsNamed) {
  std::vector<std::string> words = {"--data_path", "a.jsonl", "my.json"};
  EXPECT_EQ(take_foreign_flags(words).settings.at(0).value.dump(), R"("a.jsonl")");
  EXPECT_THAT(words, ElementsAre("my.json"));
}

TEST(ForeignFlags, OfReinforcementLearningSetTheirKeys) {
  EXPECT_EQ(set_by({"--actor_model_name_or_path",
                    "m",
                    "--actor_learning_rate",
                    "1e-5",
                    "--critic_learning_rate",
                    "5e-6",
                    "--ppo_epochs",
                    "2"}),
            R"({"model":{"from":"m"},"optimizer":{"params":{"lr":1e-5}},)"
            R"("rl":{"critic":{"lr":5e-6},"iterations":2}})");
  EXPECT_EQ(set_by({"--max_prompt_seq_len", "256", "--max_answer_seq_len", "128"}),
            R"({"rl":{"max_new_tokens":128},"data":{"sequence_length":384}})");
  EXPECT_THROW(set_by({"--max_prompt_seq_len", "256"}), Error);
  EXPECT_EQ(set_by({"--enable_ema", "--disable_actor_dropout"}),
            R"({"trainer":{"ema":{"decay":0.992}},"model":{"dropout":0}})");
  EXPECT_EQ(set_by({"--unsupervised_dataset_name", "w", "--unsup_coef", "27.8"}),
            R"({"rl":{"ptx":{"data":"w","coefficient":27.8}}})");
}

TEST(ForeignFlags, OfTheHybridEngineAndTheCriticSetTheirKeys) {
  EXPECT_EQ(
      set_by({"--enable_hybrid_engine", "--inference_tp_size", "1", "--unpin_actor_parameters"}),
      R"({"hybrid_engine":{"enabled":true,"inference_tp_size":1,"pin_parameters":false}})");
  EXPECT_EQ(set_by({"--critic_lora_dim", "4"}),
            R"({"rl":{"models":{"critic":{"adapter":{"type":"lora","r":4,"alpha":1}}}}})");
  EXPECT_EQ(set_by({"--critic_zero_stage", "3"}),
            R"({"rl":{"models":{"critic":{"zero_stage":3}}}})");
}

TEST(ForeignFlags, WithoutACounterpartAreRefusedWithTheNearestKey) {
  for (const auto& [flag, fix] : {std::pair("--data_split", "data.train"),
                                  std::pair("--class_weight", "class_balance"),
                                  std::pair("--label1_dim", "task.params.heads"),
                                  std::pair("--critic_model_name_or_path", "rl.critic.from"),
                                  std::pair("--im_start", "chat_template"),
                                  std::pair("--dataset_name", "--train_file"),
                                  std::pair("--fsdp", "full_shard"),
                                  std::pair("--sharded_ddp", "zero_dp_2"),
                                  std::pair("--inference", "tessera predict")}) {
    std::vector<std::string> words = {flag, "x"};
    try {
      (void)take_foreign_flags(words);
      ADD_FAILURE() << flag;
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), testing::HasSubstr(fix)) << flag;
    }
  }
}

TEST(ForeignFlags, WithoutAnEffectAreReported) {
  for (const char* flag : {"--offload",
                           "--only_optimize_lora",
                           "--compute_fp32_loss",
                           "--add_eot_token",
                           "--do_eval",
                           "--overwrite_output_dir",
                           "--print_loss"}) {
    std::vector<std::string> words = {flag, "a.json"};
    EXPECT_THAT(take_foreign_flags(words).notes, ElementsAre(testing::HasSubstr(flag)));
    EXPECT_THAT(words, ElementsAre("a.json"));
  }
}

TEST(ForeignFlags, SayWhereATrainingIsShown) {
  EXPECT_EQ(
      set_by({"--report_to", "tensorboard,wandb", "--logging_dir", "logs"}),
      R"({"tensorboard":{"enabled":true,"tags":"huggingface","output_path":"logs","job_name":""},)"
      R"("wandb":{"enabled":true,"tags":"huggingface","project":"huggingface"}})");
  EXPECT_EQ(set_by({"--report-to=none"}), "{}");
  EXPECT_EQ(set_by({"--tensorboard-dir", "tb", "--wandb-project", "p", "--wandb-exp-name", "e"}),
            R"({"tensorboard":{"enabled":true,"output_path":"tb","job_name":""},)"
            R"("wandb":{"enabled":true,"project":"p","name":"e"}})");
}

TEST(ForeignFlags, NeverRefuseAMonitorThatTheyDoNotKnow) {
  std::vector<std::string> words = {"--report_to", "mlflow", "--logging_first_step"};

  const ForeignFlags flags = take_foreign_flags(words);

  EXPECT_THAT(flags.settings, testing::IsEmpty());
  EXPECT_THAT(
      flags.notes,
      ElementsAre(testing::HasSubstr("mlflow"), testing::HasSubstr("--logging_first_step")));
}

TEST(ForeignFlags, MaxStepsBelowZeroMeansNone) {
  EXPECT_EQ(set_by({"--max_steps", "-1"}), "{}");
  EXPECT_EQ(set_by({"--max_steps", "5"}), R"({"trainer":{"max_steps":5}})");
}

TEST(ForeignFlags, WarmupFollowsTheSchedule) {
  EXPECT_EQ(set_by({"--warmup_steps", "9"}),
            R"({"scheduler":{"type":"linear","params":{"num_warmup_steps":9}}})");
  EXPECT_EQ(set_by({"--warmup_steps", "9"}, R"({"scheduler": {"type": "WarmupLR"}})"),
            R"({"scheduler":{"type":"WarmupLR","params":{"warmup_num_steps":9}}})");
}

TEST(ForeignFlags, WarmupIsSetWhenTheScheduleIsKnown) {
  EXPECT_EQ(set_by({"--warmup_steps", "2", "--lr_scheduler_type", "WarmupLR"}),
            R"({"scheduler":{"type":"WarmupLR","params":{"warmup_num_steps":2}}})");
  // A schedule of Hugging Face whose name begins like those of DeepSpeed.
  EXPECT_EQ(set_by({"--warmup_steps", "2", "--lr_scheduler_type", "warmup_stable_decay"}),
            R"({"scheduler":{"type":"warmup_stable_decay","params":{"num_warmup_steps":2}}})");
  EXPECT_EQ(set_by({"--warmup_ratio", "0.1", "--lr_scheduler_type=warmup_stable_decay"},
                   R"({"trainer": {"max_steps": 20}})"),
            R"({"trainer":{"max_steps":20},)"
            R"("scheduler":{"type":"warmup_stable_decay","params":{"num_warmup_steps":2}}})");
}

// The parameters of DeepSpeed's schedules are unknown to those of Hugging Face, whose Trainer keeps
// the schedule of the file.
TEST(ForeignFlags, LeaveAFilesScheduleOfDeepSpeed) {
  const std::string file =
      R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_num_steps": "auto"}}})";
  std::vector<std::string> words = {"--lr_scheduler_type", "cosine", "--warmup_steps", "3"};
  json::Value source = json::parse(file, "c.json");

  const std::vector<std::string> notes = apply(take_foreign_flags(words), source);

  EXPECT_EQ(
      source.dump(),
      R"({"scheduler":{"type":"WarmupDecayLR","params":{"warmup_min_lr":0,"warmup_num_steps":3}}})");
  EXPECT_THAT(notes,
              ElementsAre(testing::AllOf(testing::HasSubstr("--lr_scheduler_type cosine"),
                                         testing::HasSubstr("WarmupDecayLR"))));
  std::vector<std::string> same = {"--lr_scheduler_type", "warmupdecaylr"};
  EXPECT_THAT(apply(take_foreign_flags(same), source), testing::IsEmpty());
}

TEST(ForeignFlags, OfTheTrainerSayWhenToEvaluateAndWhatIsBest) {
  EXPECT_EQ(set_by({"--eval_strategy", "epoch", "--eval_steps", "7"}),
            R"({"eval":{"every":"epoch"}})");
  EXPECT_EQ(set_by({"--evaluation_strategy=steps", "--eval_steps=7"}), R"({"eval":{"every":7}})");
  EXPECT_EQ(set_by({"--save_steps", "9", "--save_strategy", "no"}),
            R"({"checkpoint":{"every":0}})");
  EXPECT_EQ(set_by({"--save_strategy", "best"}), R"({"checkpoint":{"every":0,"best":true}})");
  EXPECT_EQ(set_by({"--load_best_model_at_end", "--metric_for_best_model", "eval_f1"}),
            R"({"checkpoint":{"best":true},"eval":{"best":"f1"}})");
  EXPECT_EQ(set_by({"--metric_for_best_model", "mse", "--greater_is_better", "False"}),
            R"({"eval":{"best":{"metric":"mse","mode":"min"}}})");
  EXPECT_EQ(set_by({"--early_stopping_patience", "3", "--early_stopping_threshold=0.1"}),
            R"({"eval":{"patience":3,"min_gain":0.1}})");
  EXPECT_THROW(set_by({"--eval_strategy", "best"}), Error);
}

TEST(ForeignFlags, ReplaceAFilesScheduleOfHuggingFace) {
  EXPECT_EQ(set_by({"--lr_scheduler_type", "cosine"},
                   R"({"scheduler": {"type": "linear", "params": {"num_warmup_steps": 2}}})"),
            R"({"scheduler":{"type":"cosine","params":{"num_warmup_steps":2}}})");
}

// A file may use the old name of a key: the flag sets that key.
TEST(ForeignFlags, OverrideOldNames) {
  EXPECT_EQ(set_by({"--bf16"}, R"({"bfloat16": {"enabled": "auto"}})"),
            R"({"bf16":{"enabled":true}})");
  EXPECT_EQ(set_by({"--gradient_accumulation_steps", "8"}, R"({"NUM_MICRO_BATCHES": 4})"),
            R"({"gradient_accumulation_steps":8})");
  EXPECT_EQ(set_by({"--zero_stage", "2"}, R"({"zero_optimization": true})"),
            R"({"zero_optimization":{"stage":2}})");
}

// If a file sets two names of a key, neither is dropped: the reader reports them later.
TEST(ForeignFlags, LeaveAFilesContradictions) {
  EXPECT_EQ(set_by({}, R"({"NUM_MICRO_BATCHES": 4, "gradient_accumulation_steps": 8})"),
            R"({"NUM_MICRO_BATCHES":4,"gradient_accumulation_steps":8})");
}

// Hugging Face: ceil(ratio x steps), unless steps of warm-up are given.
TEST(ForeignFlags, AWarmupRatioIsAShareOfTheSteps) {
  EXPECT_EQ(set_by({"--warmup_ratio", "0.03", "--max_steps", "150"}),
            R"({"trainer":{"max_steps":150},)"
            R"("scheduler":{"type":"linear","params":{"num_warmup_steps":5}}})");
  EXPECT_EQ(set_by({"--warmup-ratio=0.1"},
                   R"({"scheduler": {"type": "WarmupLR"}, "trainer": {"max_steps": 20}})"),
            R"({"scheduler":{"type":"WarmupLR","params":{"warmup_num_steps":2}},)"
            R"("trainer":{"max_steps":20}})");
  EXPECT_EQ(set_by({"--warmup_ratio", "0.5", "--warmup_steps", "9"}),
            R"({"scheduler":{"type":"linear","params":{"num_warmup_steps":9}}})");
  EXPECT_THROW(set_by({"--warmup_ratio", "0.1"}), Error);
  EXPECT_THROW(set_by({"--warmup_ratio", "3", "--max_steps", "150"}), Error);
}

// transformers 5: get_warmup_steps() of 6 updates is 3 for 0.5, and ceil(0.18) = 1 for 0.03.
TEST(ForeignFlags, WarmupStepsBelowOneAreAShareOfTheSteps) {
  const auto steps_of = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"--max_steps", "6"};
    words.insert(words.end(), flags.begin(), flags.end());
    json::Value out = json::Value::object();
    apply(take_foreign_flags(words), out);
    return out.find("scheduler")->find("params")->find("num_warmup_steps")->as_integer();
  };

  EXPECT_EQ(steps_of({"--warmup_steps", "0.5"}), 3);
  EXPECT_EQ(steps_of({"--warmup_steps", "0.03"}), 1);
  EXPECT_EQ(steps_of({"--warmup_steps", "0.5", "--warmup_ratio", "0.9"}), 3);
  EXPECT_EQ(steps_of({"--warmup_steps", "0", "--warmup_ratio", "0.9"}), 6);
  EXPECT_EQ(steps_of({"--warmup_steps", "3"}), 3);
  EXPECT_THROW(set_by({"--warmup_steps", "0.5"}), Error);
}

TEST(ForeignFlags, AWarmupRatioSeesStepsThatAreSetBySet) {
  std::vector<std::string> words = {"--warmup_ratio", "0.1"};
  json::Value source = json::parse(R"({"trainer": {"max_steps": 20}})", "c.json");
  const std::vector<std::string> sets = {"trainer.max_steps=100"};

  apply(take_foreign_flags(words), source, sets);

  EXPECT_EQ(source.find("scheduler")->find("params")->find("num_warmup_steps")->as_integer(), 10);
}

TEST(ForeignFlags, OfOtherProcessorsAreReported) {
  for (std::vector<std::string> words :
       {std::vector<std::string>{"--tf32", "True", "a.json"}, {"--tf32", "a.json"}}) {
    const ForeignFlags flags = take_foreign_flags(words);

    EXPECT_THAT(words, ElementsAre("a.json"));
    EXPECT_THAT(flags.notes, ElementsAre(testing::HasSubstr("--tf32 has no effect here")));
  }
}

TEST(ForeignFlags, SwitchesWithoutAMeaningHaveAValueOrNone) {
  for (std::vector<std::string> words :
       {std::vector<std::string>{"--do_train", "True", "a.json"}, {"--do_train", "a.json"}}) {
    take_foreign_flags(words);

    EXPECT_THAT(words, ElementsAre("a.json"));
  }
}

TEST(ForeignFlags, ALocalRankIsAnInteger) {
  std::vector<std::string> good = {"--local-rank=-1"}, bad = {"a.json", "--local_rank=x"};

  EXPECT_NO_THROW(take_foreign_flags(good));
  EXPECT_THROW(take_foreign_flags(bad), Error);
}

TEST(ForeignFlags, OfTheTrainerSetTheirKeysToo) {
  EXPECT_EQ(set_by({"--adam_beta2", "0.95"}), R"({"optimizer":{"params":{"betas":[0.9,0.95]}}})");
  EXPECT_EQ(set_by({"--adam_beta1=0.8", "--adam_beta2=0.9"}),
            R"({"optimizer":{"params":{"betas":[0.8,0.9]}}})");
  EXPECT_EQ(set_by({"--adam_epsilon", "1e-6"}), R"({"optimizer":{"params":{"eps":1e-6}}})");
  EXPECT_EQ(set_by({"--logging_steps", "5", "--save_total_limit", "2"}),
            R"({"steps_per_print":5,"checkpoint":{"keep":2}})");
  EXPECT_EQ(set_by({"--model_name_or_path", "gpt2", "--max_seq_len", "64"}),
            R"({"model":{"from":"gpt2"},"data":{"sequence_length":64}})");
  EXPECT_EQ(set_by({"--zero_stage=3"}), R"({"zero_optimization":{"stage":3}})");
  EXPECT_EQ(set_by({"--lr_scheduler_type", "cosine", "--warmup_steps", "3"}),
            R"({"scheduler":{"type":"cosine","params":{"num_warmup_steps":3}}})");
}

TEST(ForeignFlags, OfMegatronSpreadTheModel) {
  EXPECT_EQ(set_by({"--tensor-model-parallel-size", "2", "--sequence-parallel"}),
            R"({"parallel":{"tensor":{"size":2},"sequence":true}})");
  EXPECT_EQ(set_by({"--pipeline-model-parallel-size=4"}, R"({"parallel": {"pipeline": 2}})"),
            R"({"parallel":{"pipeline":{"size":4}}})");
  EXPECT_EQ(set_by({"--context-parallel-size", "2"}), R"({"parallel":{"context":{"size":2}}})");
}

// Megatron's virtual stages: layers / stages / layers per virtual stage.
TEST(ForeignFlags, LayersOfAVirtualStageBecomeChunks) {
  const std::vector<std::string> words = {
      "--num-layers-per-virtual-pipeline-stage", "3", "--pipeline-model-parallel-size", "2"};

  EXPECT_EQ(set_by(words, R"({"model": {"num_layers": 12}})"),
            R"({"model":{"num_layers":12},"parallel":{"pipeline":{"size":2,"chunks":2}}})");
  EXPECT_THROW(set_by(words, R"({"model": {"num_layers": 10}})"), Error);
  EXPECT_THROW(set_by(words), Error);
}

TEST(ForeignFlags, OfMegatronSayTheSizes) {
  EXPECT_EQ(set_by({"--micro-batch-size", "2", "--global-batch-size=16"}),
            R"({"train_micro_batch_size_per_gpu":2,"train_batch_size":16})");
  EXPECT_EQ(set_by({"--num-layers", "12", "--hidden-size", "64", "--num-attention-heads", "4"}),
            R"({"model":{"num_layers":12,"hidden_size":64,"num_heads":4}})");
  EXPECT_EQ(set_by({"--seq-length", "128"}), R"({"data":{"sequence_length":128}})");
}

TEST(ForeignFlags, OfMegatronSayWhatIsKept) {
  EXPECT_EQ(set_by({"--recompute-granularity", "selective"}),
            R"({"activation_checkpointing":{"granularity":"selective"}})");
  EXPECT_EQ(set_by({"--use-distributed-optimizer"}), R"({"zero_optimization":{"stage":1}})");
  EXPECT_EQ(set_by({"--use-distributed-optimizer", "false"}),
            R"({"zero_optimization":{"stage":0}})");
}

TEST(ForeignFlags, OfMegatronSayHowRanksExchange) {
  EXPECT_EQ(set_by({"--context-parallel-size", "2", "--cp-comm-type", "a2a"}),
            R"({"parallel":{"context":{"size":2,"mode":"ulysses"}}})");
  EXPECT_EQ(set_by({"--cp-comm-type=p2p"}, R"({"parallel": {"context": 2}})"),
            R"({"parallel":{"context":{"size":2,"mode":"ring"}}})");
  EXPECT_EQ(set_by({"--no-scatter-gather-tensors-in-pipeline"}),
            R"({"parallel":{"pipeline":{"scatter_gather":false}}})");
}

TEST(ForeignFlags, OtherWaysToShareTokensAreARing) {
  for (const char* word : {"a2a+p2p", "allgather"}) {
    EXPECT_EQ(set_by({"--context-parallel-size", "2", "--cp-comm-type", word}),
              R"({"parallel":{"context":{"size":2,"mode":"ring"}}})");
  }
  try {
    set_by({"--cp-comm-type", "a3a"});
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("--cp-comm-type a3a"));
    EXPECT_THAT(error.text(), testing::HasSubstr("use p2p"));
  }
}

TEST(ForeignFlags, VirtualStagesOfARankAreChunks) {
  EXPECT_EQ(set_by({"--num-virtual-stages-per-pipeline-rank", "2"}),
            R"({"parallel":{"pipeline":{"chunks":2}}})");
  EXPECT_EQ(set_by({"--num-layers-per-virtual-pipeline-stage", "3", "--num-layers", "12"}),
            R"({"model":{"num_layers":12},"parallel":{"pipeline":{"chunks":4}}})");
  EXPECT_THROW(set_by({"--num-virtual-stages-per-pipeline-rank",
                       "2",
                       "--num-layers-per-virtual-pipeline-stage",
                       "3"},
                      R"({"model": {"num_layers": 6}})"),
               Error);
}

TEST(ForeignFlags, OverrideAuto) {
  EXPECT_EQ(set_by({"--learning_rate", "1e-4"},
                   R"({"optimizer": {"params": {"lr": "auto", "eps": "auto"}}})"),
            R"({"optimizer":{"params":{"lr":1e-4,"eps":"auto"}}})");
}

TEST(ForeignFlags, LeaveTheOtherWords) {
  std::vector<std::string> words = {
      "my.json", "--local_rank", "0", "-n", "2", "--deepspeed", "ds.json", "--set", "a=b"};

  const ForeignFlags flags = take_foreign_flags(words);

  EXPECT_THAT(words, ElementsAre("my.json", "-n", "2", "--set", "a=b"));
  EXPECT_EQ(flags.config, "ds.json");
  EXPECT_TRUE(flags.settings.empty());
}

TEST(ForeignFlags, ABareDeepspeedNamesNoFile) {
  std::vector<std::string> words = {"--deepspeed", "--deepspeed_config", "ds.json"};

  EXPECT_EQ(take_foreign_flags(words).config, "ds.json");
}

TEST(ForeignFlags, RefuseWhatIsNotANumber) {
  EXPECT_THROW(set_by({"--seed", "soon"}), Error);
  EXPECT_THROW(set_by({"--seed"}), Error);
  EXPECT_THROW(set_by({"--bf16=maybe"}), Error);
}

// A flag that is given sets a key, names a file, or says that it has no effect; or it is refused,
// whatever its value.
TEST(ForeignFlags, AreNeverTakenInSilence) {
  // What launchers add by themselves, and the number of hosts that a training on one host has.
  const std::set<std::string> neutral = {"--local_rank", "--num_nodes", "--nnodes", "--node_rank"};
  for (const std::string& name : foreign_flag_names()) {
    bool taken = false, told = false;
    for (const char* value : {"", "true", "3", "x", "{}", "fp16", "nccl", "90,10,0", "cosine"}) {
      std::vector<std::string> words = {name};
      if (*value != '\0') words.emplace_back(value);
      try {
        const ForeignFlags flags = take_foreign_flags(words);
        taken = taken || words.empty();
        told = told || !flags.settings.empty() || !flags.notes.empty() || !flags.config.empty();
      } catch (const Error&) {
      }
    }
    EXPECT_TRUE(told || !taken || neutral.contains(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::interop
