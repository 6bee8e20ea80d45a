// SPDX-License-Identifier: Apache-2.0
// Simulates a whole step on the lists of actions that the executor runs: the computation of every
// stage, its transfers, and the update. Pure arithmetic on times that the caller gives.
#pragma once

#include <functional>
#include <vector>

#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::predict {

/// Seconds of a block for one micro-batch on a rank of its stage.
struct BlockTimes {
  /// On the compute stream, with the transfers of the layers, for which computation waits. A
  /// backward pass in one piece takes inputs + weights.
  double forward = 0, inputs = 0, weights = 0;
  /// On the rank's link: the gather of sharded weights before each pass that reads them, and the
  /// reduction of gradients after a backward pass.
  double gather = 0, reduce = 0;
  /// On the link: the gather of updated weights, which overlaps with the next forward pass.
  double gather_updated = 0;
};

struct StepTimes {
  std::vector<BlockTimes> blocks;  ///< of the model
  /// Seconds of a message between stages: the flow with which `part` begins, or its gradient.
  std::function<double(int from, int to, int part, bool gradient)> message;
  std::vector<double> update;  ///< for each stage
  /// True if gradients are reduced after the last micro-batch alone.
  bool reduce_once = false;
  /// Number of blocks before its use at which the gather of a block's weights is begun.
  int prefetch = 1;
  double overlap_tax = 0;  ///< see DescribedMachine
};

/// The time of a stage, in seconds; the parts add up to StepSimulation::end.
struct StageTime {
  double busy = 0;       ///< its blocks
  double weights = 0;    ///< waits for gathers of weights, with the delay by transfers
  double idle = 0;       ///< waits for other stages and their messages
  double gradients = 0;  ///< waits for reductions that are not finished with the last block
  double update = 0;     ///< with waits for the updates of other stages
  double updated = 0;    ///< waits of the next forward pass for updated weights
};
struct StepSimulation {
  std::vector<StageTime> stages;
  double end = 0;
};

/// `layout` has the bounds of the parts. Transfers of a rank follow each other on its link, so
/// that a gather waits for the reduction of the block before; a
/// message occupies the link between its stages, and a receive waits for its end. The last block's
/// weights stay between forward and backward, and the first one's between micro-batches, as in
/// parallel/gather_order.h. The update begins when all stages have all gradients. Steps of many
/// micro-batches are periodic: more than six rounds are extrapolated from two shorter steps.
/// Cost: about 50 ns for each action and block.
StepSimulation simulate_step(const parallel::PipelineSchedule& schedule,
                             const parallel::StageLayout& layout,
                             int micros,
                             const StepTimes& times);

}  // namespace tessera::predict
