// SPDX-License-Identifier: Apache-2.0
// The flags of DeepSpeed-Chat's main.py (supervised fine-tuning, reward model, reinforcement
// learning) and of scripts derived from it that no other program has.
#pragma once

#include <array>
#include <string_view>

#include "tessera/interop/foreign_flag_table.h"

namespace tessera::interop::flag_table {

inline constexpr std::string_view kOneMemory =
    "a process keeps everything in the memory of its host";
inline constexpr std::string_view kLikePolicy = "the critic is trained as the policy is";
inline constexpr std::string_view kTemplate =
    "write the marks into a chat template, and name its file: task.params.chat_template";
inline constexpr std::string_view kHeads =
    "name the labels of each head: task.params.heads={\"topic\": [\"sport\", \"arts\"], "
    "\"mood\": [...]}";
inline constexpr std::string_view kAnswers = "rollouts.jsonl in the run folder has all completions";

inline constexpr auto kChatFlags = std::to_array<Flag>({
    {"--lora_dim", Kind::LoraRank, "adapter"},
    {"--lora_module_name", Kind::LoraModules, "adapter.exclude"},
    {"--lora_learning_rate", Kind::Number, kLoraRate},
    {"--only_optimize_lora", Kind::ToldSwitch, "the weights beside an adapter are always frozen"},
    {"--enable_mixed_precision_lora",
     Kind::ToldSwitch,
     "adapters have fp32 master weights in every precision"},

    // Data.
    {"--data_split",
     Kind::Refused,
     "remove it: a training reads all of its files; give each step its own part in data.train"},
    {"--sft_only_data_path", Kind::DataPaths, kFurtherData},
    {"--data_map", Kind::Object, "data.map"},
    {"--data_output_path", Kind::ToldValue, "TESSERA_CACHE names the folder of prepared data"},
    {"--num_padding_at_beginning", Kind::ToldValue, "each sample knows the length of its text"},
    {"--add_eot_token", Kind::ToldSwitch, "answers end with the tokenizer's end of text"},
    {"--train_data_path", Kind::Text, "data.train"},
    {"--val_data_path", Kind::Text, "data.validation"},
    {"--test_data_path", Kind::Text, "data.test"},

    // Training.
    {"--minimum_learning_rate", Kind::Number, kMinimumRate},
    {"--class_weight",
     Kind::Refused,
     "set task.params.class_weights, or task.params.class_balance=class_balanced, which counts the "
     "classes"},
    {"--dropout", Kind::Number, "model.dropout"},
    {"--dtype", Kind::Dtype, ""},
    {"--print_steps", Kind::Number, "steps_per_print"},
    {"--print_loss", Kind::ToldSwitch, kShown},
    {"--compute_fp32_loss", Kind::ToldSwitch, "losses are always computed in fp32"},
    {"--offload", Kind::ToldSwitch, kOneMemory},
    {"--device", Kind::Text, "run.device"},

    // Reinforcement learning.
    {"--actor_model_name_or_path", Kind::Text, "model.from"},
    {"--critic_model_name_or_path",
     Kind::Refused,
     "name the reward model in rl.rewards and rl.critic.from, or train both with tessera rlhf"},
    {"--actor_learning_rate", Kind::Number, "optimizer.lr"},
    {"--critic_learning_rate", Kind::Number, "rl.critic.lr"},
    {"--actor_weight_decay", Kind::Number, "optimizer.weight_decay"},
    {"--critic_weight_decay", Kind::ToldValue, kLikePolicy},
    {"--per_device_training_batch_size", Kind::Number, "train_micro_batch_size_per_gpu"},
    {"--per_device_mini_train_batch_size", Kind::Number, "train_micro_batch_size_per_gpu"},
    {"--per_device_generation_batch_size", Kind::Number, "rl.prompts_at_once"},
    {"--generation_batches",
     Kind::Refused,
     "remove it: train_batch_size is the number of completions of a rollout"},
    {"--ppo_epochs", Kind::Number, "rl.iterations"},
    {"--max_prompt_seq_len", Kind::Number, kPromptLength},
    {"--max_answer_seq_len", Kind::Number, kAnswerLength},
    {"--unsupervised_dataset_name", Kind::Text, "rl.ptx.data"},
    {"--unsupervised_dataset_config_name",
     Kind::Refused,
     "name the files of this part, because nothing is downloaded: --unsupervised_dataset_name"},
    {"--unsup_coef", Kind::Number, "rl.ptx.coefficient"},
    {"--enable_ema", Kind::Ema, "trainer.ema.decay"},
    {"--enable_hybrid_engine", Kind::Switch, "hybrid_engine.enabled"},
    {"--unpin_actor_parameters", Kind::Off, "hybrid_engine.pin_parameters"},
    {"--release_inference_cache", Kind::Switch, "hybrid_engine.release_inference_cache"},
    {"--inference_tp_size", Kind::Number, "hybrid_engine.inference_tp_size"},
    {"--tp_gather_partition_size", Kind::Number, "hybrid_engine.tp_gather_partition_size"},
    {"--offload_reference_model", Kind::ToldSwitch, kOneMemory},
    {"--actor_zero_stage", Kind::Number, "zero_optimization.stage"},
    {"--critic_zero_stage", Kind::Number, "rl.models.critic.zero_stage"},
    {"--actor_gradient_checkpointing", Kind::Switch, "activation_checkpointing.enabled"},
    {"--critic_gradient_checkpointing", Kind::ToldSwitch, kLikePolicy},
    {"--actor_dropout", Kind::Number, "model.dropout"},
    {"--disable_actor_dropout", Kind::Zero, "model.dropout"},
    {"--critic_dropout", Kind::ToldValue, kLikePolicy},
    {"--disable_critic_dropout", Kind::ToldSwitch, kLikePolicy},
    {"--actor_lora_dim", Kind::LoraRank, "adapter"},
    {"--actor_lora_module_name", Kind::LoraModules, "adapter.exclude"},
    {"--actor_lora_learning_rate", Kind::Number, kLoraRate},
    {"--critic_lora_dim", Kind::LoraRank, "rl.models.critic.adapter"},
    {"--critic_lora_module_name", Kind::LoraModules, "rl.models.critic.adapter.exclude"},
    {"--critic_lora_learning_rate",
     Kind::Refused,
     "set --critic_learning_rate: beside an adapter the critic trains its head alone, at the same "
     "rate"},
    {"--align_overflow", Kind::Refused, "remove it, and use bf16, which has no overflows"},
    {"--print_answers", Kind::ToldSwitch, kAnswers},
    {"--print_answers_interval", Kind::ToldValue, kAnswers},
    {"--enable_test_mode", Kind::ToldSwitch, "--test_stop_step alone ends the training"},
    {"--test_stop_step", Kind::Number, "trainer.max_steps"},

    // Classification and conversations, of scripts derived from it.
    {"--num_classes", Kind::ToldValue, "the labels of data.train are counted"},
    {"--class_list", Kind::Names, "task.params.labels"},
    {"--label1_dim", Kind::Refused, kHeads},
    {"--label2_dim", Kind::Refused, kHeads},
    {"--label3_dim", Kind::Refused, kHeads},
    {"--only_query", Kind::Questions, "task.params.history"},
    {"--im_start", Kind::Refused, kTemplate},
    {"--im_end", Kind::Refused, kTemplate},
    {"--system", Kind::Refused, kTemplate},
    {"--user", Kind::Refused, kTemplate},
    {"--assistant", Kind::Refused, kTemplate},
    {"--template", Kind::Text, "task.params.chat_template"},
    {"--cut_flag_token", Kind::Refused, kTemplate},
    {"--cut_flag_token_id", Kind::Refused, kTemplate},
    {"--chinese_percent", Kind::Refused, "leave the other records out of the file"},
    {"--model_name", Kind::ToldValue, "the folder of --model_name_or_path describes its model"},
    {"--inference", Kind::Refused, "use tessera predict MODEL FILE --out FILE.jsonl"},
    {"--restore", Kind::Refused, "use --resume auto, or --resume CHECKPOINT"},
    {"--checkpoint", Kind::Refused, "use --resume CHECKPOINT, or model.from for the weights alone"},
    {"--debug", Kind::ToldSwitch, "TESSERA_LOG=debug sets it"},
});

}  // namespace tessera::interop::flag_table
