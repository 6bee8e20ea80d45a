// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/family.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/objective.h"

namespace tessera::models {

Registry<Family>& families() {
  static Registry<Family> registry("model family");
  return registry;
}

const std::string& default_family() {
  static const std::string name = [] {
    for (const std::string& family : families().names()) {
      if (families().get(family).is_default) return family;
    }
    throw Error(Error::Kind::Bug, "no model family is the default", "");
  }();
  return name;
}

namespace {

/// The family of the text part of files of this type; nothing if there is none.
std::optional<std::string> family_of_text_in(const std::string& type) {
  for (const std::string& family : families().names()) {
    const auto& types = families().get(family).text_of;
    if (std::ranges::find(types, type) != types.end()) return family;
  }
  return std::nullopt;
}

/// The config.json of the text part, completed with the values that the whole file sets for all its
/// parts.
json::Value text_config_of(const json::Value& whole) {
  const json::Value* text = whole.find("text_config");
  TESSERA_REQUIRE(text != nullptr && text->is_object(),
                  Format,
                  whole.place.text() + ": no \"text_config\" that describes the text model",
                  "fetch config.json again");
  json::Value out = *text;
  for (const char* const key : {"quantization_config", "tie_word_embeddings"}) {
    const json::Value* said = whole.find(key);
    if (said != nullptr && out.find(key) == nullptr) out[key] = *said;
  }
  return out;
}

}  // namespace

namespace {

/// Says which kind of model a config.json of a family that is not built describes; nullptr: neither
/// of these.
const char* unbuilt_kind(const json::Value& hf_config) {
  for (const char* const key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const json::Value* experts = hf_config.find(key);
    if (experts != nullptr && experts->is_number() && experts->as_double() > 1)
      return ", and neither are other mixtures of experts than those that docs/models.md lists";
  }
  for (const char* const key : {"num_mel_bins", "feat_extract_norm", "input_feat_per_channel"}) {
    if (hf_config.find(key) != nullptr) return ", and neither are other models of speech";
  }
  return nullptr;
}

/// Lower case without separators: "GPTNeoX" and "gpt_neox" are "gptneox".
std::string condensed(std::string_view name) {
  std::string out = text::lower(name);
  std::erase_if(out, [](char c) { return c == '_' || c == '-'; });
  return out;
}

/// The fix for a config.json without model_type: the family with the longest name with which the
/// name of the architecture begins, or else all families.
std::string fix_of_unnamed(const json::Value& hf_config) {
  const json::Value* const names = hf_config.find("architectures");
  const bool named = names != nullptr && names->is_array() && !names->items().empty() &&
                     names->items().front().is_string();
  const std::string architecture = named ? names->items().front().as_string() : "";
  std::string best;
  for (const std::string& family : families().names()) {
    if (condensed(architecture).starts_with(condensed(family)) && family.size() > best.size())
      best = family;
  }
  if (!best.empty())
    return fmt::format("add \"model_type\": \"{}\", the family of {}", best, architecture);
  return fmt::format("add \"model_type\" with one of {}", text::join(families().names(), ", "));
}

}  // namespace

std::string family_of_hf(const json::Value& hf_config) {
  const json::Value* type = hf_config.find("model_type");
  TESSERA_REQUIRE(type != nullptr && type->is_string(),
                  Format,
                  hf_config.place.text() + ": no \"model_type\" that names the architecture",
                  fix_of_unnamed(hf_config));
  const auto names = families().names();
  if (const auto text = family_of_text_in(type->as_string())) return *text;
  const bool known = families().has(type->as_string());
  const char* const kind = known ? nullptr : unbuilt_kind(hf_config);
  TESSERA_REQUIRE(known,
                  Unsupported,
                  fmt::format("{}: model_type \"{}\" is not built yet{}",
                              type->place.text(),
                              type->as_string(),
                              kind != nullptr ? kind : ""),
                  kind != nullptr ? "choose a family that docs/models.md lists"
                                  : text::suggestion(type->as_string(), names));
  return type->as_string();
}

ModelOptions options_from_hf(const json::Value& hf_config) {
  const std::string family = family_of_hf(hf_config);
  const bool wrapped = hf_config.find("model_type")->as_string() != family;
  return {family, families().get(family).from_hf(wrapped ? text_config_of(hf_config) : hf_config)};
}

namespace {

/// Adds the keys whose values come from the named preset.
void add_derivations(const std::vector<Preset>& presets,
                     const FamilyOptions& options,
                     Resolved& out) {
  for (const Preset& preset : presets) {
    if (preset.name != options.preset) continue;
    const std::string origin = fmt::format("preset {}", preset.name);
    for (const PresetValue& value : preset.values)
      out.derivations[value.key] = origin;
    if (preset.vocab_size > 0 && out.vocab_size == preset.vocab_size)
      out.derivations["vocab_size"] = origin;
  }
}

}  // namespace

Resolved resolve(const ModelOptions& options,
                 std::int64_t tokenizer_size,
                 std::optional<std::int64_t> sequence_length,
                 config::Problems& problems,
                 const config::Origins& origins,
                 const ObjectiveChoice& objective) {
  const Family& family = families().get(options.family());
  Resolved out = family.resolve(*options, tokenizer_size, sequence_length, problems, origins);
  const std::string own = out.objective.name.empty() ? family.objective : out.objective.name;
  const std::string& name = objective.name.empty() ? own : objective.name;
  out.objective = {name, objective.options};
  json::Value chosen = out.objective_options;
  for (const auto& [key, value] : objective.options.members())
    chosen[key] = value;
  out.model = with_objective(out.trunk, name, chosen);
  add_derivations(family.presets, *options, out);
  // A family's facts describe a model with a causal language-modelling head.
  if (name != kDefaultObjective || out.num_parameters == 0) {
    const nn::ParamInfos head = nn::declared_by(out.model.blocks.back());
    out.tied_head = std::ranges::any_of(
        head, [&](const auto& info) { return info->name == out.trunk.output.vocabulary.name; });
    out.num_parameters = 0;
    for (const auto& info : nn::parameters_of(out.model))
      out.num_parameters += info->numel();
  }
  return out;
}

}  // namespace tessera::models
