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
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/export.h"
#include "tessera/checkpoint/foreign.h"

namespace tessera::planner {

struct ModelExport {
  std::vector<checkpoint::StreamedTensor> tensors;
  /// config.json and what else lies beside the weights: name and content.
  std::vector<std::pair<std::string, std::string>> files;
};

/// Opens a run or checkpoint of ours (optimizer state is left out), another program's checkpoint
/// (likewise), a Hugging Face folder or a lone file of weights (whose tensors keep their names,
/// whatever model it is; without config.json `files` is empty). `dtype` (F32, BF16 or F16) changes
/// the float tensors; without it they stay as they are. No weights are read before they are asked
/// for; a transposed tensor is then held whole, as fp32. Errors: Error{Config} if nothing is there,
/// Error{Format} for damage, Error{Unsupported} for a model that Hugging Face's has no place for.
ModelExport open_model_export(const std::filesystem::path& source, std::optional<DType> dtype);

/// A training under the names that others know it by, optimizer state and all, in fp32: of a run or
/// checkpoint of ours, or another program's as it is. Errors as above.
checkpoint::Foreign open_training_export(const std::filesystem::path& source);

/// What a checkpoint of ours needs: of another program's checkpoint or a Hugging Face folder (whose
/// weights alone are there), under our names. What Hugging Face's files say beside the model (ids
/// of special tokens, generation_config.json, special_tokens_map.json) stays in
/// meta.extra.hugging_face and comes out again.
struct NativeExport {
  checkpoint::Meta meta;
  std::vector<checkpoint::StreamedTensor> tensors;
  /// The tokenizer's own files, which go into the checkpoint's folder: name and content.
  std::vector<std::pair<std::string, std::string>> files;
};
NativeExport open_native_export(const std::filesystem::path& source);

}  // namespace tessera::planner
