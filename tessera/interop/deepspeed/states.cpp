// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/states.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/safetensors_header.h"

namespace tessera::interop::deepspeed {
namespace {

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all files of its folder again";

}  // namespace

std::vector<Parameter> shapes_of(const std::filesystem::path& file, const json::Value& members) {
  std::vector<Parameter> out;
  TESSERA_REQUIRE(members.is_object(),
                  Format,
                  fmt::format("{}: its param_shapes are not dicts", file.string()),
                  kCopy);
  for (const auto& [name, sizes] : members.members()) {
    Parameter parameter{name, {}, 0};
    bool sound = sizes.is_array() && sizes.items().size() <= checkpoint::kMaxDims;
    for (std::size_t d = 0; sound && d < sizes.items().size(); ++d) {
      const json::Value& size = sizes.items()[d];
      const auto count = size.is_number() ? size.as_integer() : std::nullopt;
      sound = count.has_value() && *count >= 0;
      parameter.shape.push_back(count.value_or(0));
    }
    parameter.numel = sound ? checkpoint::checked_numel(parameter.shape) : -1;
    TESSERA_REQUIRE(parameter.numel >= 0,
                    Format,
                    fmt::format("{}: the shape of {} is not a list of sizes", file.string(), name),
                    kCopy);
    out.push_back(std::move(parameter));
  }
  return out;
}

std::vector<std::vector<Parameter>> groups_of(const std::filesystem::path& file,
                                              const json::Value& param_shapes) {
  std::vector<std::vector<Parameter>> out;
  if (param_shapes.is_object()) {
    out.push_back(shapes_of(file, param_shapes));
    return out;
  }
  TESSERA_REQUIRE(param_shapes.is_array(),
                  Format,
                  fmt::format("{}: its param_shapes are not a list", file.string()),
                  kCopy);
  for (const json::Value& group : param_shapes.items())
    out.push_back(shapes_of(file, group));
  return out;
}

std::optional<std::string> tag_in(const std::filesystem::path& file) {
  constexpr std::uintmax_t kMaxBytes = 4096;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(file, failed) ||
      std::filesystem::file_size(file, failed) > kMaxBytes) {
    return std::nullopt;
  }
  std::string tag(text::trim(files::read(file)));
  const bool plain =
      !tag.empty() && tag != "." && tag != ".." && std::filesystem::path(tag).filename() == tag;
  return plain ? std::optional(std::move(tag)) : std::nullopt;
}

std::map<std::string, std::string> aliases_of(const json::Value& model_states) {
  std::map<std::string, std::string> out;
  const json::Value* shared =
      model_states.is_object() ? model_states.find("shared_params") : nullptr;
  if (shared == nullptr || !shared->is_object()) return out;
  for (const auto& [alias, name] : shared->members()) {
    if (name.is_string() && name.as_string() != alias) out.emplace(alias, name.as_string());
  }
  return out;
}

std::vector<std::string> parameters_of(const json::Value& model_states) {
  std::vector<std::string> out;
  const auto find = [&](const char* key) {
    return model_states.is_object() ? model_states.find(key) : nullptr;
  };
  const json::Value *module = find("module"), *listed = find("buffer_names");
  if (module == nullptr || !module->is_object()) return out;
  std::set<std::string> buffers;
  for (std::size_t i = 0; listed != nullptr && listed->is_array() && i < listed->items().size();
       ++i) {
    if (listed->items()[i].is_string()) buffers.insert(listed->items()[i].as_string());
  }
  for (const auto& [name, tensor] : module->members()) {
    if (buffers.count(name) == 0) out.push_back(name);
  }
  return out;
}

}  // namespace tessera::interop::deepspeed
