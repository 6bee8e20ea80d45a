// SPDX-License-Identifier: Apache-2.0
// The flags of DeepSpeed, Hugging Face, Megatron-LM and launchers, and the keys that they set.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::interop::flag_table {

enum class Kind : std::uint8_t {
  Number,
  Text,
  Switch,
  Off,    // a switch whose key becomes false if the flag is given
  Stage,  // a switch between ZeRO's stages 1 and 0
  Config,
  Rank,         // an integer that is not needed
  Beta,         // a beta of Adam: the key is its index
  LoraRank,     // DeepSpeed-Chat's rank of an adapter; 0 means none
  LoraModules,  // a part of the names of adapted layers
  Dtype,        // fp16 or bf16
  Zero,         // a switch that sets its key to 0
  Ema,          // a switch that sets its key to DeepSpeed-Chat's decay
  Questions,    // a switch that sets its key to the turns of the user
  DataPaths,    // one or several files
  Object,       // an object of JSON
  Names,        // a list of JSON, or names with commas between them
  ReportTo,     // names of monitors
  BoardFolder,  // folder of TensorBoard's files; key: "on" if the flag also enables them
  WandbProject,
  RunName,
  MegatronRate,  // a parameter of Megatron-LM's schedule
  Vocabulary,    // a file of GPT-2's tokenizer
  Backend,       // of torch.distributed
  Sharded,       // how torch or fairscale divide the states: words that stand for a stage of ZeRO
  Split,         // shares of training, validation and test data
  DropPolicy,    // Megatron-LM's word for what an expert keeps at its capacity
  Balancing,     // Megatron-LM's word for the loss that balances experts
  ExpertBias,    // a switch that sets its key to Megatron-LM's rate
  One,           // number of hosts: the value must be one
  Told,          // has no effect here: the key is the reason
  ToldValue,     // the same with a value
  ToldSwitch,    // the same with true or false, or without a value
  Refused,       // unsupported: the key is the alternative
};

struct Flag {
  std::string_view name;
  Kind kind;
  std::string_view key;
};
inline constexpr std::string_view kBetas = "betas#";   // followed by the index
inline constexpr std::string_view kWarmup = "warmup";  // resolved when the schedule is known
inline constexpr std::string_view kSchedule = "scheduler.type";
inline constexpr std::string_view kEvaluate =
    "when to evaluate";  // Hugging Face's setting, combined with the steps
inline constexpr std::string_view kSave = "when to save";
inline constexpr std::string_view kMetric = "metric of the best",
                                  kGreater = "whether more is better";
inline constexpr std::string_view kRatio =
    "warmup of the run";  // resolved when its length is known
inline constexpr std::string_view kVirtual =
    "layers of a chunk";  // resolved when the stages are known
// DeepSpeed-Chat's settings that depend on others.
inline constexpr std::string_view kLoraRate = "rate of the adapter", kMinimumRate = "lowest rate",
                                  kPromptLength = "length of a prompt",
                                  kAnswerLength = "length of an answer",
                                  kFurtherData = "further data of step 1";
inline constexpr std::string_view kSharing = "how tokens travel";  // Megatron-LM's setting
inline constexpr std::string_view kChunks = "parallel.pipeline.chunks";
inline constexpr std::string_view kShown =
    "every step is written to the run folder and to the monitors that are enabled";
inline constexpr std::string_view kLocal =
    "local ranks are forked processes and need no rendezvous";
inline constexpr std::string_view kMeet =
    "hosts meet at --rdzv_endpoint, or --master_addr and --master_port, without a store of torch";
inline constexpr std::string_view kSlurm =
    "give it to Slurm's own command: srun --account NAME tessera train my.json";
inline constexpr std::string_view kNoSsh =
    "remove it: -n 2 starts local ranks, without ssh, pdsh or a hostfile";
inline constexpr std::string_view kNoHosts = "remove it: -n 2 starts two ranks on this host";
inline constexpr std::string_view kNoTuner =
    "remove it, before or after CONFIG; tessera plan --estimate and train --dry-run show what fits";

inline constexpr std::string_view kNoDownload =
    "name its files, because nothing is downloaded: --train_file and --validation_file";
inline constexpr std::string_view kEvalPrecision =
    "evaluations compute in the precision of the training";

