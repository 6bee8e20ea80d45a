// SPDX-License-Identifier: Apache-2.0
// The facts about a parameter that optimizer rules use, derived from its declaration.
#pragma once

#include "tessera/optim/rule.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Tables and output heads count as embeddings.
optim::ParamFacts facts_of(const ParamInfo& info);

}  // namespace tessera::parallel
