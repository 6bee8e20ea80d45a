// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {

optim::ParamFacts facts_of(const ParamInfo& info) {
  Shape shape = info.matrix_shape;
  if (shape.empty()) shape.assign(info.shape.begin() + (info.stacked() ? 1 : 0), info.shape.end());
  optim::ParamFacts facts;
  facts.name = info.name;
  facts.matrix = shape.size() >= 2;
  facts.columns = shape.empty() ? 1 : shape.back();
  facts.rows = facts.columns == 0 ? 1 : info.numel() / info.num_matrices() / facts.columns;
  facts.embedding = facts.matrix && info.role != Role::Matrix && info.role != Role::Vector;
  return facts;
}

optim::ParamFacts facts_of(const Segment& segment) {
  optim::ParamFacts facts = facts_of(*segment.info);
  facts.name = segment.name();
  return facts;
}

}  // namespace tessera::parallel