inline constexpr auto kFlags = std::to_array<Flag>({
    {"--deepspeed", Kind::Config, ""},
    {"--deepspeed_config", Kind::Config, ""},
    {"--deepscale", Kind::Config, ""},
    {"--deepscale_config", Kind::Config, ""},
    {"--config", Kind::Config, ""},  // Colossal-AI's
    {"--local_rank", Kind::Rank, ""},
    {"--per_device_train_batch_size", Kind::Number, "train_micro_batch_size_per_gpu"},
    {"--per_device_eval_batch_size", Kind::Number, "eval.micro_batch"},
    {"--learning_rate", Kind::Number, "optimizer.lr"},
    {"--gradient_accumulation_steps", Kind::Number, "gradient_accumulation_steps"},
    {"--num_train_epochs", Kind::Number, "trainer.epochs"},
    {"--max_steps", Kind::Number, "trainer.max_steps"},
    {"--output_dir", Kind::Text, "run.dir"},
    {"--save_steps", Kind::Number, "checkpoint.every"},
    {"--save_total_limit", Kind::Number, "checkpoint.keep"},
    {"--eval_steps", Kind::Number, "eval.every"},
    {"--eval_strategy", Kind::Text, kEvaluate},
    {"--evaluation_strategy", Kind::Text, kEvaluate},
    {"--save_strategy", Kind::Text, kSave},
    {"--load_best_model_at_end", Kind::Switch, "checkpoint.best"},
    {"--metric_for_best_model", Kind::Text, kMetric},
    {"--greater_is_better", Kind::Switch, kGreater},
    {"--early_stopping_patience", Kind::Number, "eval.patience"},
    {"--early_stopping_threshold", Kind::Number, "eval.min_gain"},
    {"--logging_steps", Kind::Number, "steps_per_print"},
    {"--warmup_steps", Kind::Number, kWarmup},
    {"--num_warmup_steps", Kind::Number, kWarmup},
    {"--warmup_ratio", Kind::Number, kRatio},
    {"--lr_scheduler_type", Kind::Text, kSchedule},
    {"--weight_decay", Kind::Number, "optimizer.weight_decay"},
    {"--adam_beta1", Kind::Beta, "0"},
    {"--adam_beta2", Kind::Beta, "1"},
    {"--adam_epsilon", Kind::Number, "optimizer.eps"},
    {"--max_grad_norm", Kind::Number, "gradient_clipping"},
    {"--seed", Kind::Number, "trainer.seed"},
    {"--bf16", Kind::Switch, "bf16.enabled"},
    {"--fp16", Kind::Switch, "fp16.enabled"},
    {"--gradient_checkpointing", Kind::Switch, "activation_checkpointing.enabled"},
    {"--zero_stage", Kind::Number, "zero_optimization.stage"},
    {"--model_name_or_path", Kind::Text, "model.from"},
    {"--max_seq_len", Kind::Number, "data.sequence_length"},
    {"--max_seq_length", Kind::Number, "data.sequence_length"},
    {"--train_file", Kind::Text, "data.train"},
    {"--validation_file", Kind::Text, "data.validation"},
    {"--tensor_model_parallel_size", Kind::Number, "parallel.tensor.size"},
    {"--pipeline_model_parallel_size", Kind::Number, "parallel.pipeline.size"},
    {"--num_layers_per_virtual_pipeline_stage", Kind::Number, kVirtual},
    {"--num_virtual_stages_per_pipeline_rank", Kind::Number, kChunks},
    {"--no_scatter_gather_tensors_in_pipeline", Kind::Off, "parallel.pipeline.scatter_gather"},
    {"--sequence_parallel", Kind::Switch, "parallel.sequence"},
    {"--context_parallel_size", Kind::Number, "parallel.context.size"},
    {"--cp_comm_type", Kind::Text, kSharing},
    {"--micro_batch_size", Kind::Number, "train_micro_batch_size_per_gpu"},
    {"--global_batch_size", Kind::Number, "train_batch_size"},
    {"--num_layers", Kind::Number, "model.num_layers"},
    {"--hidden_size", Kind::Number, "model.hidden_size"},
    {"--num_attention_heads", Kind::Number, "model.num_heads"},
    {"--num_query_groups", Kind::Number, "model.num_kv_heads"},
    {"--group_query_attention",
     Kind::ToldSwitch,
     "--num-query-groups sets the number of key/value heads"},
    {"--seq_length", Kind::Number, "data.sequence_length"},
    {"--reset_attention_mask", Kind::Switch, "data.separate_documents"},
    {"--reset_position_ids", Kind::Switch, "data.separate_documents"},
    {"--eod_mask_loss", Kind::Switch, "data.separate_documents"},
    {"--recompute_granularity", Kind::Text, "activation_checkpointing.granularity"},
    {"--use_distributed_optimizer", Kind::Stage, "zero_optimization.stage"},

    // Flags that choose where a training is shown.
    {"--report_to", Kind::ReportTo, ""},
    {"--logging_dir", Kind::BoardFolder, ""},
    {"--run_name", Kind::RunName, ""},
    {"--tensorboard_dir", Kind::BoardFolder, "on"},
    {"--enable_tensorboard", Kind::Switch, "tensorboard.enabled"},
    {"--tensorboard_path", Kind::Text, "tensorboard.output_path"},
    {"--wandb_project", Kind::WandbProject, ""},
    {"--wandb_entity", Kind::Text, "wandb.team"},
    {"--wandb_exp_name", Kind::Text, "wandb.name"},
    {"--wandb_save_dir", Kind::ToldValue, kShown},
    {"--tensorboard_log_interval", Kind::ToldValue, kShown},
    {"--tensorboard_queue_size", Kind::ToldValue, kShown},
    {"--log_timers_to_tensorboard", Kind::ToldSwitch, kShown},
    {"--log_throughput", Kind::ToldSwitch, kShown},
    {"--log_progress", Kind::ToldSwitch, kShown},
    {"--logging_first_step", Kind::ToldSwitch, kShown},
    {"--logging_strategy", Kind::ToldValue, kShown},
    {"--disable_tqdm", Kind::ToldSwitch, kShown},

    // Other basic flags of Megatron-LM.
    {"--train_iters", Kind::Number, "trainer.max_steps"},
    {"--lr", Kind::Number, "optimizer.lr"},
    {"--data_path", Kind::DataPaths, "data.train"},
    {"--save", Kind::Text, "run.dir"},
    {"--save_interval", Kind::Number, "checkpoint.every"},
    {"--eval_interval", Kind::Number, "eval.every"},
    {"--eval_iters", Kind::Number, "eval.batches"},
    {"--log_interval", Kind::Number, "steps_per_print"},
    {"--lr_decay_style", Kind::MegatronRate, "lr_decay_style"},
    {"--lr_warmup_iters", Kind::MegatronRate, "lr_warmup_iters"},
    {"--lr_warmup_fraction", Kind::MegatronRate, "lr_warmup_fraction"},
    {"--lr_decay_iters", Kind::MegatronRate, "lr_decay_iters"},
    {"--min_lr", Kind::MegatronRate, "min_lr"},
    {"--split", Kind::Split, ""},
    {"--clip_grad", Kind::Number, "gradient_clipping"},
    {"--adam_eps", Kind::Number, "optimizer.eps"},
    {"--max_position_embeddings", Kind::Number, "model.max_positions"},
    {"--ffn_hidden_size", Kind::Number, "model.ffn_hidden_size"},
    {"--vocab_file", Kind::Vocabulary, "tokenizer.vocab"},
    {"--merge_file", Kind::Vocabulary, "tokenizer.merges"},

    // Experts, in Megatron-LM.
    {"--num_experts", Kind::Number, "model.moe.num_experts"},
    {"--moe_ffn_hidden_size", Kind::Number, "model.moe.ffn_hidden_size"},
    {"--moe_layer_freq", Kind::Number, "model.moe.every"},
    {"--moe_router_topk", Kind::Number, "model.moe.top_k"},
    {"--moe_router_score_function", Kind::Text, "model.moe.router.score"},
    {"--moe_router_pre_softmax", Kind::Off, "model.moe.router.normalize"},
    {"--moe_router_topk_scaling_factor", Kind::Number, "model.moe.router.scale"},
    {"--moe_router_num_groups", Kind::Number, "model.moe.router.groups"},
    {"--moe_router_group_topk", Kind::Number, "model.moe.router.top_groups"},
    {"--moe_router_enable_expert_bias", Kind::ExpertBias, "model.moe.router.bias_update"},
    {"--moe_router_bias_update_rate", Kind::Number, "model.moe.router.bias_update"},
    {"--moe_router_load_balancing_type", Kind::Balancing, "model.moe.losses"},
    {"--moe_aux_loss_coeff", Kind::Number, "model.moe.losses.balance"},
    {"--moe_z_loss_coeff", Kind::Number, "model.moe.losses.z"},
    {"--moe_expert_capacity_factor", Kind::Number, "model.moe.capacity"},
    {"--moe_token_drop_policy", Kind::DropPolicy, "model.moe.drop"},
    {"--moe_shared_expert_intermediate_size", Kind::Number, "model.moe.shared_ffn_hidden_size"},
    {"--moe_shared_expert_gate", Kind::Switch, "model.moe.shared_gate"},
    {"--expert_model_parallel_size", Kind::Number, "parallel.expert"},
    {"--moe_router_dtype", Kind::ToldValue, "routers always compute in fp32"},
    {"--moe_token_dispatcher_type",
     Kind::ToldValue,
     "ranks that divide experts exchange numbers of tokens, then the tokens"},
    {"--moe_grouped_gemm", Kind::ToldSwitch, "experts are computed one after the other"},
    {"--moe_permute_fusion", Kind::ToldSwitch, "tokens are sorted by expert in one pass"},
    {"--moe_router_fusion", Kind::ToldSwitch, "a router is one operation"},
    {"--moe_pad_expert_input_to_capacity",
     Kind::ToldSwitch,
     "rows that no token fills are not computed"},
    {"--moe_shared_expert_overlap",
     Kind::ToldSwitch,
     "shared experts are computed after the others"},
    {"--moe_per_layer_logging",
     Kind::ToldSwitch,
     "metrics.jsonl has the load and the entropy of the experts"},
    {"--moe_input_jitter_eps", Kind::Refused, "remove it: the inputs of routers have no noise"},
    {"--moe_use_upcycling",
     Kind::Refused,
     "remove it: tessera convert MODEL OUT --upcycle 8 makes experts of a dense model"},
    {"--expert_tensor_parallel_size",
     Kind::Refused,
     "remove it: a rank holds each of its experts whole"},

    {"--backend", Kind::Backend, "run.transport"},
    {"--max_restarts", Kind::Number, "run.restarts"},
    {"--rdzv_id", Kind::ToldValue, kMeet},
    {"--rdzv_backend", Kind::ToldValue, kMeet},
    {"--rdzv_conf", Kind::ToldValue, kMeet},
    {"--monitor_interval", Kind::ToldValue, "the end of a rank is noticed at once"},
    {"--role", Kind::ToldValue, "all ranks of a job train"},
    {"--use_env", Kind::Told, kLocal},
    {"--local_addr", Kind::ToldValue, "GLOO_SOCKET_IFNAME chooses the network of this host"},
    {"--extra_launch_args", Kind::ToldValue, "no torchrun starts the ranks"},
    {"--standalone", Kind::Told, kLocal},

    {"--num_nodes", Kind::One, "1"},
    {"--nnodes", Kind::One, "1"},
    {"--node_rank", Kind::One, "0"},
    {"--master_addr", Kind::ToldValue, kLocal},
    {"--master_port", Kind::ToldValue, kLocal},
    {"--deepspeed_mpi", Kind::Told, kLocal},
    {"--no_ssh", Kind::Told, kLocal},
    {"--no_ssh_check", Kind::Told, kLocal},
    {"--no_local_rank", Kind::Told, kLocal},
    {"--no_python", Kind::Told, "there is no script"},
    {"--module", Kind::Told, "there is no script"},
    {"--venv_script", Kind::ToldValue, "no host needs a Python environment"},
    {"--log_level", Kind::ToldValue, "TESSERA_LOG=debug, info, warn or error sets it; -q is quiet"},
    {"--account", Kind::ToldValue, kSlurm},
    {"--comment", Kind::ToldValue, kSlurm},
    {"--tf32", Kind::ToldSwitch, "TF32 does not exist on CPUs; fp32 is computed in full precision"},
    {"--do_train", Kind::ToldSwitch, "use the command tessera train"},
    {"--do_eval",
     Kind::ToldSwitch,
     "--eval_strategy and --eval_steps say when a training is evaluated; tessera eval RUN does it "
     "afterwards"},
    {"--overwrite_output_dir",
     Kind::ToldSwitch,
     "the same command continues the run in --output_dir; --resume never begins it anew and keeps "
     "the old one"},
    {"--dataset_name", Kind::Refused, kNoDownload},
    {"--dataset_config_name", Kind::Refused, kNoDownload},
    {"--fsdp", Kind::Sharded, "zero_optimization.stage"},
    {"--sharded_ddp", Kind::Sharded, "zero_optimization.stage"},
    {"--save_on_each_node", Kind::Switch, "checkpoint.use_node_local_storage"},
    {"--half_precision_backend", Kind::ToldValue, "mixed precision needs no other library"},
    {"--fp16_opt_level",
     Kind::ToldValue,
     "fp16 keeps fp32 master weights and scales the loss, as the level O2 does"},
    {"--fp16_full_eval", Kind::ToldSwitch, kEvalPrecision},
    {"--bf16_full_eval", Kind::ToldSwitch, kEvalPrecision},
    {"--save_pid", Kind::Told, "run.dir/lock contains the process number"},
    {"--enable_each_rank_log", Kind::ToldValue, "run.dir/logs has a file for each rank"},
    {"--bind_cores_to_rank", Kind::Told, "run.threads_per_rank sets the number of cores per rank"},
    {"--autotuning", Kind::Refused, kNoTuner},
    {"--launcher", Kind::Refused, kNoSsh},
    {"--launcher_args", Kind::Refused, kNoSsh},
    {"--ssh_port", Kind::Refused, kNoSsh},
    {"--force_multi", Kind::Refused, kNoSsh},
    {"--hostfile", Kind::Refused, kNoSsh},
    {"-H", Kind::Refused, kNoSsh},
    {"--include", Kind::Refused, kNoHosts},
    {"-i", Kind::Refused, kNoHosts},
    {"--exclude", Kind::Refused, kNoHosts},
    {"-e", Kind::Refused, kNoHosts},
    {"--bind_core_list", Kind::Refused, "remove it: use taskset to select the cores"},
});

}  // namespace tessera::interop::flag_table
