// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {
namespace {

/// Sets the parts of fused queries, keys and values: [3, heads, channels, embed], or, by heads of
/// keys and values, [kv_heads, queries of a group + 2, channels, embed]. The keys and values of
/// cross-attention, [2, heads, channels, embed], are one matrix, as in Megatron-LM.
void set_parts(const ParamInfo& info, optim::ParamFacts& facts) {
  const Shape& shape = info.shape;
  if (shape.size() != 4 || info.axes.size() != 4) return;
  if (info.axes[0] == LogicalAxis::None && info.axes[1] == LogicalAxis::Heads && shape[0] == 3) {
    facts.row_parts.assign(3, shape[1] * shape[2]);
  } else if (info.axes[0] == LogicalAxis::KvHeads) {
    facts.row_groups = shape[0];
    facts.row_parts = {(shape[1] - 2) * shape[2], shape[2], shape[2]};
  }
}

}  // namespace

optim::ParamFacts facts_of(const ParamInfo& info) {
  Shape shape = info.matrix_shape;
  if (shape.empty()) shape.assign(info.shape.begin() + (info.stacked() ? 1 : 0), info.shape.end());
  optim::ParamFacts facts;
  facts.name = info.name;
  facts.matrix = shape.size() >= 2;
  facts.columns = shape.empty() ? 1 : shape.back();
  facts.rows = facts.columns == 0 ? 1 : info.numel() / info.num_matrices() / facts.columns;
  set_parts(info, facts);
  facts.embedding = facts.matrix && info.role != Role::Matrix && info.role != Role::Vector;
  return facts;
}

optim::ParamFacts facts_of(const Segment& segment) {
  optim::ParamFacts facts = facts_of(*segment.info);
  facts.name = segment.name();
  return facts;
}

}  // namespace tessera::parallel
