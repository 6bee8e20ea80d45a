// SPDX-License-Identifier: Apache-2.0
// The exchange of rows between the ranks that divide the experts of a layer. Legend: S sources (the
// ranks of the group), E experts, R rows of this rank's tokens, Q rows of a round for this rank's
// experts, C channels.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/expert_rounds.h"
#include "tessera/nn/step_context.h"

namespace tessera::nn {

/// The exchanges of one layer and micro-batch. All ranks of the group construct it and call the
/// same functions, whatever rows they have. Without ranks that divide the experts, or with one,
/// nothing is sent, and there is one round. Cost: a message of E numbers in the constructor;
/// to_owners() and to_sources() of all rounds send each row once, except those that stay.
class ExpertExchange {
 public:
  /// `counts`: this rank's rows for each of all experts; R is their sum. `tokens`: of this rank, of
  /// which an expert gets each at most once. On meta tensors every source has these counts.
  ExpertExchange(StepContext& context,
                 const std::vector<std::int64_t>& counts,
                 std::int64_t tokens,
                 bool meta);

  /// The experts [first, last) of this rank.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> own() const { return own_; }
  /// At least one, and the same number on all ranks of the group.
  [[nodiscard]] const std::vector<ExpertRound>& rounds() const { return rounds_; }
  /// The number of gradients that a parameter of the experts has: one for each rank of data
  /// parallelism among the sources. Ranks that share the tokens of a micro-batch have one slice.
  [[nodiscard]] int slices() const { return slices_; }
  [[nodiscard]] int slice_of(int source) const { return source / (sources_ / slices_); }
  /// Returns whether one of this rank's experts has rows of a source of the slice.
  [[nodiscard]] bool has_rows(int slice, std::int64_t expert) const;

  /// [R, C], sorted by expert -> the [Q, C] of a round.
  [[nodiscard]] at::Tensor to_owners(const at::Tensor& rows_RC,
                                     const ExpertRound& round,
                                     const char* what,
                                     StepContext& context) const;
  /// The [Q, C] of a round -> their places in `all_RC`, which becomes [R, C] if it is undefined.
  void to_sources(const at::Tensor& rows_QC,
                  const ExpertRound& round,
                  at::Tensor& all_RC,
                  const char* what,
                  StepContext& context) const;

  /// On meta tensors, the rows for which there is room in a round besides those of equal loads; 0
  /// otherwise. With tensors of so many rows, what is counted is the most that a pass can need.
  [[nodiscard]] std::int64_t spare_rows() const { return spare_; }

 private:
  at::Tensor exchange(const at::Tensor& rows,
                      const std::vector<std::int64_t>& parts,
                      const char* what,
                      StepContext& context) const;

  const ExpertParallel* ranks_ = nullptr;  ///< nullptr: nothing is sent
  int sources_ = 1, slices_ = 1;
  std::pair<std::int64_t, std::int64_t> own_ = {0, 0};
  std::int64_t rows_ = 0;  ///< R
  std::vector<ExpertRound> rounds_;
  std::vector<bool> has_rows_;  ///< [slices, experts of this rank]
  std::int64_t spare_ = 0;
};

}  // namespace tessera::nn
