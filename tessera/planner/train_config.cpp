// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/train_config.h"

#include <array>

#include "tessera/base/control_page.h"

namespace tessera::planner {
namespace {

// Larger sizes are typing mistakes; products of three of them still fit into 64 bits.
constexpr double kMostSteps = 1e12;
constexpr double kMostSequences = 1e9;
constexpr double kMostMicro = 1e5;

using config::Named;
constexpr auto kOnNonfinite = std::to_array<Named<optim::OnNonfinite>>(
    {{optim::OnNonfinite::Stop, "stop"}, {optim::OnNonfinite::Skip, "skip"}});
constexpr auto kAutocastTypes =
    std::to_array<Named<DType>>({{DType::BF16, "bfloat16"}, {DType::F16, "float16"}});
constexpr auto kAccumulationTypes =
    std::to_array<Named<DType>>({{DType::F32, "fp32"}, {DType::BF16, "bf16"}});
constexpr auto kRecomputeKinds =
    std::to_array<Named<RecomputeKind>>({{RecomputeKind::None, "none"},
                                         {RecomputeKind::Full, "full"},
                                         {RecomputeKind::Selective, "selective"},
                                         {RecomputeKind::Auto, "auto"}});
constexpr auto kReductions = std::to_array<Named<parallel::Reduction>>(
    {{parallel::Reduction::Each, "each"}, {parallel::Reduction::Once, "once"}});

}  // namespace

void TrainerOptions::describe(config::Fields& f) {
  f.field("max_steps",
          max_steps,
          {.text = "Stop after this number of optimizer updates.",
           .unit = "steps",
           .min = 1,
           .max = kMostSteps,
           .default_text = "follows from trainer.epochs"});
  f.field("epochs",
          epochs,
          {.text = "Stop after this number of passes over the training data, or at max_steps, "
                   "whichever comes first.",
           .unit = "epochs",
           .min = 0,
           .max = kMostSteps,
           .above_min = true,
           .default_text = "1 if max_steps is not given"});
  f.field("seed",
          seed,
          {.text = "Random seed for initial weights, order of samples and dropout.", .min = 0});
  f.choice("on_nonfinite",
           on_nonfinite,
           kOnNonfinite,
           {.text = "Action on a non-finite loss or gradient: stop the run, or skip the update."});
  f.field("clip_after_warmup",
          clip_after_warmup,
          {.text = "Clip gradients only after the warm-up of the schedule."});
  f.section("ema", ema, "A moving average of the weights.");
}

void CheckpointOptions::describe(config::Fields& f) {
  f.field(
      "every",
      every,
      {.text = "Write a checkpoint every N steps, or with \"epoch\" at the end of every epoch; 0 "
               "disables this.",
       .unit = "steps",
       .min = 0,
       .default_text = "see every_minutes",
       .type = "integer or \"epoch\""});
  f.field("every_minutes",
          every_minutes,
          {.text = "Write a checkpoint when this many minutes have passed since the last one, in "
                   "addition to those of every; 0 disables this.",
           .unit = "minutes",
           .min = 0,
           .max = 1e6,
           .default_text = "15 if every is not given, else 0"});
  f.field("keep",
          keep,
          {.text = "Number of newest checkpoints to keep.",
           .unit = "checkpoints",
           .min = 1,
           .max = 1e6});
  f.field(
      "best",
      best,
      {.text = "Write a checkpoint whenever an evaluation is the best so far by eval.best, keep "
               "it in addition to the newest ones, and name it in checkpoints/best. With every "
               "0 and final false, nothing else is saved.",
       .default_text = "true if eval.best or eval.patience is given, else false"});
  f.field("final", final, {.text = "Write a checkpoint at the end of training."});
  f.field("save_on_signal",
          save_on_signal,
          {.text = "Write a checkpoint before a signal (SIGTERM, Ctrl-C) ends the training."});
  f.field("async",
          async,
          {.text = "Write checkpoints in the background while training continues. Data that is not "
                   "written yet is copied before the next update changes it. The save at the end "
                   "or at a signal is synchronous."});
  f.field("load_universal",
          load_universal,
          {.text = "If --resume names a DeepSpeed folder, load its universal checkpoint "
                   "(latest_universal); it is an error if there is none."});
  f.field("use_node_local_storage",
          use_node_local_storage,
          {.text = "For hosts that share no disk: each host saves the pieces of its ranks under "
                   "its own run.dir, as a part of the checkpoint. tessera checkpoint merge joins "
                   "the parts. With a single host the part is the whole checkpoint."});
  f.field(
      "peer_copies",
      peer_copies,
      {.text = "1: every host also keeps the training state of its ranks and of the ranks of the "
               "host before it in memory, so that a job of several hosts goes on from there "
               "after a loss (run.min_hosts, run.restarts), without a disk.",
       .unit = "hosts",
       .min = 0,
       .max = 1});
  f.field("peer_every",
          peer_every,
          {.text = "Number of steps between two copies of peer_copies. A copy is made in the "
                   "background; the next one waits for it.",
           .unit = "steps",
           .min = 1,
           .max = 1e9});
}

void RunOptions::describe(config::Fields& f) {
  f.field("dir", dir, {.text = "The run folder.", .default_text = "runs/<name of the file>"});
  f.field("threads_per_rank",
          threads_per_rank,
          {.text = "Number of threads for the kernels of each rank.",
           .unit = "threads",
           .min = 1,
           .max = 1024,
           .default_text = "cores / local ranks"});
  f.field("hosts",
          hosts,
          {.text = "The hosts that run the ranks: the path of a hostfile, or its lines as a list, "
                   "such as [\"node-0 slots=4\", \"node-1 slots=4\"]. --hostfile takes "
                   "precedence.",
           .default_text = "this host",
           .type = "string or list of strings"});
  f.choice("transport",
           transport,
           kLinkEngines,
           {.text = "The engine that moves data between hosts: gloo; mpi, if mpirun has started "
                    "the ranks; auto is gloo. Within a host data moves through shared memory. The "
                    "results are the same with each."});
  f.field("restarts",
          restarts,
          {.text = "How often the job goes on by itself from the newest checkpoint after a rank or "
                   "a host was lost or hung. Other failures end it.",
           .min = 0,
           .max = 1e6,
           .default_text = "0; 100 if min_hosts is given"});
  f.field("min_hosts",
          min_hosts,
          {.text = "Elastic training: when a host is lost, go on with at least this number of "
                   "hosts, on the largest number of ranks that shares the same global batch. A "
                   "host that comes back joins again.",
           .unit = "hosts",
           .min = 1,
           .max = kMostRanks,
           .default_text = "all hosts"});
  f.field("max_hosts",
          max_hosts,
          {.text = "Elastic training: use at most this number of hosts at a time; further hosts of "
                   "the hostfile replace lost ones.",
           .unit = "hosts",
           .min = 1,
           .max = kMostRanks,
           .default_text = "all hosts"});
  f.field("derived",
          derived,
          {.text = "Written to config.json in the run folder: the keys that were derived from the "
                   "number of ranks. Training with that file derives them again.",
           .default_text = "none"});
}

void OptimizerOptions::describe(config::Fields& f) {
  f.field("type", type, {.text = "Name of the optimizer (case-insensitive)."});
  f.field("params",
          params,
          {.text = "Parameters of the optimizer; for AdamW: lr, betas, eps, weight_decay.",
           .default_text = "lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0.01"});
  f.section("weight_decay_schedule",
            weight_decay_schedule,
            "Schedule of the weight decay from start to end.");
  f.field("groups",
          groups,
          {.text = "Parameter groups, a list of {pattern, lr, weight_decay, frozen, frozen_until, "
                   "frozen_from}: a separate learning rate or weight decay, or no training (at "
                   "all, until or from a number of steps or \"N epochs\"), for parameters whose "
                   "names match the regular expression. The first match applies.",
           .default_text = "none",
           .type = "list of objects"});
  f.field(
      "decay_all",
      decay_all,
      {.text =
           "Apply weight decay to all parameters, not only to those of two or more dimensions."});
  f.field(
      "layer_decay",
      layer_decay,
      {.text = "Factor of the learning rate from each layer to the one below it, as in ELECTRA: "
               "of n layers, layer i from 0 learns at lr x layer_decay^(n + 1 - i), the "
               "embedding at lr x layer_decay^(n + 2), the objective at lr. Groups with an lr "
               "keep it.",
       .min = 0,
       .max = 1,
       .above_min = true});
  f.section("gradual_unfreezing",
            gradual_unfreezing,
            "Training from the last layer to the first, as in ULMFiT. Groups with frozen_until or "
            "frozen_from keep their schedule.");
}

void SchedulerOptions::describe(config::Fields& f) {
  f.field("type",
          type,
          {.text = "Name of the learning-rate schedule (case-insensitive).",
           .default_text = "constant"});
  f.field("params",
          params,
          {.text = "Parameters of the schedule, such as warmup_num_steps.", .default_text = "{}"});
  f.choice(
      "on_resume",
      on_resume,
      kOnResume,
      {.text = "What tessera train does with the learning-rate curve if it resumes with another "
               "schedule or length: keep (the type, parameters and length of the saved run; "
               "optimizer.params.lr is still the given one), or restart (the given schedule "
               "begins anew at the next step and ends at trainer.max_steps).",
       .default_text = "the given schedule, as if it had been used from the first step"});
}

void Bf16Options::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Train in bf16: weights and activations are bf16; master weights, moments and "
                   "gradient accumulation stay fp32."});
  f.field("bf16_master_weights_and_grads",
          bf16_master_weights_and_grads,
          {.text = "Keep no fp32 master weights: updates change the bf16 weights directly, and "
                   "gradients are accumulated in bf16 unless data_types.grad_accum_dtype is set."});
  f.field("bf16_optimizer_states",
          bf16_optimizer_states,
          {.text = "Store the moments in bf16 as well; requires bf16_master_weights_and_grads."});
}

void AmpOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "16-bit training as in Apex, with the nearest equivalent of opt_level."});
  f.choice("opt_level",
           opt_level,
           kAmpLevels,
           {.text = "O0: fp32. O1, O2: fp16 with fp32 master weights. O3: the same with a loss "
                    "scale of 1."});
  f.field("loss_scale",
          loss_scale,
          {.text = "Static loss scale, or \"dynamic\" for Apex's rule.",
           .choices = {"\"dynamic\"", "a number above 0"},
           .default_text = "dynamic; 1 with O3",
           .type = "string or number"});
}

void TorchAutocastOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Equivalent to bf16.enabled or fp16.enabled, depending on dtype: layers choose "
                   "their dtypes "
                   "themselves."});
  f.choice("dtype", dtype, kAutocastTypes, {.text = "Dtype of weights and activations."});
}

void DataTypesOptions::describe(config::Fields& f) {
  f.choice("grad_accum_dtype",
           grad_accum_dtype,
           kAccumulationTypes,
           {.text = "Dtype of the gradient accumulation buffer; bf16 is rounded after every "
                    "accumulation step.",
            .default_text = "fp32"});
}

void RecomputeOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Recompute forward passes in the backward pass instead of keeping their "
                   "activations; the same as granularity full.",
           .default_text = "false"});
  f.choice("granularity",
           granularity,
           kRecomputeKinds,
           {.text = "What is recomputed: nothing (none), whole blocks (full), attention cores "
                    "(selective), or as many blocks as the memory limit requires (auto).",
            .default_text = "none"});
  f.field("every_n",
          every_n,
          {.text = "With full: recompute one of every N blocks.",
           .unit = "blocks",
           .min = 1,
           .max = 1e6});
}

