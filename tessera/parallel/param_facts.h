// SPDX-License-Identifier: Apache-2.0
// The facts about a parameter that optimizer rules use, derived from its declaration.
#pragma once

#include "tessera/optim/rule.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Tables and output heads count as embeddings. For a stacked parameter: the facts of any of its
/// matrices, with the name of the parameter.
optim::ParamFacts facts_of(const ParamInfo& info);
/// The facts of what the segment belongs to: a parameter, or one matrix of a stacked one.
optim::ParamFacts facts_of(const Segment& segment);

}  // namespace tessera::parallel
