// SPDX-License-Identifier: Apache-2.0
// Update directions that a rule of Scope::WholeTensor transforms as whole tensors: each is gathered
// on an owner rank, transformed there and scattered.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parallel/parameter_norms.h"
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// Assigns tasks to ranks by cost: the most expensive task first, each to the rank with the least
/// work. The result is the same on every rank.
std::vector<int> balanced_owners(std::span<const double> costs, int ranks);

/// The matrix products are balanced over the ranks that hold shards of a buffer. In stage 0 every
/// rank transforms all directions. Each matrix of a stacked parameter is a tensor of its own. If
/// tensor-parallel ranks hold boxes of a matrix, each of them assembles the whole. Used only on the
/// rank's own thread.
class WholeTensors {
 public:
  explicit WholeTensors(const UpdateContext& context);
  /// See UpdateBytes. The directions all exist before the first is transformed: a rank's shard of
  /// them, the messages to their owners, and the one that an owner assembles.
  static std::int64_t bytes(const PlannedStage& stage, const optim::Rule& rule);

  /// Replaces the directions that ParameterNorms::prepare() wrote by those that Rule::update()
  /// takes. Collective.
  void transform(ShardStore& store,
                 const ParameterNorms& norms,
                 const optim::UpdateScalars& scalars);
  /// Appends the states of Extent::Rows and Columns, which their owners hold. Local.
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save);

 private:
  struct Whole {
    int group = 0, segment = 0;
    int owner = 0;                  ///< index among the ranks of the buffer's fold
    std::vector<at::Tensor> state;  ///< states of Extent::Rows and Columns, on the owner
    optim::ParamFacts facts;
  };
  void assign_owners();
  [[nodiscard]] bool owns(const Whole& whole) const {
    return context_.stage(whole.group) == 0 || whole.owner == ranks_of(whole).index;
  }
  [[nodiscard]] const comm::Group& ranks_of(const Whole& whole) const {
    return context_.fold(whole.group);
  }
  [[nodiscard]] const FlatGroup& group_of(const Whole& whole) const {
    return context_.model.groups()[static_cast<std::size_t>(whole.group)];
  }
  [[nodiscard]] const Segment& segment_of(const Whole& whole) const {
    return group_of(whole).layout.segments()[static_cast<std::size_t>(whole.segment)];
  }
  /// The transport for the memory of a direction.
  [[nodiscard]] comm::Transport& transport(const at::Tensor& piece) const;
  comm::WorkPtr send(int index, int tag, const at::Tensor& piece, const Whole& whole) const;
  void receive(int index, int tag, const at::Tensor& piece, const Whole& whole) const;
  void apply_rule(Whole& whole,
                  const at::Tensor& held,
                  const ParameterNorms& norms,
                  const optim::UpdateScalars& scalars) const;
  void transform_owned(Whole& whole,
                       ShardStore& store,
                       const ParameterNorms& norms,
                       const optim::UpdateScalars& scalars) const;

  UpdateContext context_;
  std::vector<Whole> wholes_;
};

}  // namespace tessera::parallel
