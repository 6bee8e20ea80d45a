// SPDX-License-Identifier: Apache-2.0
// Exports a model under Hugging Face's names: its tensors, its config.json, its tokenizer's files.
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
#include "tessera/interop/export.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {

/// For each tensor, the number of finite values that became infinite in a narrower dtype.
using Overflows = std::map<std::string, std::int64_t>;

/// The tokenizer's files and generation_config.json of a folder: name and content.
std::vector<std::pair<std::string, std::string>> files_beside(const std::filesystem::path& folder);

struct ModelExport {
  std::vector<checkpoint::StreamedTensor> tensors;
  /// config.json and the other files that accompany the weights: name and content.
  std::vector<std::pair<std::string, std::string>> files;
  /// Complete after all tensors were read, which must be done by one thread.
  std::shared_ptr<Overflows> overflows = std::make_shared<Overflows>();
};

/// Opens a run or checkpoint of tessera or of another program (without optimizer state), a Hugging
/// Face folder, or a single file of weights (whose tensors keep their names, whatever the model;
/// without config.json `files` is empty). `dtype` (F32, BF16 or F16) converts the float tensors;
/// without it they are unchanged. Weights are read on demand; a transposed tensor is then held as a
/// whole, in fp32. Throws Error{Config} if there is nothing at the path, Error{Format} for damage,
/// and Error{Unsupported} for a model that Hugging Face's format cannot represent. `averaged`:
/// exports the moving average of a tessera run or checkpoint (averaged_weights()) instead of its
/// weights.
ModelExport open_model_export(const std::filesystem::path& source,
                              std::optional<DType> dtype,
                              bool averaged = false);

/// Exports a training under Hugging Face's names, with optimizer state, in fp32: of a run or
/// checkpoint of tessera, or another program's unchanged. Errors as above.
interop::Foreign open_training_export(const std::filesystem::path& source);

/// The contents of a tessera checkpoint made from another program's checkpoint or a Hugging Face
/// folder (only its weights), under tessera's names. Ids of special tokens in config.json are kept
/// in meta.extra.hugging_face; an export writes them and the files again.
struct NativeExport {
  checkpoint::Meta meta;
  std::vector<checkpoint::StreamedTensor> tensors;
  /// The tokenizer's files and generation_config.json unchanged, for the checkpoint's folder: name
  /// and content.
  std::vector<std::pair<std::string, std::string>> files;
};
/// `weights_of_ours`: also accepts a run or checkpoint of tessera, of which it takes the weights.
NativeExport open_native_export(const std::filesystem::path& path, bool weights_of_ours = false);

}  // namespace tessera::interop
