// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {

std::string GptNames::in_layer(std::int64_t layer, std::string_view module) const {
  return fmt::format("{}{}.{}", layers, layer, module);
}

json::Value GptNames::config_of(const json::Value& facts) const {
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(model_type)}});
  for (const auto& [key, value] : facts.members()) {
    const auto named = std::find_if(config.begin(), config.end(), [fact = &key](const auto& entry) {
      return entry.first == *fact;
    });
    out[named == config.end() ? key : named->second] = value;
  }
  return out;
}

Registry<GptNames>& gpt_names() {
  static Registry<GptNames> names("family of GPT models");
  return names;
}

const GptNames& names_of_gpt(const std::string& what) {
  const auto families = gpt_names().names();
  TESSERA_REQUIRE(!families.empty(),
                  Unsupported,
                  fmt::format("{}: is a GPT, and no family of such models is built", what),
                  "read it with a program that has one");
  return gpt_names().get(families.front());
}

}  // namespace tessera::models
