// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/python_classes.h"

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

}  // namespace tessera::interop
