// SPDX-License-Identifier: Apache-2.0
// Tensors of others under our names.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/export.h"
#include "tessera/models/family.h"

namespace tessera::models {

/// Every parameter of a model, once, in the order of its blocks.
std::vector<std::shared_ptr<const ParamInfo>> parameters_of(const nn::Model& model);

/// A source over tensors that have Hugging Face's names and layouts for the family, with or without
/// its base prefix, and whatever a wrapper put before them ("module.", "_orig_mod."). `what` names
/// them in messages. Error{Format} lists names that are missing, unexpected or of another shape.
/// The source keeps what the tensors keep; any range of any parameter may be asked for, from any
/// thread. Cost: a transposed matrix is read row by row of theirs.
WeightSource weights_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                        const Family& family,
                        const Resolved& resolved,
                        const std::string& what);

}  // namespace tessera::models
