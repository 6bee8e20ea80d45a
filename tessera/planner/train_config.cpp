// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/train_config.h"

#include "tessera/base/control_page.h"

namespace tessera::planner {
namespace {

// Sizes beyond these are typing mistakes, and products of three of them still fit 64 bits.
constexpr double kMostSteps = 1e12;
constexpr double kMostSequences = 1e9;
constexpr double kMostMicro = 1e5;

}  // namespace

void TrainerOptions::describe(config::Fields& f) {
  f.field("max_steps",
          max_steps,
          {.text = "Stop after so many optimizer updates.",
           .unit = "steps",
           .min = 1,
           .max = kMostSteps,
           .default_text = "as many as trainer.epochs say"});
  f.field("epochs",
          epochs,
          {.text = "Stop after so many passes over the training data; with max_steps, whichever "
                   "comes first.",
           .unit = "epochs",
           .min = 0,
           .max = kMostSteps,
           .above_min = true,
           .default_text = "1, if max_steps is not given either"});
  f.field(
      "seed",
      seed,
      {.text = "Everything random is a function of it: first weights, order of samples, dropout.",
       .min = 0});
  f.field("on_nonfinite",
          on_nonfinite,
          {.text = "What to do when a loss or gradient is not finite: stop, or skip the update.",
           .choices = {"stop", "skip"}});
  f.field("clip_after_warmup",
          clip_after_warmup,
          {.text = "Clip gradients only once the schedule's warm-up is over."});
}

void EvalOptions::describe(config::Fields& f) {
  f.field("every",
          every,
          {.text = "Evaluate every so many steps and at the end; 0 is never.",
           .unit = "steps",
           .min = 0});
  f.field(
      "batches",
      batches,
      {.text = "How many validation batches an evaluation takes.", .unit = "batches", .min = 1});
  f.field("micro_batch",
          micro_batch,
          {.text = "Sequences of an evaluation batch; never follows the layout.",
           .unit = "sequences",
           .min = 1,
           .max = kMostMicro});
  f.field(
      "prompt",
      prompt,
      {.text = "Show a continuation of this text at every evaluation.", .default_text = "none"});
  f.field("max_new_tokens",
          max_new_tokens,
          {.text = "Length of that continuation.", .unit = "tokens", .min = 1, .max = 1e6});
  f.field("top_k",
          top_k,
          {.text = "Draw among the so many likeliest tokens; 0 is all, 1 is greedy.", .min = 0});
  f.field("temperature",
          temperature,
          {.text = "Temperature of the drawing; 0 is greedy.", .min = 0, .max = 100});
}

void CheckpointOptions::describe(config::Fields& f) {
  f.field("every",
          every,
          {.text = "Write a checkpoint every so many steps; 0 is never.",
           .unit = "steps",
           .min = 0,
           .default_text = "as every_minutes says"});
  f.field("every_minutes",
          every_minutes,
          {.text = "Write a checkpoint once so many minutes have passed since the last one, beside "
                   "those of every; 0 is never.",
           .unit = "minutes",
           .min = 0,
           .max = 1e6,
           .default_text = "15 where every is not given, else 0"});
  f.field("keep",
          keep,
          {.text = "How many of the newest checkpoints stay.",
           .unit = "checkpoints",
           .min = 1,
           .max = 1e6});
  f.field("best",
          best,
          {.text = "Write a checkpoint whenever an evaluation has the lowest loss so far, and let "
                   "it stay beside the newest ones."});
  f.field("final", final, {.text = "Write a checkpoint at the end."});
  f.field("save_on_signal",
          save_on_signal,
          {.text = "Write a checkpoint before a signal (SIGTERM, Ctrl-C) ends the training."});
  f.field("async",
          async,
          {.text = "Write checkpoints beside the training, and copy what is not written when the "
                   "weights change next; the one at the end and at a signal is waited for."});
  f.field("load_universal",
          load_universal,
          {.text = "Of a folder of DeepSpeed that --resume names, take the universal checkpoint "
                   "(latest_universal), and refuse one without it."});
  f.field(
      "use_node_local_storage",
      use_node_local_storage,
      {.text = "Each host saves the pieces of its ranks under its own run.dir, as a part of the "
               "checkpoint, for hosts that share no disk; tessera checkpoint merge joins the "
               "parts. The part of a lone host is the whole."});
}

void RunOptions::describe(config::Fields& f) {
  f.field("dir", dir, {.text = "The run folder.", .default_text = "runs/<name of the file>"});
  f.field("threads_per_rank",
          threads_per_rank,
          {.text = "Threads of each rank's kernels.",
           .unit = "threads",
           .min = 1,
           .max = 1024,
           .default_text = "cores / local ranks"});
  f.field(
      "derived",
      derived,
      {.text = "Written into the run folder's config.json: those of its keys that followed from "
               "the number of ranks. Training that file derives them anew.",
       .default_text = "none"});
}

void OptimizerOptions::describe(config::Fields& f) {
  f.field("type", type, {.text = "Name of the optimizer, in any case."});
  f.field("params",
          params,
          {.text = "Its parameters; of AdamW: lr, betas, eps, weight_decay.",
           .default_text = "lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0.01"});
  f.section("weight_decay_schedule",
            weight_decay_schedule,
            "How the weight decay moves from start to end.");
  f.field(
      "groups",
      groups,
      {.text = "A list of {pattern, lr, weight_decay, frozen}: parameters whose names the regular "
               "expression finds, with a rate, a decay or no training of their own; the first "
               "that fits counts.",
       .default_text = "none",
       .type = "list of objects"});
  f.field("decay_all",
          decay_all,
          {.text = "Weight decay on all parameters, not only on those of two or more dimensions."});
}

void SchedulerOptions::describe(config::Fields& f) {
  f.field("type",
          type,
          {.text = "Name of the learning-rate schedule, in any case.", .default_text = "constant"});
  f.field("params",
          params,
          {.text = "Its parameters, such as warmup_num_steps.", .default_text = "{}"});
}

void Bf16Options::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Weights and activations in bf16; masters, moments and sums stay fp32."});
  f.field("bf16_master_weights_and_grads",
          bf16_master_weights_and_grads,
          {.text = "No fp32 masters: the bf16 weights are all there is, and gradients are summed "
                   "in bf16 unless data_types.grad_accum_dtype says otherwise."});
  f.field("bf16_optimizer_states",
          bf16_optimizer_states,
          {.text = "Moments in bf16 too; needs bf16_master_weights_and_grads."});
}

void AmpOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Apex's 16 bits: what opt_level says, as near as it comes here."});
  f.field("opt_level",
          opt_level,
          {.text = "O0: fp32. O1, O2: fp16 with fp32 masters. O3: the same with a loss scale of 1.",
           .choices = {"O0", "O1", "O2", "O3"}});
  f.field("loss_scale",
          loss_scale,
          {.text = "A fixed scale, or \"dynamic\", which follows Apex's rule.",
           .choices = {"\"dynamic\"", "a number above 0"},
           .default_text = "dynamic; 1 with O3",
           .type = "string or number"});
}

void TorchAutocastOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "The same as bf16.enabled or fp16.enabled, by dtype: layers choose their types "
                   "themselves."});
  f.field("dtype",
          dtype,
          {.text = "Type of weights and activations.", .choices = {"bfloat16", "float16"}});
}

void DataTypesOptions::describe(config::Fields& f) {
  f.field("grad_accum_dtype",
          grad_accum_dtype,
          {.text = "Type of the gradient sums; bf16 is rounded after every accumulation step.",
           .choices = {"fp32", "bf16"},
           .default_text = "fp32"});
}

void RecomputeOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Run forwards again in the backward pass instead of keeping what they made; the "
                   "same as granularity full.",
           .default_text = "false"});
  f.field(
      "granularity",
      granularity,
      {.text = "What is run again: nothing, whole blocks, attention cores, or as many blocks as "
               "memory needs.",
       .choices = {"none", "full", "selective", "auto"},
       .default_text = "none"});
  f.field("every_n",
          every_n,
          {.text = "With full: every so many blocks one is run again.",
           .unit = "blocks",
           .min = 1,
           .max = 1e6});
}

