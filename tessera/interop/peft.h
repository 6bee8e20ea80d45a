// SPDX-License-Identifier: Apache-2.0
// Adapters in the folders of PEFT: adapter_config.json and adapter_model.safetensors (or .bin).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/formats/weights.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"

namespace tessera::interop {

/// An adapter as a folder says it; its tensors lie in mapped files.
struct PeftFolder {
  std::filesystem::path folder;
  models::AdapterOptions options;
  std::string base;  ///< base_model_name_or_path
  std::vector<Weight> tensors;
};

/// Whether the folder holds an adapter of PEFT's.
bool is_peft(const std::filesystem::path& folder);

/// Error{Format} for a folder that lacks a file or is damaged, Error{Unsupported} for another kind
/// of adapter than LoRA and for keys that change what it computes and are not built.
PeftFolder open_peft(const std::filesystem::path& folder);

/// The base that the folder names, as a path: relative to the working directory or to the folder.
/// Error{Config} where nothing is there.
std::filesystem::path base_of(const PeftFolder& peft);

/// What the folder has of Adapter::parameters, under our names. Error{Format} lists tensors that
/// are missing, unexpected or of another shape. Memory: one matrix of an adapter at a time.
/// Threads: any.
models::WeightSource peft_weights(const PeftFolder& peft,
                                  const models::Adapter& adapter,
                                  const models::WeightMap& map);

/// adapter_config.json of an adapter; `base`: how it names its base; `objective`: of the model.
json::Value peft_config(const models::Adapter& adapter,
                        const std::string& base,
                        const std::string& objective);

/// The tensors of adapter_model.safetensors, fp32, of `weights` under our names. Memory: one matrix
/// at a time while it is read.
std::vector<checkpoint::StreamedTensor> peft_tensors(const models::Adapter& adapter,
                                                     const models::WeightMap& map,
                                                     models::WeightSource weights);

/// Writes both files into `folder`, which exists. Error{Io}.
void write_peft(const std::filesystem::path& folder,
                const json::Value& config,
                const std::vector<checkpoint::StreamedTensor>& tensors);

}  // namespace tessera::interop
