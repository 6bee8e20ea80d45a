// SPDX-License-Identifier: Apache-2.0
// Parameters, multiply-accumulates, time and FLOPS of every block in one step, as DeepSpeed's flops
// profiler reports them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/trace.h"

namespace tessera::report {

/// Time and arithmetic of some operations.
struct Work {
  std::int64_t calls = 0;
  double seconds = 0, flops = 0;
  [[nodiscard]] double macs() const { return flops / 2; }  ///< two operations each
  void add(const Work& other);
};

/// The work of one block on this rank, over all micro-batches of the step.
struct BlockWork {
  std::string name;
  std::int64_t parameters = 0;
  Work forward, backward;
  std::map<std::string, Work> operations;  ///< of both passes
};

/// Attributes the operations that its thread reports to the blocks in which they ran. Only matrix
/// products are counted: norms and activations have few multiply-accumulates. An operation is
/// reported before the block to which it belongs.
class WorkCounter final : public trace::Listener {
 public:
  void hear(const trace::Span& span) override;
  /// In the order of the blocks' first runs; parameters are not known here.
  [[nodiscard]] const std::vector<BlockWork>& blocks() const { return blocks_; }
  /// Operations outside of blocks, such as the update.
  [[nodiscard]] Work outside() const;

 private:
  BlockWork& block(const std::string& name);
  struct Pending {
    std::string name;
    double begin;
    Work work;
  };
  std::vector<Pending> pending_;
  std::vector<BlockWork> blocks_;
};

/// Facts in the report besides the blocks.
struct StepFacts {
  std::int64_t step = 0;
  int ranks = 1, data_ranks = 1;
  std::int64_t micro_batch = 0, batch = 0, sequence_length = 0;
  std::int64_t parameters = 0;  ///< of the whole model
  double seconds = 0;           ///< of the step
  double update_s = 0;
};
/// `depth`: 0 for the model, 1 for its blocks, 2 and -1 also for their operations. `top`: number of
/// modules named for each depth. `detailed`: every block.
std::string flops_report(const StepFacts& facts,
                         const std::vector<BlockWork>& blocks,
                         std::int64_t depth,
                         std::int64_t top,
                         bool detailed);

}  // namespace tessera::report
