// SPDX-License-Identifier: Apache-2.0
// Master weights and optimizer state, sharded over data-parallel ranks (ZeRO stage 1) or replicated
// (stage 0). Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
// parameter models".
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/gradient_fold.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Which parameters weight decay applies to.
using DecayRule = std::function<bool(const ParamInfo&)>;
/// Writes elements [begin, end) of a parameter (row-major, global) as fp32.
using FillRange =
    std::function<void(const ParamInfo&, std::int64_t begin, std::int64_t end, float* out)>;

/// Memory of a parameter: fp32 working: 0 + state; bf16 working: 4 + state; divided by n in
/// stage 1. As a policy it waits for a block's gathered weights before that block runs. Threads:
/// the rank's own.
class ShardedOptimizer final : public Policy {
 public:
  /// stage: 0 or 1. `rule` must outlive this.
  ShardedOptimizer(comm::World& world,
                   ModelInstance& model,
                   const optim::Rule& rule,
                   int stage,
                   DecayRule decay);
  ~ShardedOptimizer() override;

  void before(const Action& action, const BlockRun& run) override;

  /// First weights: every rank fills only what it owns, then the working weights are gathered.
  void fill(const FillRange& source);
  /// One update from the folded gradients; the gather of the new weights is only posted.
  void update(GradientFold& gradients, const optim::UpdateScalars& scalars);
  /// Until the working weights of all blocks are whole.
  void wait_weights();

  /// What this rank owns: master weights under the parameter's name, state as
  /// "optimizer.<state>.<name>". With `for_save` every element of the job appears on exactly one
  /// rank; without it on every rank that needs it. Call wait_weights() first.
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces(bool for_save);
  /// After pieces() were written by a load: working weights from the masters, gathered.
  void publish();

 private:
  struct Slot {
    std::int64_t begin = 0, numel = 0;  ///< the range of the flat buffer that this rank updates
    at::Tensor master_storage;  ///< private fp32 masters; undefined where the working weights are
                                ///< the masters
    float* master = nullptr;
    std::vector<at::Tensor> state;
    comm::WorkPtr gather;
  };
  void release(Slot& slot);
  void post_gather(std::size_t group);
  void update_group(std::size_t group,
                    const at::Tensor& gradient,
                    const optim::UpdateScalars& scalars);

  comm::World& world_;
  ModelInstance& model_;
  const comm::Group& group_;
  const optim::Rule& rule_;
  int stage_;
  DecayRule decay_;
  std::vector<Slot> slots_;
};

}  // namespace tessera::parallel
