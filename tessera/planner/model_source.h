// SPDX-License-Identifier: Apache-2.0
// `model.from`: a Hugging Face folder or a file of weights, a run or checkpoint of ours, or another
// program's checkpoint, as a start for training.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/config/json.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/family.h"

namespace tessera::planner {

struct ModelSource {
  std::filesystem::path folder;                  ///< of the Hugging Face files, or the checkpoint
  std::filesystem::path weights;                 ///< Hugging Face's: that folder, or a lone file
  bool hugging_face = false;                     ///< config.json and tokenizer are Hugging Face's
  std::optional<std::filesystem::path> foreign;  ///< where another program's weights lie
  models::ModelOptions model;                    ///< the options that the source stands for
  data::TokenizerOptions tokenizer;              ///< of a run of ours
  bool says_tokenizer = true;  ///< false: a checkpoint that was converted without one
  bool bf16 = false;           ///< the weights were trained, or are kept, in bf16
};

/// Finds out what stands at `path` and reads its description; no weights. That of a lone file of
/// weights lies in its folder. Errors: Error{Config} if nothing is there, Error{Format} for a
/// description that is damaged or missing, Error{Unsupported} for a model type or key that is not
/// built.
ModelSource open_model_source(const std::filesystem::path& path);

/// Whether `path` is a checkpoint of another program. A folder with Hugging Face's weights is a
/// folder of Hugging Face's, whatever else lies in it.
bool is_foreign_source(const std::filesystem::path& path);

/// The tokenizer that belongs to the source.
data::TokenizerPtr source_tokenizer(const ModelSource& source);

/// The source's weights under our names; nothing is read before the first call. Error{Format} lists
/// missing, unexpected and mis-shaped names.
models::WeightSource source_weights(const ModelSource& source, const models::Resolved& resolved);

}  // namespace tessera::planner
