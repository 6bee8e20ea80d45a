// SPDX-License-Identifier: Apache-2.0
// The keys that DeepSpeed 0.19 documents are compared with the table.
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/deepspeed/keys.h"
#include "tessera/interop/deepspeed/keys_page.h"

namespace tessera::interop {
namespace {

// Source: DeepSpeed's configuration reference, version 0.19.
constexpr auto kDocumented = std::to_array<std::string_view>({
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "managed_gradient_accumulation",
    "optimizer",
    "optimizer.type",
    "optimizer.params",
    "scheduler",
    "scheduler.type",
    "scheduler.params",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "gradient_allreduce_op",
    "prescale_gradients",
    "gradient_predivide_factor",
    "sparse_gradients",
    "fp16",
    "fp16.enabled",
    "fp16.auto_cast",
    "fp16.loss_scale",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "fp16.hysteresis",
    "fp16.consecutive_hysteresis",
    "fp16.min_loss_scale",
    "fp16.fp16_master_weights_and_grads",
    "bf16",
    "bf16.enabled",
    "bf16.bf16_master_weights_and_grads",
    "bf16.bf16_optimizer_states",
    "bf16.check_grad_overflow",
    "bf16.check_overflow",
    "bfloat16",
    "amp",
    "amp.enabled",
    "amp.opt_level",
    "torch_autocast",
    "torch_autocast.enabled",
    "torch_autocast.dtype",
    "torch_autocast.lower_precision_safe_modules",
    "gradient_clipping",
    "disable_allgather",
    "disable_python_gc",
    "dump_state",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "dataloader_drop_last",
    "graph_harvesting",
    "vocabulary_size",
    "zero_optimization",
    "zero_optimization.stage",
    "zero_optimization.allgather_partitions",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.overlap_comm",
    "zero_optimization.reduce_scatter",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.compute_grad_norm",
    "zero_optimization.parameter_alignment",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.grad_hooks",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.sub_group_size",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.log_trace_cache_warnings",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.stage3_module_granularity_threshold",
    "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.zero_quantized_weights",
    "zero_optimization.zero_quantized_gradients",
    "zero_optimization.mics_shard_size",
    "zero_optimization.save_muon_momentum_buffer_in_memory",
    "zero_optimization.cpu_offload",
    "zero_optimization.cpu_offload_param",
    "zero_optimization.cpu_offload_params",
    "zero_optimization.cpu_offload_use_pin_memory",
    "zero_optimization.offload_param",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.offload_param.pin_memory",
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    "zero_optimization.offload_param.max_in_cpu",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_optimizer.ratio",
    "zero_optimization.offload_optimizer.buffer_count",
    "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write",
    "aio",
    "aio.block_size",
    "aio.queue_depth",
    "aio.thread_count",
    "aio.intra_op_parallelism",
    "aio.single_submit",
    "aio.overlap_events",
    "aio.use_gds",
    "tensor_parallel",
    "tensor_parallel.autotp_size",
    "tensor_parallel.preset_model",
    "tensor_parallel.tp_overlap_comm",
    "tensor_parallel.injection_policy_tuple",
    "tensor_parallel.vocab_parallel_lm_head",
    "tensor_parallel.vocab_parallel_ce_backend",
    "tensor_parallel.partition_config",
    "tensor_parallel.partition_config.use_default_specs",
    "tensor_parallel.partition_config.layer_specs",
    "hybrid_engine",
    "hybrid_engine.enabled",
    "hybrid_engine.max_out_tokens",
    "hybrid_engine.inference_tp_size",
    "hybrid_engine.release_inference_cache",
    "hybrid_engine.pin_parameters",
    "hybrid_engine.tp_gather_partition_size",
    "hybrid_engine.enable_cuda_graph",
    "expert_parallel",
    "expert_parallel.enabled",
    "expert_parallel.autoep_size",
    "expert_parallel.expert_tensor_parallel_size",
    "expert_parallel.preset_model",
    "expert_parallel.use_grouped_mm",
    "expert_parallel.disable_triton_grouped_mm",
    "expert_parallel.moe_layer_pattern",
    "expert_parallel.router_pattern",
    "expert_parallel.expert_pattern",
    "expert_parallel.score_func",
    "expert_parallel.score_apply",
    "expert_parallel.route_norm",
    "expert_parallel.route_scale",
    "expert_parallel.top_k",
    "expert_parallel.routed_scaling_factor",
    "expert_parallel.num_expert_groups",
    "expert_parallel.num_limited_groups",
    "expert_parallel.load_balance_coeff",
    "expert_parallel.expert_w1",
    "expert_parallel.expert_w2",
    "expert_parallel.expert_w3",
    "expert_parallel.num_experts_attr",
    "expert_parallel.top_k_attr",
    "expert_parallel.has_shared_experts",
    "expert_parallel.shared_experts_pattern",
    "steps_per_print",
    "wall_clock_breakdown",
    "memory_breakdown",
    "memory_break_down",
    "autotuning",
    "autotuning.enabled",
    "autotuning.results_dir",
    "autotuning.exps_dir",
    "autotuning.overwrite",
    "autotuning.metric",
    "autotuning.start_profile_step",
    "autotuning.end_profile_step",
    "autotuning.fast",
    "autotuning.max_train_batch_size",
    "autotuning.min_train_batch_size",
    "autotuning.max_train_micro_batch_size_per_gpu",
    "autotuning.min_train_micro_batch_size_per_gpu",
    "autotuning.mp_size",
    "autotuning.num_tuning_micro_batch_sizes",
    "autotuning.tuner_type",
    "autotuning.tuner_early_stopping",
    "autotuning.tuner_num_trials",
    "autotuning.arg_mappings",
    "autotuning.model_info",
    "flops_profiler",
    "flops_profiler.enabled",
    "flops_profiler.profile_step",
    "flops_profiler.module_depth",
    "flops_profiler.top_modules",
    "flops_profiler.detailed",
    "flops_profiler.output_file",
    "flops_profiler.recompute_fwd_factor",
    "activation_checkpointing",
    "activation_checkpointing.partition_activations",
    "activation_checkpointing.cpu_checkpointing",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.number_checkpoints",
    "activation_checkpointing.synchronize_checkpoint_boundary",
    "activation_checkpointing.profile",
    "sparse_attention",
    "sparse_attention.mode",
    "sparse_attention.block",
    "sparse_attention.different_layout_per_head",
    "sparse_attention.num_local_blocks",
    "sparse_attention.num_global_blocks",
    "sparse_attention.attention",
    "sparse_attention.horizontal_global_attention",
    "sparse_attention.num_different_global_patterns",
    "sparse_attention.num_random_blocks",
    "sparse_attention.local_window_blocks",
    "sparse_attention.global_block_indices",
    "sparse_attention.global_block_end_indices",
    "sparse_attention.num_sliding_window_blocks",
    "data_efficiency",
    "data_efficiency.enabled",
    "data_efficiency.seed",
    "data_efficiency.data_routing",
    "data_efficiency.data_routing.enabled",
    "data_efficiency.data_routing.random_ltd",
    "data_efficiency.data_routing.random_ltd.enabled",
    "data_efficiency.data_routing.random_ltd.total_layer_num",
    "data_efficiency.data_routing.random_ltd.random_ltd_layer_num",
    "data_efficiency.data_routing.random_ltd.random_ltd_layer_id",
    "data_efficiency.data_routing.random_ltd.model_mask_name",
    "data_efficiency.data_routing.random_ltd.model_type",
    "data_efficiency.data_routing.random_ltd.hidden_state_order",
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule",
    "data_efficiency.data_sampling",
    "data_efficiency.data_sampling.enabled",
    "data_efficiency.data_sampling.num_epochs",
    "data_efficiency.data_sampling.num_workers",
    "data_efficiency.data_sampling.curriculum_learning",
    "data_efficiency.data_sampling.curriculum_learning.enabled",
    "data_efficiency.data_sampling.curriculum_learning.data_cluster_path",
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
    "curriculum_learning",
    "curriculum_learning.enabled",
    "curriculum_learning.curriculum_type",
    "curriculum_learning.min_difficulty",
    "curriculum_learning.max_difficulty",
    "curriculum_learning.schedule_type",
    "curriculum_learning.schedule_config",
    "curriculum_learning.schedule_config.total_curriculum_step",
    "curriculum_learning.schedule_config.difficulty_step",
    "curriculum_learning.schedule_config.root_degree",
    "curriculum_learning.schedule_config.difficulty",
    "curriculum_learning.schedule_config.max_step",
    "progressive_layer_drop",
    "progressive_layer_drop.enabled",
    "progressive_layer_drop.theta",
    "progressive_layer_drop.gamma",
    "tensorboard",
    "tensorboard.enabled",
    "tensorboard.output_path",
    "tensorboard.job_name",
    "wandb",
    "wandb.enabled",
    "wandb.group",
    "wandb.team",
    "wandb.project",
    "comet",
    "comet.enabled",
    "comet.workspace",
    "comet.project",
    "comet.samples_log_interval",
    "comet.experiment_name",
    "comet.api_key",
    "comet.experiment_key",
    "comet.online",
    "comet.mode",
    "csv_monitor",
    "csv_monitor.enabled",
    "csv_monitor.output_path",
    "csv_monitor.job_name",
    "elasticity",
    "elasticity.enabled",
    "elasticity.max_train_batch_size",
    "elasticity.micro_batch_sizes",
    "elasticity.min_gpus",
    "elasticity.max_gpus",
    "elasticity.min_time",
    "elasticity.prefer_large_batch",
    "elasticity.prefer_larger_batch",
    "elasticity.version",
    "elasticity.ignore_non_elastic_batch_info",
    "elasticity.num_gpus_per_node",
    "elasticity.model_parallel_size",
    "comms_logger",
    "comms_logger.enabled",
    "comms_logger.verbose",
    "comms_logger.prof_all",
    "comms_logger.debug",
    "comms_logger.prof_ops",
    "compression_training",
    "compression_training.layer_reduction",
    "compression_training.layer_reduction.enabled",
    "compression_training.layer_reduction.keep_number_layer",
    "compression_training.layer_reduction.module_name_prefix",
    "compression_training.layer_reduction.teacher_layer",
    "compression_training.layer_reduction.other_module_name",
    "compression_training.weight_quantization",
    "compression_training.weight_quantization.shared_parameters",
    "compression_training.weight_quantization.shared_parameters.enabled",
    "compression_training.weight_quantization.shared_parameters.quantizer_kernel",
    "compression_training.weight_quantization.shared_parameters.schedule_offset",
    "compression_training.weight_quantization.shared_parameters.quantize_groups",
    "compression_training.weight_quantization.shared_parameters.quantization_type",
    "compression_training.weight_quantization.different_groups",
    "compression_training.activation_quantization",
    "compression_training.activation_quantization.shared_parameters.enabled",
    "compression_training.activation_quantization.shared_parameters.range_calibration",
    "compression_training.activation_quantization.different_groups",
    "compression_training.sparse_pruning",
    "compression_training.sparse_pruning.shared_parameters.enabled",
    "compression_training.sparse_pruning.shared_parameters.method",
    "compression_training.sparse_pruning.different_groups",
    "compression_training.row_pruning",
    "compression_training.row_pruning.shared_parameters.enabled",
    "compression_training.row_pruning.different_groups",
    "compression_training.head_pruning",
    "compression_training.head_pruning.shared_parameters.enabled",
    "compression_training.head_pruning.shared_parameters.num_heads",
    "compression_training.head_pruning.different_groups",
    "compression_training.channel_pruning",
    "compression_training.channel_pruning.shared_parameters.enabled",
    "compression_training.channel_pruning.different_groups",
    "checkpoint",
    "checkpoint.tag_validation",
    "checkpoint.load_universal",
    "checkpoint.use_node_local_storage",
    "checkpoint.parallel_write",
    "checkpoint.parallel_write.pipeline_stage",
    "compile",
    "compile.deepcompile",
    "compile.passes",
    "compile.offload_activation",
    "compile.offload_activation_pin_memory",
    "data_types",
    "data_types.grad_accum_dtype",
    "data_types.param_dtype",
    "data_types.buffer_dtype",
    "data_types.keep_in_fp32_modules",
    "pipeline",
    "pipeline.stages",
    "pipeline.partition",
    "pipeline.seed_layers",
    "pipeline.activation_checkpoint_interval",
    "pipeline.pipe_partitioned",
    "pipeline.grad_partitioned",
    "quantize_training",
    "eigenvalue",
    "nebula",
    "timers",
});

TEST(DocumentedKeys, AllHaveARow) {
  for (const std::string_view key : kDocumented)
    EXPECT_NE(find_deepspeed_key(key), nullptr) << key;
}

// Returns the keys that tessera's options would have: all Done keys, and the targets of aliases.
std::vector<std::string> own_keys() {
  std::vector<std::string> own = {"data", "data.drop_last"};
  for (const DeepSpeedKey& row : deepspeed_keys()) {
    if (row.policy == KeyPolicy::Done) own.emplace_back(row.path);
  }
  return own;
}

// Returns the default of a row as a value, unless it is a rule in words.
std::optional<json::Value> default_of(const DeepSpeedKey& row) {
  if (row.initial.empty()) return std::nullopt;
  if (row.type == KeyType::String) return json::Value::string(std::string(row.initial));
  try {
    return json::parse(row.initial, "default");
  } catch (const Error&) {
    return std::nullopt;
  }
}

TEST(DocumentedKeys, AreNeverRefusedAtDeepSpeedsDefault) {
  const std::vector<std::string> own = own_keys();
  int tried = 0;
  for (const DeepSpeedKey& row : deepspeed_keys()) {
    const auto value = default_of(row);
    const bool words = row.initial.find(' ') != std::string_view::npos;
    if (!value || words || row.policy == KeyPolicy::Alias) continue;
    // A block that is enabled by its presence.
    const DeepSpeedKey* block = find_deepspeed_key(row.path.substr(0, row.path.rfind('.')));
    if (block != nullptr && block != &row && block->policy == KeyPolicy::Never) continue;
    json::Value source = json::Value::object();
    json::Value* at = &source;
    for (const std::string& step : text::split(row.path, '.'))
      at = &(*at)[step];
    *at = *value;

    config::Problems problems;
    take_deepspeed_keys(source, own, problems);

    EXPECT_TRUE(problems.empty()) << row.path << ": " << problems.list().front().what;
    ++tried;
  }
  EXPECT_GT(tried, 150);
}

// The keys as release 0.19.8 writes them, and with the other values that it accepts.
TEST(DocumentedKeys, OfTheNewestReleasePass) {
  for (const char* text :
       {R"({"zero_optimization": {"compute_grad_norm": true, "parameter_alignment": false}})",
        R"({"zero_optimization": {"compute_grad_norm": false, "parameter_alignment": true}})",
        R"({"disable_python_gc": true})",
        R"({"data_types": {"keep_in_fp32_modules": "auto"}})",
        R"({"data_types": {"keep_in_fp32_modules": []}})",
        R"({"data_types": {"keep_in_fp32_modules": ["rotary"]}})",
        R"({"tensor_parallel": {"vocab_parallel_lm_head": null}})",
        R"({"tensor_parallel": {"vocab_parallel_lm_head": true}})",
        R"({"tensor_parallel": {"vocab_parallel_ce_backend": "liger"}})",
        R"({"bf16": {"check_overflow": false}})",
        R"({"compile": {"autoep_non_moe": false}})"}) {
    config::Problems problems;
    const json::Value source = with_new_names(json::parse(text, "ds.json"), problems);
    const config::TakenKeys taken = take_deepspeed_keys(source, own_keys(), problems);

    EXPECT_TRUE(problems.empty()) << text << ": " << problems.list().front().what;
    for (const config::TakenKey& key : taken.accepted)
      EXPECT_FALSE(key.why.empty()) << key.path;
  }
}

TEST(DocumentedKeys, AreAllInThePage) {
  const std::string page = deepspeed_markdown({});

  for (const std::string_view key : kDocumented) {
    const DeepSpeedKey* row = find_deepspeed_key(key);
    ASSERT_NE(row, nullptr) << key;
    if (row->policy == KeyPolicy::Section) continue;
    EXPECT_THAT(page, testing::HasSubstr("| `" + std::string(row->path) + "` |"));
  }
}

TEST(DocumentedKeys, OfEveryRowSayWhatBecomesOfThem) {
  const std::string page = deepspeed_markdown({});

  // Columns: key, default, treatment, reason. Only Done keys and keys that are part of a block may
  // lack a reason.
  EXPECT_THAT(page,
              testing::HasSubstr("| `zero_optimization.overlap_comm` | `true in stage 3, else "
                                 "false` | accepted with a note | "));
  EXPECT_THAT(page,
              testing::HasSubstr("| `zero_optimization.load_from_fp32_weights` | `true` | rejected "
                                 "unless the value is `true` | "));
  EXPECT_THAT(page, testing::HasSubstr("| `bfloat16` |  | another name of `bf16` |"));
  EXPECT_THAT(page, testing::HasSubstr("rejected unless the value is `\"fp32\"`; not built yet"));
}

TEST(DocumentedKeys, ShowADefaultThatDiffers) {
  const std::vector<config::KeyDoc> keys = {
      {"gradient_clipping",
       "number",
       "0",
       "",
       "Maximum global gradient norm; 0 disables clipping."},
      {"zero_optimization.stage3_max_live_parameters", "integer", "1000000000", "", "Most."}};

  const std::string page = deepspeed_markdown(keys);

  EXPECT_THAT(page,
              testing::HasSubstr("| `gradient_clipping` | `1.0`; here 0 | done | Maximum global"));
  EXPECT_THAT(page,
              testing::HasSubstr(
                  "| `zero_optimization.stage3_max_live_parameters` | `1e9` | done | Most. |"));
}

}  // namespace
}  // namespace tessera::interop
