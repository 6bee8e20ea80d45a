// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/presets.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/models/family.h"

namespace tessera::models {

std::vector<std::string> all_presets() {
  std::vector<std::string> out;
  for (const std::string& family : families().names()) {
    for (const Preset& preset : families().get(family).presets)
      out.push_back(preset.name);
  }
  return out;
}

std::optional<std::string> family_of_preset(std::string_view preset) {
  for (const std::string& family : families().names()) {
    const std::vector<Preset>& presets = families().get(family).presets;
    if (std::ranges::find(presets, preset, &Preset::name) != presets.end()) return family;
  }
  return std::nullopt;
}

void spell_out_family(json::Value& config) {
  json::Value* const model = config.is_object() ? config.find("model") : nullptr;
  if (model == nullptr || !model->is_object()) return;
  for (const char* const key : {"family", "from"}) {
    const json::Value* const given = model->find(key);
    if (given != nullptr && !given->is_null()) return;
  }
  const json::Value* const preset = model->find("preset");
  if (preset == nullptr || !preset->is_string()) return;
  const std::optional<std::string> known = text::nearest(preset->as_string(), all_presets());
  const std::optional<std::string> family = known ? family_of_preset(*known) : std::nullopt;
  if (!family) return;
  json::Value added = json::Value::string(*family);
  added.place = preset->place;
  (*model)["family"] = std::move(added);
}

}  // namespace tessera::models
