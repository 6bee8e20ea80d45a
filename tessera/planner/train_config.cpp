// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/train_config.h"

#include <array>

#include "tessera/base/control_page.h"
#include "tessera/comm/registry.h"
#include "tessera/config/document.h"
#include "tessera/planner/config_paths.h"

namespace tessera::planner {
namespace {

// Larger sizes are typing mistakes; products of three of them still fit into 64 bits.
constexpr double kMostSteps = 1e12;
constexpr double kMostSequences = 1e9;
constexpr double kMostMicro = 1e5;

using config::Named;
constexpr auto kReductions = std::to_array<Named<parallel::Reduction>>(
    {{parallel::Reduction::Each, "each"}, {parallel::Reduction::Once, "once"}});

}  // namespace

void RunOptions::describe(config::Fields& f) {
  f.field("dir", dir, {.text = "The run folder.", .default_text = "runs/<name of the file>"});
  f.field(
      "device",
      device,
      {.text = "The device of the ranks: cpu; cuda, a GPU of NVIDIA for each rank of a host; "
               "cuda:0,2, these GPUs; auto: the GPUs if the host has any that can be used, else "
               "the CPU. What is asked for and not there is refused."});
  f.choice(
      "attention_kernel",
      attention_kernel,
      kAttentionKernels,
      {.text = "The kernel of attention on a GPU: deterministic has the same bits in every run; "
               "fastest measures the kernels of flash attention and cuDNN for each shape, and "
               "may give other bits in the next run. A CPU has one kernel."});
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
  f.field("transport",
          transport,
          {.text = "The engine that moves data between hosts: gloo; mpi, if mpirun has started "
                   "the ranks; auto is gloo. Within a host data moves through shared memory. The "
                   "results are the same with each.",
           .choices = comm::link_choices()});
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

void TrainConfig::describe(config::Fields& f) {
  f.section("model", model, "The model and its size.");
  f.section("task", task, "What the model learns, and what a record of the data is.");
  f.section("adapter", adapter, "Training of small matrices added to frozen weights (LoRA).");
  f.section("distill", distill, "Learning from the predictions of another model, the teacher.");
  f.section("qat", qat, "Training of a model for arithmetic in few bits.");
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
               "`increment` at equal intervals over `samples` samples, up to train_batch_size. Or "
               "steps: [[0, 4], [60, 8]] is a batch of 4, and of 8 from 60 samples on.",
       .default_text = "none",
       .type = "list of values"});
  f.section("fp16", fp16, "Training in fp16 with loss scaling.");
  f.section("bf16", bf16, "Training in bf16.");
  f.section("amp", amp, "16-bit training with the options of Apex.");
  f.section(
      "torch_autocast", torch_autocast, "16-bit training with the options of PyTorch's autocast.");
  f.section("data_types", data_types, "Dtypes of buffers.");
  f.section(
      "zero_optimization", zero_optimization, "ZeRO: what is sharded over data-parallel ranks.");
  f.section(
      "aio",
      aio,
      "How the disks of offload_optimizer, offload_param and activation_checkpointing.offload "
      "are read and written; \"tessera bench io\" measures which values are fast.");
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
  f.field("tiling",
          tiling,
          {.text = "Weights of which layers compute with one tile of rows at a time: an object of "
                   "names (\"lm_head\", \"*.mlp.*\") with the number of tiles, as 8 or as "
                   "[1, 8]; or a number of elements, above which every weight of a layer is "
                   "divided. With offload_param on a disk one tile is in memory at a time. See "
                   "docs/offload.md.",
           .default_text = "none",
           .type = "object or number"});
  f.section(
      "trainer", trainer, "Length of the training, seed, and handling of numerical problems.");
  f.field(
      "steps_per_print",
      printing.steps_per_print,
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
      printing.wall_clock_breakdown,
      {.text =
           "Print the milliseconds spent on data, forward, backward, reduction and optimizer."});
  f.field("memory_breakdown", printing.memory_breakdown, {.text = "Print the memory by category."});
  sections.describe(f);
}

const std::vector<std::string>& config_paths() {
  static const auto paths = config::paths_of(config::document(TrainConfig()));
  return paths;
}

}  // namespace tessera::planner
