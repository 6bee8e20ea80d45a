// SPDX-License-Identifier: Apache-2.0
// Norms of whole parameters, and of each matrix of stacked ones, for rules of Scope::SegmentNorms
// and WholeTensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// Sums over 1024-element chunks of each parameter are added in a fixed order, so that the norms
/// have the same bits on any number of ranks. Used only on the rank's own thread.
class ParameterNorms {
 public:
  explicit ParameterNorms(const UpdateContext& context);

  /// Calls Rule::prepare() on every shard that is not updated element by element; afterwards every
  /// shard of a trainable parameter has that parameter's norms. Collective.
  void prepare(ShardStore& store,
               GradientReduction& gradients,
               const optim::UpdateScalars& scalars);
  /// The norms of one trainable segment, on every rank that holds it; call after prepare().
  [[nodiscard]] std::vector<double> of(int group, int segment) const;

 private:
  /// The position of a segment's numbers among those of all segments; the same on every rank over
  /// which the shards of its buffer are spread.
  struct Place {
    const ParamInfo* info = nullptr;
    std::int64_t chunks = 0;
    std::int64_t count = 0;  ///< number of norms; 0 for frozen parameters
    std::size_t sum = 0;     ///< index of the first of count * chunks sums
    std::size_t norm = 0;    ///< index of the first of count norms
  };
  [[nodiscard]] const Place& place(int group, int segment) const;
  void add_sums(ShardStore& store,
                const ShardStore::Lease& lease,
                ParamShard& shard,
                const at::Tensor& gradient,
                const optim::UpdateScalars& scalars,
                std::vector<double>& sums) const;
  void reduce(std::vector<double> sums);
  void add_over_folds(std::vector<double>& sums) const;
  void add_boxes(std::vector<double>& totals) const;

  UpdateContext context_;
  std::vector<Place> places_;
  std::vector<std::size_t> first_place_;  ///< for each group
  std::vector<std::size_t> first_sum_;    ///< for each group, and the number of all sums
  std::size_t num_sums_ = 0, num_norms_ = 0;
  std::vector<double> norms_;
};

}  // namespace tessera::parallel
