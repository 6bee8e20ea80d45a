// SPDX-License-Identifier: Apache-2.0
// Adapters in PEFT folders: adapter_config.json and adapter_model.safetensors (or .bin).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/weights.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"

namespace tessera::interop {

/// The adapter in a folder; its tensors are in mapped files.
struct PeftFolder {
  std::filesystem::path folder;
  models::AdapterOptions options;
  std::string base;  ///< base_model_name_or_path
  std::vector<Weight> tensors;
};

/// True if the folder contains a PEFT adapter.
bool is_peft(const std::filesystem::path& folder);

/// Throws Error{Format} for a folder that lacks a file or is damaged, and Error{Unsupported} for
/// adapters other than LoRA and for keys that change the computation and are not implemented.
PeftFolder open_peft(const std::filesystem::path& folder);

/// A tensor's name without PEFT's prefixes and infixes.
std::string plain_peft_name(std::string name);
/// True for a weight of the base that PEFT writes together with an adapter or a trained copy of it.
bool is_base_of_peft(const std::string& stored);

/// The path of the base that the folder names, relative to the working directory or to the folder.
/// Throws Error{Config} if it does not exist.
std::filesystem::path base_of(const PeftFolder& peft);

/// The folder's values for Adapter::parameters, under tessera's names. Throws Error{Format} that
/// lists tensors that are missing, unexpected or of another shape. Memory: one matrix of an adapter
/// at a time. Can be used from any thread.
models::WeightSource peft_weights(const PeftFolder& peft,
                                  const models::Adapter& adapter,
                                  const models::WeightMap& map);

/// The adapter_config.json of an adapter; `base`: its name for the base; `objective`: that of the
/// model.
json::Value peft_config(const models::Adapter& adapter,
                        const std::string& base,
                        const std::string& objective);

/// The tensors of adapter_model.safetensors, fp32, from `weights` under tessera's names. Memory:
/// one matrix at a time while it is read.
std::vector<checkpoint::StreamedTensor> peft_tensors(const models::Adapter& adapter,
                                                     const models::WeightMap& map,
                                                     models::WeightSource weights);

/// Writes both files to `folder`, which must exist. Throws Error{Io}.
void write_peft(const std::filesystem::path& folder,
                const json::Value& config,
                const std::vector<checkpoint::StreamedTensor>& tensors);

}  // namespace tessera::interop