void ZeroOptions::describe(config::Fields& f) {
  f.field("stage",
          stage,
          {.text = "0: every rank updates everything. 1: the update is sharded over the ranks. 2: "
                   "and gradients. 3: and parameters.",
           .min = 0,
           .max = 3,
           .default_text = "1 with several ranks if the block is absent, else 0"});
  constexpr double kMost = 1e15;
  f.field(
      "reduce_bucket_size",
      reduce_bucket_size,
      {.text = "Room for gradients that are being reduced: where two blocks of a size do not fit "
               "into it, a block waits for the reduction of the one before.",
       .unit = "elements",
       .min = 0,
       .max = kMost,
       .default_text = "two blocks"});
  f.field("stage3_prefetch_bucket_size",
          stage3_prefetch_bucket_size,
          {.text = "Weights gathered ahead of their use at most; 0 gathers nothing ahead.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "the next block"});
  f.field("stage3_param_persistence_threshold",
          stage3_param_persistence_threshold,
          {.text = "Parameters with fewer elements are never sharded.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "1e5"});
  f.field("stage3_model_persistence_threshold",
          stage3_model_persistence_threshold,
          {.text = "Parameters that are not sharded have at most so many elements together.",
           .unit = "elements",
           .min = 0,
           .default_text = "no limit"});
  f.field("stage3_max_live_parameters",
          stage3_max_live_parameters,
          {.text = "Gathered weights at any time at most, but for one block.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "1e9"});
  f.field("stage3_max_reuse_distance",
          stage3_max_reuse_distance,
          {.text = "Weights that are used again within so many elements stay gathered.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "only those that the very next block run uses"});
  f.field("zero_hpz_partition_size",
          zero_hpz_partition_size,
          {.text = "In stage 3: so many neighbouring ranks hold all working weights between them, "
                   "and gathers stay inside of such a group. Divides the ranks; 0 and 1 are off.",
           .unit = "ranks",
           .min = 0,
           .max = kMostRanks,
           .default_text = "all ranks"});
  f.field("mics_shard_size",
          mics_shard_size,
          {.text = "Another name of zero_hpz_partition_size, with other values for off: -1 and 0. "
                   "With 1 every rank keeps all weights.",
           .unit = "ranks",
           .min = -1,
           .max = kMostRanks,
           .default_text = "all ranks"});
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
  f.section("tokenizer", tokenizer, "How text becomes token ids.");
  f.section("data", data, "What is trained on, and how it is cut into samples.");
  const config::Doc batch = {.unit = "sequences", .min = 1, .max = kMostSequences};
  config::Doc doc = batch;
  doc.text = "Sequences of one optimizer update, over all ranks.";
  doc.default_text = "micro x accumulation x ranks";
  f.field("train_batch_size", train_batch_size, doc);
  doc.text = "Sequences of one forward pass on one rank.";
  doc.default_text = "global batch / accumulation / ranks";
  doc.max = kMostMicro;
  f.field("train_micro_batch_size_per_gpu", train_micro_batch_size_per_gpu, doc);
  doc.text = "Forward and backward passes of a rank before one update.";
  doc.unit = "passes";
  doc.default_text = "global batch / micro / ranks";
  f.field("gradient_accumulation_steps", gradient_accumulation_steps, doc);
  f.section("optimizer", optimizer, "How weights are updated.");
  f.section("scheduler", scheduler, "How the learning rate moves.");
  f.field("gradient_clipping",
          gradient_clipping,
          {.text = "Largest global gradient norm; 0 is off.", .min = 0});
  f.field("gradient_clip_value",
          gradient_clip_value,
          {.text = "Largest absolute value of a gradient's element, before the norm; 0 is off.",
           .min = 0});
  f.field("rampup_batch_size",
          rampup_batch_size,
          {.text = "[start, increment, samples]: the global batch begins at `start` and grows by "
                   "`increment` in equal parts of so many samples, up to train_batch_size.",
           .default_text = "none",
           .type = "list of integers"});
  f.section("fp16", fp16, "16-bit training with a scaled loss.");
  f.section("bf16", bf16, "16-bit training.");
  f.section("amp", amp, "16-bit training in Apex's words.");
  f.section("torch_autocast", torch_autocast, "16-bit training in PyTorch's words.");
  f.section("data_types", data_types, "Types of what training keeps.");
  f.section(
      "zero_optimization", zero_optimization, "What is sharded over the data-parallel ranks.");
  f.section("parallel",
            parallel,
            "How the model itself is spread over ranks; data-parallel is what is left.");
  f.section("activation_checkpointing",
            activation_checkpointing,
            "Recomputation: less memory for more time, the same bits.");
  f.field("gradient_reduction",
          gradient_reduction,
          {.text = "Fold gradients of each micro-batch in rank order, or once before the update.",
           .choices = {"each", "once"}});
  f.field(
      "communication_data_type",
      communication_data_type,
      {.text = "What gradients travel as: bf16 and fp16 round the gradient of each micro-batch, "
               "or with gradient_reduction \"once\" what a rank sends. Sums stay as they are.",
       .choices = {"fp32", "bf16", "fp16"}});
  f.field("sparse_gradients",
          sparse_gradients,
          {.text = "Between ranks the gradient of the token embedding travels as the rows that a "
                   "micro-batch touched, where they are at most a quarter of it; the same bits. Of "
                   "a table that the head shares, on one stage, it does so by itself."});
  f.section("trainer", trainer, "How long, from which seed.");
  f.field("steps_per_print",
          steps_per_print,
          {.text = "A line every so many steps; the first and the last are always printed.",
           .unit = "steps",
           .min = 1,
           .max = kMostSteps});
  f.section("eval", eval, "Evaluation during training.");
  f.section("checkpoint", checkpoint, "What is kept of a run.");
  f.section("run", run, "Where and with what.");
  f.field("wall_clock_breakdown",
          wall_clock_breakdown,
          {.text = "Show the milliseconds of data, forward, backward, reduce and optimizer."});
  f.field("memory_breakdown", memory_breakdown, {.text = "Show the memory by kind."});
}

}  // namespace tessera::planner
