// SPDX-License-Identifier: Apache-2.0
// First part of the table: batch, precision, optimizer, ZeRO, layouts. Source: DeepSpeed 0.19's
// configuration reference.
#include <array>

#include "tessera/interop/deepspeed/key_rows.h"

namespace tessera::interop::rows {
namespace {

using enum KeyType;

constexpr Text kReduction =
    "gradients are accumulated in fp32 and divided once by the token count of the global batch";
constexpr Text kShared = "ranks read each other's memory directly, without buckets";
constexpr Text kOverlap = "each block is updated separately";
constexpr Text kBlock = "the weights of a block are always gathered together";
constexpr Text kOrder = "the order of the blocks is known in advance and need not be traced";
constexpr Text kOneRule = "every optimizer supports sharded parameters";
constexpr Text kHost = "ranks compute on the CPU, so the data is already in host memory";
constexpr Text kTransfers = "threads make the transfers, each of them one block at a time";
constexpr Text kPinned =
    "buffers are in ordinary memory, from which a disk reads and writes directly";
constexpr Text kNothing = "nothing is offloaded from host memory";
constexpr Text kFlows =
    "parallel.pipeline.scatter_gather controls whether each tensor-parallel rank sends a part";
constexpr Text kDeclared = "models declare by themselves how their parameters are sharded";
constexpr Text kLayouts = "every checkpoint can be loaded with any layout";
constexpr Text kFalse = "[false]";
constexpr Text kDropKey = "remove the key";

// clang-format off
const auto kRows = std::to_array<DeepSpeedKey>({
    // batch
    done("train_batch_size", Integer),
    done("train_micro_batch_size_per_gpu", Integer, "train_batch_size"),
    done("gradient_accumulation_steps", Integer, "1"),
    alias("NUM_MICRO_BATCHES", Integer, "gradient_accumulation_steps"),
    alias("NUM_CHUNKS", Integer, "parallel.pipeline.chunks"),
    accepted("TENSOR_SHAPE", Array, "", "pipeline stages determine all shapes in advance"),
    never("managed_gradient_accumulation", Bool, "true", "[true]",
          "there is no user code that could call step()",
          "remove it: an update follows every gradient_accumulation_steps micro-batches"),
    alias("dataloader_drop_last", Bool, "data.drop_last"),

    // optimizer and schedule
    section("optimizer"),
    done("optimizer.type", String),
    done("optimizer.params", Object),
    accepted("optimizer.legacy_fusion", Bool, "false", kOneRule),
    section("scheduler"),
    done("scheduler.type", String),
    done("scheduler.params", Object),
    done("gradient_clipping", Number, "1.0"),
    accepted("zero_allow_untested_optimizer", Bool, "false", kOneRule),
    accepted("zero_force_ds_cpu_optimizer", Bool, "true", kOneRule),

    // communication dtype
    done("communication_data_type", String, "of the model"),
    later("seq_parallel_communication_data_type", String, "fp32", R"(["fp32"])",
          "gradients are reduced in fp32", "remove it, or set it to \"fp32\""),
    never("gradient_allreduce_op", String, "mean", R"(["mean"])",
          "gradients are the mean over the tokens of the global batch",
          "remove it; a larger optimizer.params.lr has the same effect as a sum"),
    accepted("prescale_gradients", Bool, "false", kReduction),
    accepted("gradient_predivide_factor", Number, "1.0", kReduction),
    done("sparse_gradients", Bool, "false"),
    accepted("disable_allgather", Bool, "false", kShared),
    section("data_types"),
    done("data_types.grad_accum_dtype", String, "of the model"),
    never("data_types.param_dtype", String, "", "[]",
          "weights always have the working dtype of the run",
          "remove it, and set bf16.enabled or fp16.enabled"),
    never("data_types.buffer_dtype", String, "", "[]", "no model has buffers", kDropKey),
    accepted("data_types.keep_in_fp32_modules", Array, "auto",
             "it applies to buffers of modules, which no model has"),

    // 16-bit precision
    section("fp16"),
    done("fp16.enabled", Bool, "false"),
    done("fp16.auto_cast", Bool, "false"),
    done("fp16.loss_scale", Number, "0"),
    done("fp16.initial_scale_power", Integer, "16"),
    done("fp16.loss_scale_window", Integer, "1000"),
    done("fp16.hysteresis", Integer, "2"),
    done("fp16.consecutive_hysteresis", Bool, "false"),
    done("fp16.min_loss_scale", Number, "1"),
    done("fp16.fp16_master_weights_and_grads", Bool, "false"),
    accepted("fp16.mode", String, "",
             "fp16 always uses fp32 master weights, as NAIVE does; any mode enables fp16 unless "
             "fp16.enabled is given"),
    section("bf16"),
    done("bf16.enabled", Bool, "false"),
    accepted("bf16.immediate_grad_update", Bool, "false", kReduction),
    accepted("bf16.check_grad_overflow", Bool, "true",
             "trainer.on_nonfinite controls the handling of non-finite steps"),
    done("bf16.bf16_master_weights_and_grads", Bool, "false"),
    done("bf16.bf16_optimizer_states", Bool, "false"),
    alias("bfloat16", Object, "bf16"),
    alias("bf16.check_overflow", Bool, "bf16.check_grad_overflow"),
    section("amp"),
    done("amp.enabled", Bool, "false"),
    done("amp.opt_level", String, "O1"),
    done("amp.loss_scale", Any, "dynamic"),
    accepted("amp.*", Any, "",
             "layers choose their dtypes by themselves; master weights and norms are fp32"),
    section("torch_autocast"),
    done("torch_autocast.enabled", Bool, "false"),
    done("torch_autocast.dtype", String, "bfloat16"),
    accepted("torch_autocast.lower_precision_safe_modules", Array, "linear and convolution",
             "layers choose their dtypes by themselves; there is no autocast"),

    // ZeRO
    section("zero_optimization"),
    done("zero_optimization.stage", Integer, "0"),
    done("zero_optimization.reduce_bucket_size", Integer, "5e8"),
    done("zero_optimization.stage3_prefetch_bucket_size", Integer, "5e7"),
    done("zero_optimization.stage3_param_persistence_threshold", Integer, "1e5"),
    done("zero_optimization.stage3_model_persistence_threshold", Integer, "no limit"),
    done("zero_optimization.stage3_max_live_parameters", Integer, "1e9"),
    done("zero_optimization.stage3_max_reuse_distance", Integer, "1e9"),
    alias("zero_optimization.prefetch_bucket_size", Integer,
          "zero_optimization.stage3_prefetch_bucket_size"),
    alias("zero_optimization.param_persistence_threshold", Integer,
          "zero_optimization.stage3_param_persistence_threshold"),
    alias("zero_optimization.model_persistence_threshold", Integer,
          "zero_optimization.stage3_model_persistence_threshold"),
    alias("zero_optimization.max_live_parameters", Integer,
          "zero_optimization.stage3_max_live_parameters"),
    alias("zero_optimization.max_reuse_distance", Integer,
          "zero_optimization.stage3_max_reuse_distance"),
    accepted("zero_optimization.contiguous_gradients", Bool, "true",
             "gradients are always contiguous"),
    accepted("zero_optimization.reduce_scatter", Bool, "true",
             "gradients are always reduced by their owners"),
    accepted("zero_optimization.use_multi_rank_bucket_allreduce", Bool, "true", kShared),
    accepted("zero_optimization.allgather_partitions", Bool, "true", kShared),
    accepted("zero_optimization.allgather_bucket_size", Integer, "5e8", kShared),
    accepted("zero_optimization.overlap_comm", Bool, "true in stage 3, else false",
             "weights are always prefetched one block ahead, and gradients are awaited after the "
             "backward pass of the next block"),
    accepted("zero_optimization.round_robin_gradients", Bool, "false", kOverlap),
    accepted("zero_optimization.grad_hooks", Bool, "true",
             "blocks run one after another, so gradients need no hooks"),
    accepted("zero_optimization.legacy_stage1", Bool, "false",
             "there is only one implementation of stage 1"),
    accepted("zero_optimization.compute_grad_norm", Bool, "true",
             "the norm is always computed, because it also detects non-finite gradients"),
    accepted("zero_optimization.parameter_alignment", Bool, "false",
             "every parameter is aligned to 1024 elements in its buffer"),
    never("zero_optimization.load_from_fp32_weights", Bool, "true", "[true]",
          "master weights are always loaded from fp32", "remove it, or set it to true"),
    accepted("zero_optimization.elastic_checkpoint", Bool, "false", kLayouts),
    accepted("zero_optimization.pipeline_loading_checkpoint", Bool, "false", kLayouts),
    done("zero_optimization.sub_group_size", Integer, "1e9"),
    accepted("zero_optimization.ignore_unused_parameters", Bool, "true",
             "unused parameters have a gradient of 0"),
    accepted("zero_optimization.memory_efficient_linear", Bool, "true",
             "linear layers never save their weight for the backward pass"),
    accepted("zero_optimization.override_module_apply", Bool, "true", "modules are never patched"),
    accepted("zero_optimization.log_trace_cache_warnings", Bool, "false", kOrder),
    accepted("zero_optimization.enable_sanity_checks", Bool, "false",
             "ranks always check that their collectives match"),
    accepted("zero_optimization.save_muon_momentum_buffer_in_memory", Bool, "false", kNothing),
    accepted("zero_optimization.stage3_gather_16bit_weights_on_model_save", Bool, "false",
             "every checkpoint contains the whole model, regardless of the layout"),
    alias("zero_optimization.gather_16bit_weights_on_model_save", Bool,
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    alias("zero_optimization.stage3_gather_fp16_weights_on_model_save", Bool,
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    accepted("zero_optimization.stage3_module_granularity_threshold", Integer, "0", kBlock),
    alias("zero_optimization.module_granularity_threshold", Integer,
          "zero_optimization.stage3_module_granularity_threshold"),
    accepted("zero_optimization.stage3_use_all_reduce_for_fetch_params", Bool, "false", kShared),
    alias("zero_optimization.use_all_reduce_for_fetch_params", Bool,
          "zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    accepted("zero_optimization.stage3_allgather_sequential", Bool, "false", kShared),
    alias("zero_optimization.allgather_sequential", Bool,
          "zero_optimization.stage3_allgather_sequential"),
    section("zero_optimization.leaf_module"),
    accepted("zero_optimization.leaf_module.classes", Any, "MoE blocks", kBlock),
    accepted("zero_optimization.leaf_module.names", Any, "[]", kBlock),
    accepted("zero_optimization.leaf_module.name_suffixes", Any, "[]", kBlock),
    done("zero_optimization.zero_hpz_partition_size", Integer, "1"),
    done("zero_optimization.zero_quantized_weights", Bool, "false"),
    done("zero_optimization.zero_quantized_nontrainable_weights", Bool, "false"),
    done("zero_optimization.zero_quantized_gradients", Bool, "false"),
    section("zero_optimization.zeropp_loco_param"),
    done("zero_optimization.zeropp_loco_param.err_beta", Number, "0.8"),
    done("zero_optimization.zeropp_loco_param.reset_T", Integer, "1024"),
    done("zero_optimization.mics_shard_size", Integer, "-1"),
    accepted("zero_optimization.mics_hierarchical_params_gather", Bool, "false", kShared),
    never("zero_optimization.zenflow", Object, "", "[]",
          "it updates most channels some steps late, which changes the results", kDropKey),

    // offload
    alias("zero_optimization.cpu_offload", Bool, "zero_optimization.offload_optimizer.device",
          R"(["none", "cpu"])"),
    alias("zero_optimization.cpu_offload_param", Bool, "zero_optimization.offload_param.device",
          R"(["none", "cpu"])"),
    alias("zero_optimization.cpu_offload_params", Bool, "zero_optimization.offload_param.device",
          R"(["none", "cpu"])"),
    accepted("zero_optimization.cpu_offload_use_pin_memory", Bool, "false", kNothing),
    section("zero_optimization.offload_param"),
    done("zero_optimization.offload_param.device", Any, "none"),
    done("zero_optimization.offload_param.nvme_path", String),
    done("zero_optimization.offload_param.buffer_count", Integer, "5"),
    accepted("zero_optimization.offload_param.buffer_size", Integer, "1e8",
             "a buffer has the size of the largest part that travels"),
    done("zero_optimization.offload_param.max_in_cpu", Integer, "1e9"),
    accepted("zero_optimization.offload_param.pin_memory", Bool, "true", kPinned),
    section("zero_optimization.offload_optimizer"),
    done("zero_optimization.offload_optimizer.device", Any, "none"),
    done("zero_optimization.offload_optimizer.nvme_path", String),
    done("zero_optimization.offload_optimizer.buffer_count", Integer, "4"),
    accepted("zero_optimization.offload_optimizer.pin_memory", Bool, "true", kPinned),
    accepted("zero_optimization.offload_optimizer.pipeline", Bool, "false",
             "pipeline_read and pipeline_write control the overlap"),
    done("zero_optimization.offload_optimizer.pipeline_read", Bool, "false"),
    done("zero_optimization.offload_optimizer.pipeline_write", Bool, "false"),
    accepted("zero_optimization.offload_optimizer.fast_init", Bool, "false",
             "states on a disk are zero from the beginning and need not be written first"),
    done("zero_optimization.offload_optimizer.ratio", Number, "1.0"),
    done("zero_optimization.offload_optimizer.super_offload", Bool, "false"),
    accepted("zero_optimization.offload_optimizer.cpuadam_cores_perc", Number, "0.8",
             "run.threads_per_rank sets the number of threads of the update"),
    section("aio"),
    done("aio.block_size", Integer, "1048576"),
    done("aio.queue_depth", Integer, "8"),
    done("aio.intra_op_parallelism", Integer, "1"),
    alias("aio.thread_count", Integer, "aio.intra_op_parallelism"),
    accepted("aio.single_submit", Bool, "false", kTransfers),
    accepted("aio.overlap_events", Bool, "true", kTransfers),
    accepted("aio.use_gds", Bool, "false", kTransfers),

    // recomputation
    section("activation_checkpointing"),
    done("activation_checkpointing.partition_activations", Bool, "false"),
    done("activation_checkpointing.cpu_checkpointing", Bool, "false"),
    accepted("activation_checkpointing.contiguous_memory_optimization", Bool, "false",
             "the caching allocator avoids fragmentation, and what rests on a disk has buffers of one "
             "size"),
    accepted("activation_checkpointing.number_checkpoints", Integer, "",
             "it is only used by contiguous_memory_optimization"),
    accepted("activation_checkpointing.synchronize_checkpoint_boundary", Bool, "false",
             "there is no asynchronous device to synchronize with"),
    accepted("activation_checkpointing.profile", Bool, "false",
             "wall_clock_breakdown shows the times"),
    // layouts
    section("pipeline"),
    alias("pipeline.stages", Integer, "parallel.pipeline.size"),
    alias("pipeline.partition", String, "parallel.pipeline.partition"),
    accepted("pipeline.seed_layers", Bool, "false",
             "initial weights always depend on the seed and the parameter name"),
    accepted("pipeline.activation_checkpoint_interval", Integer, "0",
             "a value above 0 enables activation_checkpointing, unless that section is given; "
             "recomputation is always per block"),
    accepted("pipeline.pipe_partitioned", Bool, "true", kFlows),
    accepted("pipeline.grad_partitioned", Bool, "true", kFlows),
    later("sequence_parallel_size", Integer, "1", "[1]",
          "use parallel.context for sequence parallelism",
          R"(set it to 1 and parallel.context to {"size": that number, "mode": "ulysses"})"),
    section("tensor_parallel"),
    alias("tensor_parallel.autotp_size", Integer, "parallel.tensor.size"),
    accepted("tensor_parallel.tp_overlap_comm", Bool, "false",
             "ranks read each other's partial sums when they are needed"),
    accepted("tensor_parallel.preset_model", String, "", kDeclared),
    accepted("tensor_parallel.injection_policy_tuple", Any, "", kDeclared),
    accepted("tensor_parallel.vocab_parallel_lm_head", Bool, "",
             "embedding tables and output heads are always sharded along the vocabulary"),
    accepted("tensor_parallel.vocab_parallel_ce_backend", String, "torch",
             "there is only one implementation of the loss"),
    section("tensor_parallel.partition_config"),
    accepted("tensor_parallel.partition_config.use_default_specs", Bool, "true", kDeclared),
    accepted("tensor_parallel.partition_config.layer_specs", Array, "[]", kDeclared),
    accepted("tensor_parallel.dtype", String, "fp16", "bf16 and fp16 set the dtype"),
    section("tensor_parallel.tp"),
    accepted("tensor_parallel.tp.*", Any, "", "the section parallel sets the number of ranks"),
    accepted("tensor_parallel.keep_module_on_host", Bool, "false", kHost),
    accepted("tensor_parallel.kernel_inject", Bool, "false",
             "layers have only one implementation"),
    alias("tensor_parallel.replace_with_kernel_inject", Bool, "tensor_parallel.kernel_inject"),
    accepted("use_data_before_expert_parallelism", Bool, "false",
             "ranks that divide experts are always neighbours; results do not depend on it"),
});
// clang-format on

}  // namespace

std::span<const DeepSpeedKey> training_rows() {
  return kRows;
}

}  // namespace tessera::interop::rows
