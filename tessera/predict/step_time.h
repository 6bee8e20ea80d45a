// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step of a plan on a described machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/ops/op_log.h"
#include "tessera/parallel/activation_probe.h"
#include "tessera/predict/described_machine.h"
#include "tessera/predict/links.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::predict {

/// Seconds of all calls of an operation: its arithmetic or its memory traffic, whichever takes
/// longer, at the shares of the peaks that calls of its size reach, and the overhead of each call.
/// Throws Error{Config} that names the rate if the machine has none for a product's dtype.
double seconds(const ops::OpRow& row, const DescribedMachine& machine);

/// The time of a step in seconds, on the stage with most work; the parts add up to `seconds`.
struct StepTime {
  double seconds = 0;
  double low = 0, high = 0;  ///< the interval by DescribedMachine::uncertainty

  double products = 0, attention = 0;             ///< operations, with those of recomputation
  double memory = 0;                              ///< norms, activations, dropout, losses, lookups
  double layers_in_host = 0, layers_between = 0;  ///< transfers of tensor and context parallelism
  double weights = 0;    ///< waits for gathers of sharded weights, also from a disk
  double bubble = 0;     ///< waits for other stages, if messages took no time
  double messages = 0;   ///< the rest of the waits for other stages
  double gradients = 0;  ///< waits for reductions
  double update = 0;
  double disk = 0;      ///< of the update: what rests on a disk
  double updated = 0;   ///< waits for the gather of updated weights
  double overhead = 0;  ///< DescribedMachine::step_overhead_s

  std::int64_t tokens = 0;  ///< of all ranks
  double model_flops = 0;   ///< of all ranks, without recomputation
  double hardware_flops = 0;
  /// Shares of the peak of all ranks in the working dtype: of the model's FLOPs, and of all.
  double mfu = 0, hfu = 0;
  /// Bytes that a rank sends in a step, by purpose: "layers", "weights", "gradients", "messages".
  std::map<std::string, Transfer> traffic;

  [[nodiscard]] double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

/// Elements of a block's parameters as the first rank of a stage holds them.
struct BlockElements {
  std::int64_t sharded = 0;  ///< gathered before each use in ZeRO stage 3
  std::int64_t trained = 0, all = 0;
};
/// The elements of a block, and those of them that are experts: fewer ranks have the same experts.
struct BlockParts : BlockElements {
  BlockElements experts;
  [[nodiscard]] BlockElements others() const {
    return {sharded - experts.sharded, trained - experts.trained, all - experts.all};
  }
};

/// The work and the parameters of blocks for the layouts of one model that were asked so far, so
/// that a search counts each only once. Can be used from any thread.
class WorkCache {
 public:
  using Work = std::shared_ptr<const std::vector<parallel::BlockWork>>;
  using Elements = std::shared_ptr<const std::vector<BlockParts>>;
  Work work(const planner::Plan& plan);
  Elements elements(const planner::Plan& plan);
  /// The fp32 numbers that the optimizer keeps for an element of most parameters.
  int states(const planner::Plan& plan);

 private:
  std::mutex mutex_;
  std::map<std::string, Work> works_;
  std::map<std::string, Elements> elements_;
  int states_ = -1;
};

/// `plan` needs the tensors of a sample, but no open data. Throws the errors of blocks that do not
/// run on meta tensors, and those of seconds() and transfer(). Cost: about 3 ms for each kind of
/// block and layout, and the simulation of the step; nothing is run or started.
StepTime predict_step(const planner::Plan& plan, const DescribedMachine& machine);
/// `tells_messages`: messages between stages are distinguished from the bubble, which takes a
/// second simulation.
StepTime predict_step(const planner::Plan& plan,
                      const DescribedMachine& machine,
                      WorkCache& cache,
                      bool tells_messages = true);

/// FLOPs of a token, forward and backward without recomputation: 6 for each parameter, except for a
/// table that is only looked up, and 12 x layers x hidden x length for attention over all pairs.
/// Source: Chowdhery et al. 2022, appendix B.
double flops_of_token(const planner::Plan& plan);

/// The length and cost of a training.
struct Bill {
  double steps = 0, tokens = 0, days = 0;
  double rank_hours = 0, price = 0;  ///< price: 0 if the price of an hour is unknown
};
/// `steps`: of the training.
Bill bill_of(const StepTime& time, double steps, int ranks, double price_per_hour);

}  // namespace tessera::predict
