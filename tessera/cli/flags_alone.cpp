// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/flags_alone.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/config/overrides.h"
#include "tessera/interop/foreign_keys.h"
#include "tessera/models/family.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

bool is_preset(const std::string& name) {
  for (const std::string& family : models::families().names()) {
    for (const models::Preset& preset : models::families().get(family).presets) {
      if (preset.name == name) return true;
    }
  }
  return false;
}

/// True for a folder, a .gguf file, a run, or a model of that name on this machine; a preset takes
/// precedence.
bool is_path(const std::string& name) {
  std::error_code ignored;
  return !is_preset(name) && (fs::exists(name, ignored) || hub::find_model(name));
}

bool sets(const interop::ForeignFlags& flags, std::initializer_list<std::string_view> keys) {
  return std::any_of(flags.settings.begin(), flags.settings.end(), [&](const auto& setting) {
    return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) {
      return setting.key == key || setting.key.starts_with(std::string(key) + ".");
    });
  });
}

void drop(json::Value& source, std::initializer_list<std::string_view> keys) {
  std::erase_if(source.members(), [&](const auto& member) {
    return std::find(keys.begin(), keys.end(), member.first) != keys.end();
  });
}

}  // namespace

void add_model_and_data(const std::string& model,
                        const std::string& data,
                        interop::ForeignFlags& flags) {
  if (!model.empty()) {
    flags.settings.push_back(
        {"--model", is_path(model) ? "model.from" : "model.preset", json::Value::string(model)});
  }
  if (!data.empty()) flags.settings.push_back({"--data", "data.train", json::Value::string(data)});
}

json::Value configuration_from_flags(const std::string& model,
                                     const std::string& data,
                                     const interop::ForeignFlags& flags) {
  const bool has_data = !data.empty() || sets(flags, {"data.train"});
  TESSERA_REQUIRE(has_data,
                  Config,
                  "tessera train: CONFIG is missing",
                  "tessera init nano --data my.txt > my.json; tessera train my.json, or from flags "
                  "alone: tessera train --model nano --data my.txt");
  const bool sized = model.empty() ? sets(flags, {"model"}) : is_path(model);
  json::Value out = json::parse(configuration_for(sized || model.empty() ? "nano" : model, data),
                                "the defaults of tessera init");
  // The preset's sizes do not apply to another model.
  if (sized) drop(out, {"model", "tokenizer"});
  if (sets(flags,
           {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}))
    drop(out, {"train_batch_size", "gradient_accumulation_steps"});
  // The schedule of `tessera init` belongs to its learning rate: its lowest rate may be above
  // another one. Without a schedule the other programs let their rate fall linearly to 0.
  const bool has_rate = sets(flags, {"optimizer.lr", interop::foreign_keys::kLoraRate});
  const bool has_schedule =
      sets(flags, {"scheduler", interop::foreign_keys::kWarmup, interop::foreign_keys::kRatio});
  if (has_rate || has_schedule) drop(out, {"scheduler"});
  if (has_rate && !has_schedule)
    config::set_key(out, "scheduler.type", json::Value::string("linear"), "tessera train");
  if (sets(flags, {"data.sequence_length", "model.max_positions"}) || sized) {
    if (json::Value* const section = out.find("data")) drop(*section, {"sequence_length"});
  }
  if (sets(flags, {"data.validation"})) {
    if (json::Value* const section = out.find("data")) drop(*section, {"validation_fraction"});
  }
  if (sets(flags, {"trainer.max_steps", "trainer.epochs"})) drop(out, {"trainer"});
  if (has_rate) drop(out, {"optimizer"});
  if (sets(flags, {"bf16", "fp16"})) drop(out, {"bf16"});
  return out;
}

std::string name_from_flags(const std::string& model) {
  const std::string name = fs::path(model).stem().string();
  return name.empty() ? "run" : name;
}

}  // namespace tessera::cli
