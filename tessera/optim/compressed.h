// SPDX-License-Identifier: Apache-2.0
// Rules whose ranks exchange signs instead of gradients: 1-bit Adam, 1-bit LAMB and 0/1 Adam.
//
// An update of such a rule is exact or compressed. An exact one works as in any other rule. In a
// compressed one every rank only has its own gradient: local() computes a vector for every whole
// parameter, the vectors of the ranks are averaged by their signs with error feedback, and finish()
// updates the weights from the mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/optim/rule.h"

namespace tessera::optim {

/// The values that the ranks exchange in an update. Gradients: the gradients in full precision.
/// Signs: the signs of state()[0], and a scale for each part. Nothing: each rank makes a step by
/// itself.
enum class Exchange : std::uint8_t { Gradients, Signs, Nothing };

/// A parameter in a compressed update. In local() and received() it is whole, with the gradient of
/// this rank only and, unless the rule has local_weights(), no more state than state[0]. In
/// measure(), freeze() and finish() it is the range that this rank updates.
struct CompressedView : ShardView {
  std::span<double> scalars = {};  ///< num_scalars() numbers of the whole parameter
  const float* last = nullptr;     ///< state[0] before local(), if keeps_last()
};

/// A whole momentum as start() sees it: its root mean square, and the scalars of the parameter.
struct MomentumSize {
  double rms = 0.0;
  std::span<double> scalars = {};
};

/// A rule with compressed updates. state()[0] is what is exchanged: whole on every rank, in every
/// ZeRO stage. Threads: as Rule.
class CompressedRule : public Rule {
 public:
  [[nodiscard]] const CompressedRule* compressed() const final { return this; }
  [[nodiscard]] virtual Exchange exchange(std::int64_t step) const = 0;
  /// Returns whether all parameters are exchanged as one vector with one scale, or each by itself.
  [[nodiscard]] virtual bool fused() const { return false; }
  /// Returns whether the weights of ranks differ between exchanges: master is then what they last
  /// agreed on, and the weights of a rank are master + state[0]. Such a rule is not sharded.
  [[nodiscard]] virtual bool local_weights() const { return false; }
  /// Returns whether a state differs between ranks.
  [[nodiscard]] virtual bool of_rank(std::string_view /*state*/) const { return false; }
  /// Returns whether the error-feedback buffers are reset before this update.
  [[nodiscard]] virtual bool forgets(std::int64_t /*step*/) const { return false; }
  [[nodiscard]] virtual bool keeps_last() const { return false; }
  /// Number of scalars kept for each parameter in addition to its state; initially 0.
  [[nodiscard]] virtual int num_scalars() const { return 0; }

  /// Called before the first compressed update after an exact one: start() with all momenta in the
  /// order of the model, then freeze() on every range.
  virtual void start(std::span<MomentumSize> /*momenta*/) const {}
  virtual void freeze(const CompressedView& /*view*/) const {}
  /// Writes what this rank exchanges to state[0].
  virtual void local(const CompressedView& view, const UpdateScalars& scalars) const = 0;
  /// Called when state[0] holds the mean over all ranks.
  virtual void received(const CompressedView& /*view*/) const {}
  /// Number of quantities of the whole parameter that adapt() needs. measure() writes them for
  /// every chunk, as prepare() does. They are sums of squares, except the last one, of which the
  /// maximum is taken.
  [[nodiscard]] virtual int num_measures() const { return 0; }
  virtual void measure(const CompressedView& /*view*/,
                       const UpdateScalars& /*scalars*/,
                       double* /*of_chunks*/) const {}
  /// Updates the scalars of the parameter: after the norms of an exact update, or after measure()
  /// (then with the roots of the sums, and the maximum).
  virtual void adapt(std::span<double> /*of_parameter*/,
                     std::span<const double> /*measures*/,
                     const UpdateScalars& /*scalars*/) const {}
  virtual void finish(const CompressedView& view, const UpdateScalars& scalars) const = 0;
};

/// The parameters of all these rules: Adam's, and those with which DeepSpeed selects an
/// implementation of the exchange, of which there is only one here, or a correction that none of
/// the rules makes.
struct SignOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  bool cuda_aware = false, bias_correction = true;
  /// The library of DeepSpeed's exchange, which has no meaning here.
  enum class Backend : std::uint8_t { Nccl, Mpi, Compressed, Hccl };
  Backend comm_backend_name = Backend::Nccl;

  void describe(config::Fields& f);
  void check(const json::Value& params, config::Problems& problems);
};

/// Sets the mean square to infinity for elements that had no gradient before it was frozen, so that
/// they do not move: the sign of a momentum of 0 is +, and dividing it by eps would give a huge
/// step.
void hold_unseen(float* exp_avg_sq, std::int64_t numel);

}  // namespace tessera::optim
