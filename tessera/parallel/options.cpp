// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/options.h"

#include <numeric>

#include "tessera/base/control_page.h"
#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {

void PipelineOptions::describe(config::Fields& f) {
  f.field("size",
          size,
          {.text = "Number of pipeline stages, each with a part of the model's blocks. "
                   "\"pipeline\": 2 is a short form.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.field("schedule",
          schedule,
          {.text = "Pipeline schedule: the order of forward and backward passes of a stage.",
           .choices = pipeline_schedules().names(),
           .default_text = "1f1b; interleaved if chunks is above 1"});
  f.field("chunks",
          chunks,
          {.text = "Number of model chunks per stage: two or more with the schedule interleaved, "
                   "two with zb-v.",
           .min = 1,
           .max = 1024,
           .default_text = "1; 2 with interleaved and zb-v"});
  f.field("partition",
          partition,
          {.text = "Assignment of blocks to stages: uniform (a remainder goes to the first "
                   "stages), uniform-last (a remainder goes to the last stages of every chunk), "
                   "parameters (equal parameter counts), balanced (equal predicted work), profile "
                   "(by time and memory that the first rank measures at the start), type:REGEX "
                   "(equal numbers of blocks whose name matches), or a list of bounds.",
           .default_text = "balanced",
           .type = "string or list of integers"});
  f.field(
      "scatter_gather",
      scatter_gather,
      {.text =
           "If tensor-parallel ranks hold the same activations, each sends only its part to the "
           "next stage, which gathers the parts. Useful if communication between stages is slow."});
}

void TensorOptions::describe(config::Fields& f) {
  f.choice("mode",
           mode,
           kTensorLayouts,
           {.text = "How weights and activations are sharded.", .default_text = "1d"});
  f.field("size",
          size,
          {.text = "Number of ranks over which every layer is sharded.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.field("depth",
          depth,
          {.text = "Depth of mode 2.5d: the number of grids; size = depth x side x side.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks,
           .default_text = "1"});
}

TensorOptions::Grid TensorOptions::grid() const {
  const TensorLayout kind = layout();
  if (kind == TensorLayout::OneD) return {1, share_head, size / share_head};
  const std::int64_t layers = kind == TensorLayout::TwoAndAHalfD ? depth.value_or(1) : 1;
  const auto of_side = [&](std::int64_t side) {
    return Grid{kind == TensorLayout::ThreeD ? side : layers, side, side};
  };
  std::int64_t side = 1;
  while (of_side(side + 1).size() <= size)
    ++side;
  return of_side(side);
}

void ContextOptions::describe(config::Fields& f) {
  f.field("size",
          size,
          {.text = "Number of ranks over which the tokens of every sequence are sharded. "
                   "\"context\": 2 is a short form.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.choice("mode",
           mode,
           kContextModes,
           {.text = "How attention accesses tokens of other ranks: ring sends keys and values "
                    "around a ring; ulysses exchanges tokens for heads by all-to-all."});
}

std::int64_t ParallelOptions::token_unit() const {
  // In a ring every rank has two chunks.
  const std::int64_t chunks =
      context.size == 1 ? 1 : (context.mode == nn::ContextMode::Ring ? 2 : 1) * context.size;
  return std::lcm(chunks, sequence ? context.size * tensor.size : 1);
}

void ParallelOptions::describe(config::Fields& f) {
  f.section("pipeline",
            pipeline,
            "Pipeline parallelism: the model's blocks are distributed over stages.");
  f.section("tensor", tensor, "Tensor parallelism: every layer is sharded over ranks.");
  f.field("sequence",
          sequence,
          {.text = "Sequence parallelism, with tensor: norms and dropouts are sharded over tokens, "
                   "and layers use all-gather and reduce-scatter instead of all-reduce."});
  f.section("context",
            context,
            "Context parallelism: the tokens of long sequences are sharded over ranks.");
  f.field(
      "expert",
      expert,
      {.text = "Number of ranks among which the experts of every sparse layer are divided; they "
               "exchange tokens. It is a divisor of the data-parallel ranks, or such a divisor "
               "times context.size, times tensor.size (mode 1d, with expert_tensor 1), or times "
               "both; the first of these that fits is used. The number of experts need not be a "
               "multiple of it.",
       .unit = "ranks",
       .min = 1,
       .max = kMostRanks});
  f.field("expert_tensor",
          expert_tensor,
          {.text = "Number of ranks that split the matrices of each expert, as tensor splits those "
                   "of other layers: 1 or tensor.size. With 1, every rank of tensor computes whole "
                   "experts.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
}

}  // namespace tessera::parallel
