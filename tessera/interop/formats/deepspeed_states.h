// SPDX-License-Identifier: Apache-2.0
// What the model_states of DeepSpeed say of parameters, in every form of its checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop::deepspeed {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
};

/// Of {name: shape}, in its order. Error{Format} with the file where that is none, or a shape
/// cannot be.
std::vector<Parameter> shapes_of(const std::filesystem::path& file, const json::Value& members);
/// param_shapes: a list of such dicts, one a group; a lone one before DeepSpeed 0.3.17.
std::vector<std::vector<Parameter>> groups_of(const std::filesystem::path& file,
                                              const json::Value& param_shapes);
/// The word in `latest` or `latest_universal`; nothing where there is no such file, or it holds no
/// plain name.
std::optional<std::string> tag_in(const std::filesystem::path& file);
/// shared_params: alias -> the parameter that it is another name of.
std::map<std::string, std::string> aliases_of(const json::Value& model_states);
/// Names of the module without its buffers, in its order; empty where the file has no module.
std::vector<std::string> parameters_of(const json::Value& model_states);

}  // namespace tessera::interop::deepspeed
