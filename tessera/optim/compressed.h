// SPDX-License-Identifier: Apache-2.0
// Rules whose ranks exchange signs instead of gradients: 1-bit Adam and LAMB, 0/1 Adam.
//
// An update of such a rule is exact or compressed. An exact one is that of any other rule. In a
// compressed one every rank has its own gradient only: local() makes a vector of every whole
// parameter, the ranks' vectors are averaged by their signs with error feedback, and finish()
// updates from the mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/optim/rule.h"

namespace tessera::optim {

/// What ranks tell each other in an update. Gradients: the whole of them, in full precision.
/// Signs: those of state()[0], and a scale for each part. Nothing: a step of each rank by itself.
enum class Exchange : std::uint8_t { Gradients, Signs, Nothing };

/// A parameter in a compressed update. In local() and received() it is whole, and has the gradient
/// of this rank alone and, unless the rule has local_weights(), no more than state[0]. In
/// measure(), freeze() and finish() it is the range that this rank updates.
struct CompressedView : ShardView {
  std::span<double> scalars = {};  ///< of the whole parameter, num_scalars()
  const float* last = nullptr;     ///< state[0] before local(), where keeps_last()
};

/// A whole momentum as start() sees it: the root of its mean square, and the parameter's scalars.
struct MomentumSize {
  double rms = 0.0;
  std::span<double> scalars = {};
};

/// state()[0] is what is exchanged: whole on every rank, in every stage. Threads: as Rule.
class CompressedRule : public Rule {
 public:
  [[nodiscard]] const CompressedRule* compressed() const final { return this; }
  [[nodiscard]] virtual Exchange exchange(std::int64_t step) const = 0;
  /// Whether all parameters travel as one vector with one scale, or each by itself.
  [[nodiscard]] virtual bool fused() const { return false; }
  /// Whether ranks' weights differ between exchanges: master then is what they agreed on last, and
  /// the weights of a rank are master + state[0]. Such a rule shards nothing.
  [[nodiscard]] virtual bool local_weights() const { return false; }
  /// Whether a state differs between ranks.
  [[nodiscard]] virtual bool of_rank(std::string_view /*state*/) const { return false; }
  /// Whether what compression has left over is dropped before this update.
  [[nodiscard]] virtual bool forgets(std::int64_t /*step*/) const { return false; }
  [[nodiscard]] virtual bool keeps_last() const { return false; }
  /// Numbers kept for each parameter, beside its state; 0 at first.
  [[nodiscard]] virtual int num_scalars() const { return 0; }

  /// Before the first compressed update after an exact one: start() with all momenta, in the
  /// model's order, then freeze() on every range.
  virtual void start(std::span<MomentumSize> /*momenta*/) const {}
  virtual void freeze(const CompressedView& /*view*/) const {}
  /// Writes what this rank exchanges to state[0].
  virtual void local(const CompressedView& view, const UpdateScalars& scalars) const = 0;
  /// state[0] holds the mean of all ranks.
  virtual void received(const CompressedView& /*view*/) const {}
  /// Quantities of the whole parameter that adapt() needs. measure() writes those of every chunk as
  /// prepare() does; sums of squares, but for the last one, of which the largest is taken.
  [[nodiscard]] virtual int num_measures() const { return 0; }
  virtual void measure(const CompressedView& /*view*/,
                       const UpdateScalars& /*scalars*/,
                       double* /*of_chunks*/) const {}
  /// Moves the parameter's scalars: after an exact update's norms, or after measure() (then the
  /// roots of the sums, and the largest).
  virtual void adapt(std::span<double> /*of_parameter*/,
                     std::span<const double> /*measures*/,
                     const UpdateScalars& /*scalars*/) const {}
  virtual void finish(const CompressedView& view, const UpdateScalars& scalars) const = 0;
};

/// The parameters of all these rules: Adam's, and DeepSpeed's that choose between implementations
/// of the exchange, which is one here, or switch a correction that none of the rules makes.
struct SignOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  bool cuda_aware = false, bias_correction = true;
  std::string comm_backend_name = "nccl";

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems);
};

/// Elements that have had no gradient until their mean square froze stand still: it becomes
/// infinite. The sign of a momentum of 0 is +, and dividing it by eps would throw them far away.
void hold_unseen(float* exp_avg_sq, std::int64_t numel);

}  // namespace tessera::optim
