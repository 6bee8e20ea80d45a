// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {

optim::ParamFacts facts_of(const ParamInfo& info) {
  const Shape& shape = info.matrix_shape.empty() ? info.shape : info.matrix_shape;
  optim::ParamFacts facts;
  facts.name = info.name;
  facts.matrix = shape.size() >= 2;
  facts.columns = shape.empty() ? 1 : shape.back();
  facts.rows = facts.columns == 0 ? 1 : info.numel() / facts.columns;
  facts.embedding = facts.matrix && info.role != Role::Matrix && info.role != Role::Vector;
  return facts;
}

}  // namespace tessera::parallel
