// SPDX-License-Identifier: Apache-2.0
// Norms of whole parameters for rules of Scope::SegmentNorms and WholeTensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// Sums over chunks of 1024 elements of each parameter are added in one order, so that the norms
/// have the same bits on any number of ranks. Threads: the rank's own.
class ParameterNorms {
 public:
  explicit ParameterNorms(const UpdateContext& context);

  /// Rule::prepare() on every shard that is not updated element by element; then every shard of a
  /// trainable parameter has the norms of that parameter. Collective.
  void prepare(ShardStore& store,
               GradientReduction& gradients,
               const optim::UpdateScalars& scalars);
  /// Those of one trainable parameter after prepare(), on every rank.
  [[nodiscard]] std::vector<double> of(int group, int segment) const;

 private:
  /// Where a parameter's numbers lie among those of all parameters, the same on every rank.
  struct Place {
    const ParamInfo* info = nullptr;
    std::int64_t chunks = 0;
    std::int64_t count = 0;  ///< norms; 0 for frozen parameters
    std::size_t sum = 0;     ///< first of count * chunks sums
    std::size_t norm = 0;    ///< first of count norms
  };
  [[nodiscard]] const Place& place(int group, int segment) const;
  void add_sums(ShardStore& store,
                ParamShard& shard,
                const at::Tensor& gradient,
                const optim::UpdateScalars& scalars,
                std::vector<double>& sums) const;
  void reduce(std::vector<double> sums);
  void add_boxes(std::vector<double>& totals) const;

  UpdateContext context_;
  std::vector<Place> places_;
  std::vector<std::size_t> first_place_;  ///< of a group
  std::size_t num_sums_ = 0, num_norms_ = 0;
  std::vector<double> norms_;
};

}  // namespace tessera::parallel
