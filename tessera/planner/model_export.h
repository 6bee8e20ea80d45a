// SPDX-License-Identifier: Apache-2.0
// A model under the names that others know it by: its tensors, its config.json, its tokenizer's
// files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/checkpoint/export.h"

namespace tessera::planner {

struct ModelExport {
  std::vector<checkpoint::StreamedTensor> tensors;
  /// config.json and what else lies beside the weights: name and content.
  std::vector<std::pair<std::string, std::string>> files;
};

/// Opens a run or checkpoint of ours (optimizer state is left out), or a Hugging Face folder (whose
/// tensors keep their names, whatever model it is). `dtype` (F32, BF16 or F16) changes the float
/// tensors; without it they stay as they are. No weights are read before they are asked for; a
/// transposed tensor is then held whole, as fp32. Errors: Error{Config} if nothing is there,
/// Error{Format} for damage, Error{Unsupported} for a model that Hugging Face's has no place for.
ModelExport open_model_export(const std::filesystem::path& source, std::optional<DType> dtype);

}  // namespace tessera::planner
