// SPDX-License-Identifier: Apache-2.0
// The parts of this rank's gradients that were lost when they were rounded to 8 bits. They are
// added to the next gradient of the same parameters (error feedback). Source: Xie et al. 2024,
// "LoCo: low-bit communication adaptor for large-scale model training"; with beta 0, Seide et al.
// 2014, "1-bit stochastic gradient descent and its application to data-parallel distributed
// training of speech DNNs".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Memory: 2 bytes (bf16) per element of each use of a trained buffer, on every rank,
/// Tag::Gradients. Used only on the rank's own thread. All methods are local.
class SentResiduals {
 public:
  /// `group`: the ranks over which gradients are reduced; each has residuals of its own. The group
  /// and the model must outlive this.
  SentResiduals(const comm::Group& group, ModelInstance& model);

  /// The residual of a use of a group, bf16 [layout.numel()], in the gradient's units without the
  /// loss scale; undefined for frozen groups.
  [[nodiscard]] at::Tensor of(std::size_t group, std::size_t use) const {
    return residuals_[group][use];
  }
  /// Follows ModelInstance::freeze_sets(): groups that are trained now start at zero, those that
  /// are still trained keep what they have.
  void follow_model();
  /// Sets all residuals to zero.
  void forget();

  /// Appends this rank's rows of the tensors [ranks, elements of the parameter], named
  /// "optimizer.residual.<block>.<parameter>". They are a copy, because backward passes change the
  /// residuals while a save is under way; release_pieces() frees it.
  void add_pieces(std::vector<checkpoint::PieceBytes>& out);
  void release_pieces() { copies_.clear(); }
  /// Loads this rank's rows. If another number of ranks wrote them, each rank takes an equal share
  /// of their sum, because gradients are added over the ranks. Residuals that the checkpoint lacks
  /// are zero.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  template <class Fn>
  void for_each(const Fn& fn) const;
  void load_share(const checkpoint::Checkpoint& checkpoint,
                  const std::string& name,
                  std::int64_t rows,
                  const at::Tensor& residual) const;

  const comm::Group& group_;
  ModelInstance& model_;
  std::vector<std::vector<at::Tensor>> residuals_;  ///< by group and use
  std::vector<at::Tensor> copies_;
};

}  // namespace tessera::parallel