void FeedbackKeys::describe(config::Fields& f) {
  f.field(
      "err_beta",
      err_beta,
      {.text = "Weight of the older losses in the moving average that is kept; 0 keeps what the "
               "last gradient lost.",
       .min = 0,
       .max = 0.999,
       .default_text = "0.8 if reset_T is given, else no error feedback"});
  f.field("reset_T",
          reset_T,
          {.text = "What is kept becomes zero again after this number of steps.",
           .unit = "steps",
           .min = 1,
           .max = 1e15,
           .default_text = "1024 if err_beta is given, else no error feedback"});
}

void ZeroOptions::describe(config::Fields& f) {
  f.field("stage",
          stage,
          {.text = "ZeRO stage. 0: no sharding. 1: optimizer states are sharded over data-parallel "
                   "ranks. 2: also gradients. 3: also parameters.",
           .min = 0,
           .max = 3,
           .default_text = "1 with several ranks if the block is absent, else 0"});
  constexpr double kMost = 1e15;
  f.field(
      "reduce_bucket_size",
      reduce_bucket_size,
      {.text = "Maximum number of gradient elements in reduction at the same time: if two blocks "
               "of equal size do not fit, a block waits for the reduction of the previous one.",
       .unit = "elements",
       .min = 0,
       .max = kMost,
       .default_text = "two blocks"});
  f.field("stage3_prefetch_bucket_size",
          stage3_prefetch_bucket_size,
          {.text = "Maximum number of elements to prefetch; 0 disables prefetching.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "the next block"});
  f.field("stage3_param_persistence_threshold",
          stage3_param_persistence_threshold,
          {.text = "Parameters with fewer elements are not sharded.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "1e5"});
  f.field("stage3_model_persistence_threshold",
          stage3_model_persistence_threshold,
          {.text = "Maximum total number of elements of parameters that are not sharded.",
           .unit = "elements",
           .min = 0,
           .default_text = "no limit"});
  f.field("stage3_max_live_parameters",
          stage3_max_live_parameters,
          {.text = "Maximum number of gathered elements at any time, not counting one block.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "1e9"});
  f.field("stage3_max_reuse_distance",
          stage3_max_reuse_distance,
          {.text = "Weights stay gathered if they are used again within this number of elements.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "only weights that the next executed block uses"});
  f.field(
      "zero_hpz_partition_size",
      zero_hpz_partition_size,
      {.text =
           "In stage 3: size of the groups of neighbouring ranks (hpZ) within which the working "
           "weights are sharded and gathered. Must divide the number of ranks; 0 and 1 disable it; "
           "\"auto\" means the ranks of a host, if there are several hosts.",
       .unit = "ranks",
       .min = 0,
       .max = kMostRanks,
       .default_text = "all ranks"});
  f.field("mics_shard_size",
          mics_shard_size,
          {.text = "Like zero_hpz_partition_size, but -1 and 0 disable it, and with 1 every rank "
                   "keeps all weights, also where \"auto\" means a host with one rank.",
           .unit = "ranks",
           .min = -1,
           .max = kMostRanks,
           .default_text = "all ranks"});
  f.field(
      "zero_quantized_weights",
      zero_quantized_weights,
      {.text = "In stage 3: gathers move 8-bit integers with an fp32 scale for every 256 weights "
               "(ZeRO++'s qwZ), about half of the bytes of 16-bit weights. Every rank computes "
               "with the rounded weights; updates and checkpoints stay exact.",
       .default_text = "false"});
  f.field("zero_quantized_gradients",
          zero_quantized_gradients,
          {.text = "In stage 3: sends gradients as communication_data_type \"int8\" does (ZeRO++'s "
                   "qgZ, with 8 bits instead of 4).",
           .default_text = "false"});
  f.section(
      "zeropp_loco_param",
      zeropp_loco_param,
      "Error feedback (LoCo) for gradients that travel in 8 bits: each rank adds what the "
      "rounding of its gradients lost to its next gradients. Any of the keys turns it on. "
      "It needs communication_data_type \"int8\" or zero_quantized_gradients, and 2 bytes per "
      "trained parameter on every rank.");
  f.field("zero_quantized_nontrainable_weights",
          zero_quantized_nontrainable_weights,
          {.text = "Like zero_quantized_weights, for frozen weights alone, such as the base of an "
                   "adapter.",
           .default_text = "false"});
}

std::optional<std::int64_t> ZeroOptions::group() const {
  if (stage.value_or(0) != 3) return std::nullopt;
  if (mics_shard_size.value_or(-1) > 0) return mics_shard_size;
  if (zero_hpz_partition_size.value_or(1) > 1) return zero_hpz_partition_size;
  return std::nullopt;
}

mesh::Mesh Plan::mesh() const {
  const bool groups = zero_stage == 3 && shard_ranks > 1 && shard_ranks < data_ranks;
  const int shard = groups ? shard_ranks : data_ranks;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  const ParallelOptions& parallel = config.parallel;
  const TensorOptions::Grid tensor = parallel.tensor.grid();
  return mesh::Mesh({of(parallel.pipeline.size),
                     data_ranks / shard,
                     shard,
                     of(parallel.context.size),
                     of(tensor.depth),
                     of(tensor.row),
                     of(tensor.col)});
}

void TrainConfig::describe(config::Fields& f) {
  f.section("model", model, "The model and its size.");
  f.section("task", task, "What the model learns, and what a record of the data is.");
  f.section("adapter", adapter, "Training of small matrices added to frozen weights (LoRA).");
  f.section("distill", distill, "Learning from the predictions of another model, the teacher.");
  f.section("tokenizer", tokenizer, "Conversion of text to token ids.");
  f.section("data", data, "Training data, and how it is divided into samples.");
  const config::Doc batch = {.unit = "sequences", .min = 1, .max = kMostSequences};
  config::Doc doc = batch;
  doc.text = "Global batch size: number of sequences per optimizer update over all ranks.";
  doc.default_text = "micro x accumulation x ranks";
  f.field("train_batch_size", train_batch_size, doc);
  doc.text = "Micro-batch size: number of sequences per forward pass on one rank.";
  doc.default_text = "global batch / accumulation / ranks";
  doc.max = kMostMicro;
  f.field("train_micro_batch_size_per_gpu", train_micro_batch_size_per_gpu, doc);
  doc.text = "Number of forward and backward passes of a rank per update.";
  doc.unit = "passes";
  doc.default_text = "global batch / micro / ranks";
  f.field("gradient_accumulation_steps", gradient_accumulation_steps, doc);
  f.section("optimizer", optimizer, "The optimizer.");
  f.section("scheduler", scheduler, "The learning-rate schedule.");
  f.field("gradient_clipping",
          gradient_clipping,
          {.text = "Maximum global gradient norm; 0 disables clipping.", .min = 0});
  f.field("gradient_clip_value",
          gradient_clip_value,
          {.text = "Maximum absolute value of a gradient element, applied before the norm; 0 "
                   "disables clipping.",
           .min = 0});
  f.field(
      "rampup_batch_size",
      rampup_batch_size,
      {.text = "[start, increment, samples]: the global batch size begins at `start` and grows by "
               "`increment` at equal intervals over `samples` samples, up to train_batch_size.",
       .default_text = "none",
       .type = "list of integers"});
  f.section("fp16", fp16, "Training in fp16 with loss scaling.");
  f.section("bf16", bf16, "Training in bf16.");
  f.section("amp", amp, "16-bit training with the options of Apex.");
  f.section(
      "torch_autocast", torch_autocast, "16-bit training with the options of PyTorch's autocast.");
  f.section("data_types", data_types, "Dtypes of buffers.");
  f.section(
      "zero_optimization", zero_optimization, "ZeRO: what is sharded over data-parallel ranks.");
  f.section("parallel", parallel, "Model parallelism; the remaining ranks are data-parallel.");
  f.section("activation_checkpointing",
            activation_checkpointing,
            "Activation recomputation: less memory, more time, identical results.");
  f.choice("gradient_reduction",
           gradient_reduction,
           kReductions,
           {.text = "Reduce the gradients of each micro-batch (each), or only once before the "
                    "update (once)."});
  f.choice(
      "communication_data_type",
      communication_data_type,
      kGradientTypes,
      {.text = "Communication dtype of gradients: bf16 and fp16 round the gradient of each "
               "micro-batch, or with gradient_reduction \"once\" the accumulated gradient that "
               "a rank sends. int8 rounds it to 8-bit integers with an fp32 scale for every 256 "
               "values, a quarter of the bytes of fp32. The dtype of the accumulation buffer does "
               "not change."});
  f.field(
      "sparse_gradients",
      sparse_gradients,
      {.text = "Communicate only the rows of the token embedding's gradient that a micro-batch "
               "touched, if they are at most a quarter of the table; the results are identical. "
               "This is always on for a table that is tied to the head on the same stage."});
  f.section(
      "trainer", trainer, "Length of the training, seed, and handling of numerical problems.");
  f.field(
      "steps_per_print",
      steps_per_print,
      {.text = "Print a line every N steps, with the mean speed and times of the steps since the "
               "last line; the first and the last step are always printed.",
       .unit = "steps",
       .min = 1,
       .max = kMostSteps});
  f.section("eval", eval, "Evaluation during training.");
  f.section("checkpoint", checkpoint, "When checkpoints are written and which are kept.");
  f.section("run", run, "The run folder, the threads, and what happens when ranks are lost.");
  f.section("elasticity",
            elasticity,
            "DeepSpeed's choice of a global batch that many numbers of ranks can share.");
  f.field(
      "wall_clock_breakdown",
      wall_clock_breakdown,
      {.text =
           "Print the milliseconds spent on data, forward, backward, reduction and optimizer."});
  f.field("memory_breakdown", memory_breakdown, {.text = "Print the memory by category."});
  monitors.describe(f);
}

}  // namespace tessera::planner
