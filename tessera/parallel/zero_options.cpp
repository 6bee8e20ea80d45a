// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/zero_options.h"

#include <algorithm>
#include <array>

#include "tessera/base/control_page.h"
#include "tessera/config/choices.h"

namespace tessera::parallel {

using config::describe_disk;

namespace {

constexpr auto kRecomputeKinds =
    std::to_array<config::Named<RecomputeKind>>({{RecomputeKind::None, "none"},
                                                 {RecomputeKind::Full, "full"},
                                                 {RecomputeKind::Selective, "selective"},
                                                 {RecomputeKind::Auto, "auto"}});

}  // namespace

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
  f.field(
      "partition_activations",
      partition_activations,
      {.text = "With full: each tensor-parallel rank keeps one part of a block's input, and the "
               "ranks gather it before the block runs again. parallel.sequence divides more, "
               "and needs no further gather."});
  f.field("cpu_checkpointing",
          cpu_checkpointing,
          {.text = "Keep the inputs of recomputed blocks in the memory of the host, where they are "
                   "if ranks compute on the CPU; the same as offload.device cpu."});
  f.section(
      "offload",
      offload,
      "With full: lets the inputs of recomputed blocks rest on a disk, or in the memory of a "
      "GPU's host, until the backward pass. No bit of a training changes. See docs/offload.md.");
}

void ActivationOffloadKeys::describe(config::Fields& f) {
  describe_disk(f, device, nvme_path, "Where the inputs of recomputed blocks rest");
  f.field("buffer_count",
          buffer_count,
          {.text = "With nvme, and with cpu on a GPU: maximum number of tensors in memory at a "
                   "time, to be read or written; more than 2 are written further behind.",
           .min = 1,
           .max = 1e6,
           .default_text = "2"});
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

void OffloadKeys::describe(config::Fields& f) {
  describe_disk(f, device, nvme_path, "Where masters and states rest between updates");
  f.field("buffer_count",
          buffer_count,
          {.text = "With nvme: maximum number of groups of sub_group_size elements in memory at a "
                   "time; more than 3 are read further ahead.",
           .min = 1,
           .max = 1e9,
           .default_text = "3: one is read, one updated, one written"});
  f.field("pipeline_read",
          pipeline_read,
          {.text = "With nvme: read the next group while one is updated.", .default_text = "true"});
  f.field("pipeline_write",
          pipeline_write,
          {.text = "With nvme: write a group while the next is updated.", .default_text = "true"});
  f.field("ratio",
          ratio,
          {.text = "With nvme, in stage 3: the share of the masters and states that rests on the "
                   "disk; the others stay in memory.",
           .min = 0,
           .max = 1,
           .default_text = "1"});
  f.field("gradients",
          gradients,
          {.text = "With nvme: a rank's part of the accumulated gradients rests on the disk too, "
                   "from the backward pass of its block to the update. As many blocks' parts as "
                   "buffer_count, but at most 3, are in memory at a time.",
           .default_text = "false"});
  f.field("super_offload",
          super_offload,
          {.text = "On a GPU, with cpu: the host updates a part of the model as soon as its "
                   "gradient arrives, while the backward pass goes on, as if the gradient were "
                   "finite and not clipped; otherwise it makes the update again, so that all bits "
                   "are the same. Takes the memory of masters and states a second time. For "
                   "optimizers that update every element independently."});
}

int OffloadKeys::buffers() const {
  const int overlapped = static_cast<int>(pipeline_read.value_or(true)) +
                         static_cast<int>(pipeline_write.value_or(true));
  const auto count = static_cast<int>(buffer_count.value_or(3));
  return overlapped == 2 ? count : std::min(count, 1 + overlapped);
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
  f.section("offload_optimizer",
            offload_optimizer,
            "Lets fp32 masters and states of the optimizer rest on a disk between updates. No bit "
            "of a training changes. See docs/offload.md.");
  f.section("offload_param",
            offload_param,
            "In stage 3: lets working weights rest on a disk while no block uses them. No bit of a "
            "training changes. See docs/offload.md.");
  f.field("sub_group_size",
          sub_group_size,
          {.text = "With offload_optimizer.device nvme: maximum number of elements that are read, "
                   "updated and written at once; a group never reaches over a flat buffer, which "
                   "is a block of the model. Below 1024: 1024.",
           .unit = "elements",
           .min = 0,
           .max = kMost,
           .default_text = "16777216"});
}

std::optional<std::int64_t> ZeroOptions::group() const {
  if (stage.value_or(0) != 3) return std::nullopt;
  if (mics_shard_size.value_or(-1) > 0) return mics_shard_size;
  if (zero_hpz_partition_size.value_or(1) > 1) return zero_hpz_partition_size;
  return std::nullopt;
}

}  // namespace tessera::parallel
