// SPDX-License-Identifier: Apache-2.0
// Information about parameters in DeepSpeed's model_states, for every form of its checkpoints.
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

/// Reads {name: shape}, in order. Throws Error{Format} with the file if the value is not such a
/// dict, or a shape is invalid.
std::vector<Parameter> shapes_of(const std::filesystem::path& file, const json::Value& members);
/// Reads param_shapes: a list of such dicts, one per group; before DeepSpeed 0.3.17 a single dict.
std::vector<std::vector<Parameter>> groups_of(const std::filesystem::path& file,
                                              const json::Value& param_shapes);
/// The tag in `latest` or `latest_universal`; nothing if there is no such file, or it does not
/// contain a plain name.
std::optional<std::string> tag_in(const std::filesystem::path& file);
/// Reads shared_params: maps an alias to the parameter with which it is tied.
std::map<std::string, std::string> aliases_of(const json::Value& model_states);
/// Names of the module's parameters, without buffers, in order; empty if the file has no module.
std::vector<std::string> parameters_of(const json::Value& model_states);

}  // namespace tessera::interop::deepspeed
