// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/model_names.h"

#include <string>

#include "tessera/base/hub.h"

namespace tessera::config {

void resolve_model_names(json::Value& source) {
  if (source.is_array()) {
    for (json::Value& item : source.items())
      resolve_model_names(item);
  }
  if (!source.is_object()) return;
  for (auto& [key, value] : source.members()) {
    if (!value.is_string()) {
      resolve_model_names(value);
      continue;
    }
    if (key != "from" && key != "teacher") continue;
    std::string folder = hub::model_path(value.as_string()).string();
    if (folder == value.as_string()) continue;
    json::Value found = json::Value::string(std::move(folder));
    found.place = value.place;
    found.key_place = value.key_place;
    value = std::move(found);
  }
}

}  // namespace tessera::config
