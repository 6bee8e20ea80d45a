// SPDX-License-Identifier: Apache-2.0
// A model under the names that others know it by: its tensors, its config.json, its tokenizer's
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/formats/export.h"
#include "tessera/interop/formats/foreign.h"

namespace tessera::interop {

/// Tensor -> finite numbers of it that became infinite in a narrower type.
using Overflows = std::map<std::string, std::int64_t>;

/// What of a tokenizer's files and generation_config.json lies beside weights: name and content.
std::vector<std::pair<std::string, std::string>> files_beside(const std::filesystem::path& folder);

struct ModelExport {
  std::vector<checkpoint::StreamedTensor> tensors;
  /// config.json and what else lies beside the weights: name and content.
  std::vector<std::pair<std::string, std::string>> files;
  /// Complete once all tensors were read, which one thread does.
  std::shared_ptr<Overflows> overflows = std::make_shared<Overflows>();
};

/// Opens a run or checkpoint of ours (optimizer state is left out), another program's checkpoint
/// (likewise), a Hugging Face folder or a lone file of weights (whose tensors keep their names,
/// whatever model it is; without config.json `files` is empty). `dtype` (F32, BF16 or F16) changes
/// the float tensors; without it they stay as they are. No weights are read before they are asked
/// for; a transposed tensor is then held whole, as fp32. Errors: Error{Config} if nothing is there,
/// Error{Format} for damage, Error{Unsupported} for a model that Hugging Face's has no place for.
/// `averaged`: the moving average of a run or checkpoint of ours (averaged_weights()) in place of
/// its weights.
ModelExport open_model_export(const std::filesystem::path& source,
                              std::optional<DType> dtype,
                              bool averaged = false);

/// A training under the names that others know it by, optimizer state and all, in fp32: of a run or
/// checkpoint of ours, or another program's as it is. Errors as above.
interop::Foreign open_training_export(const std::filesystem::path& source);

/// What a checkpoint of ours needs: of another program's checkpoint or a Hugging Face folder (whose
/// weights alone are there), under our names. Ids of special tokens that config.json says stay in
/// meta.extra.hugging_face; they and the files come out again.
struct NativeExport {
  checkpoint::Meta meta;
  std::vector<checkpoint::StreamedTensor> tensors;
  /// The tokenizer's files and generation_config.json as they are, which go into the checkpoint's
  /// folder: name and content.
  std::vector<std::pair<std::string, std::string>> files;
};
NativeExport open_native_export(const std::filesystem::path& path);

}  // namespace tessera::interop
