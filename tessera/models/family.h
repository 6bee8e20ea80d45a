// SPDX-License-Identifier: Apache-2.0
// The zoo's registry: a family resolves options into a shape, builds the blocks and knows the names
// of others' files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/gpt2.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Facts that the rest of the house needs of any model.
struct Resolved {
  json::Value
      description;  ///< resolved `model` section: written to config.json and compared at resume
  nn::Model model;
  std::int64_t vocab_size = 0;
  std::int64_t tokenizer_size = 0;
  std::int64_t max_positions = 0;
  std::int64_t num_parameters = 0;
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0;
};

/// Fills [begin, end) elements (row-major, global) of the named parameter from files, as fp32.
using WeightSource =
    std::function<void(const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out)>;

/// How a parameter of ours stands in Hugging Face's files: full name, its shape there, and whether
/// that is our matrix transposed (Conv1D stores [in, out]).
struct HfTensor {
  std::string name;
  Shape shape;
  bool transposed = false;
};

struct Family {
  /// Pure: never opens `model.from` (see merge_options). The description leaves out preset and
  /// from. Presets, given fields, `tokenizer_size` and `sequence_length` -> a model. Cross
  /// checks go to `problems`.
  Resolved (*resolve)(const ModelOptions& options,
                      std::int64_t tokenizer_size,
                      std::optional<std::int64_t> sequence_length,
                      config::Problems& problems,
                      const config::Origins& origins);
  std::vector<std::string> presets;
  /// Reads a Hugging Face config.json into options (keys honoured or refused by name, Error{Format}
  /// or Error{Unsupported}).
  ModelOptions (*options_from_hf)(const json::Value& hf_config);
  HfTensor (*hf_tensor)(const ParamInfo& info);
};
Registry<Family>& families();
/// The family that a config.json of a Hugging Face folder asks for: Error{Unsupported} with the
/// nearest one that is built.
const Family& family_of_hf(const json::Value& hf_config);
/// Options where `model.from` names a model that was described by `out`: its shape, and what the
/// user wrote over it where that may differ (dropout, label smoothing, init_std). Keys that
/// contradict the weights go to `problems`.
ModelOptions merge_options(const ModelOptions& given,
                           ModelOptions out,
                           config::Problems& problems,
                           const config::Origins& origins);
#define TESSERA_MODEL(name, family) \
  static const bool tessera_model_registered = ::tessera::models::families().add(name, family)

}  // namespace tessera::models
