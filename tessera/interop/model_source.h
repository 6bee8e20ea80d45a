// SPDX-License-Identifier: Apache-2.0
// Reads the models that `model.from` may name: a Hugging Face folder or a file of weights, a run or
// checkpoint of tessera, or another program's checkpoint.
#pragma once

#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/family.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

/// True if `path` is a checkpoint of another program. A folder with Hugging Face weights counts as
/// a Hugging Face folder even if it also contains other files.
bool is_foreign_source(const std::filesystem::path& path);

/// Throws Error{Unsupported} if the checkpoint in `folder` holds a model that a program brought:
/// only that program has its blocks.
void require_family(const checkpoint::Meta& meta, const std::filesystem::path& folder);

/// The moving average of the weights (trainer.ema) in a checkpoint of tessera; for parameters that
/// were not trained, their weights. Throws Error{Config} if the checkpoint has no average.
models::WeightSource averaged_weights(const std::filesystem::path& checkpoint);

}  // namespace tessera::interop
