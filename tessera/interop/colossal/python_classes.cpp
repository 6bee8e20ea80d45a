// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/colossal/python_classes.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/models/family.h"

namespace tessera::interop {

std::string python_class_name(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}

std::optional<std::string> preset_of_python_class(const std::string& name) {
  std::string wanted = text::lower(python_class_name(name));
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  for (const std::string& family : models::families().names()) {
    for (const models::Preset& preset : models::families().get(family).presets)
      if (preset.name == wanted) return wanted;
  }
  return std::nullopt;
}

void decay_as_torch(json::Value& config) {
  const auto object = [](json::Value* value) {
    return value != nullptr && value->is_object() ? value : nullptr;
  };
  json::Value* const optimizer = object(config.find("optimizer"));
  json::Value* const params = optimizer == nullptr ? nullptr : object(optimizer->find("params"));
  const json::Value* const decay = params == nullptr ? nullptr : params->find("weight_decay");
  if (decay == nullptr || !decay->is_number() || decay->as_double() == 0) return;
  const json::Value* const type = optimizer->find("type");
  const bool is_adam =
      type != nullptr && type->is_string() && text::lower(type->as_string()) == "adam";
  if (is_adam && params->find("adamw_mode") == nullptr && params->find("adam_w_mode") == nullptr)
    (*params)["adam_w_mode"] = json::Value::boolean(false);
  if (optimizer->find("decay_all") == nullptr)
    (*optimizer)["decay_all"] = json::Value::boolean(true);
}

}  // namespace tessera::interop
