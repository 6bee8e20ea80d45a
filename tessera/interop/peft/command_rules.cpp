// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/command_rules.h"

#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"

namespace tessera::interop::peft {
namespace {

using Setting = ForeignFlags::Setting;

// PEFT 0.18, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
constexpr auto kTargets =
    std::to_array<std::pair<std::string_view, std::string_view>>({{"t5", "q v"},
                                                                  {"mt5", "q v"},
                                                                  {"gpt2", "c_attn"},
                                                                  {"bloom", "query_key_value"},
                                                                  {"opt", "q_proj v_proj"},
                                                                  {"gpt_neox", "query_key_value"},
                                                                  {"bert", "query value"},
                                                                  {"roberta", "query value"},
                                                                  {"xlm-roberta", "query value"},
                                                                  {"distilbert", "q_lin v_lin"},
                                                                  {"llama", "q_proj v_proj"},
                                                                  {"mistral", "q_proj v_proj"},
                                                                  {"mixtral", "q_proj v_proj"},
                                                                  {"gemma", "q_proj v_proj"},
                                                                  {"gemma2", "q_proj v_proj"},
                                                                  {"gemma3_text", "q_proj v_proj"},
                                                                  {"qwen2", "q_proj v_proj"},
                                                                  {"qwen3", "q_proj v_proj"},
                                                                  {"phi3", "qkv_proj"},
                                                                  {"olmo2", "q_proj v_proj"},
                                                                  {"smollm3", "q_proj v_proj"},
                                                                  {"glm", "q_proj v_proj"},
                                                                  {"glm4", "q_proj v_proj"}});

void set_targets(Meaning& meaning, const AdapterRules& rules) {
  std::vector<std::string> names = meaning.texts("@lora_targets");
  const Setting* from = meaning.find("@lora_targets");
  if (names.size() == 1 && (names[0] == "all-linear" || names[0] == "all")) return;
  if (names.empty() && rules.default_targets) {
    const json::Value* const model = meaning.value("model.from");
    if (model == nullptr || !model->is_string()) return;
    names = default_targets(model_type_of(model->as_string()));
    from = rules.from;
    if (names.empty()) {
      meaning.note(
          "the adapter is in all linear layers: PEFT's layers of this model are not known");
      return;
    }
  }
  if (names.empty()) return;
  json::Value list = json::Value::array();
  for (std::string& name : names) {
    std::erase_if(name, [](char c) { return c == '[' || c == ']' || c == '\'' || c == '"'; });
    if (!name.empty()) list.push_back(json::Value::string(name));
  }
  meaning.set("adapter.targets", std::move(list), from);
}

// Stacked matrices of experts. As in PEFT, they are all that is adapted if no layers are named.
void set_parameters(Meaning& meaning) {
  const Setting* const from = meaning.given("@lora_parameters");
  const std::vector<std::string> names = meaning.texts("@lora_parameters");
  if (names.empty()) return;
  json::Value list = json::Value::array();
  for (const std::string& name : names)
    list.push_back(json::Value::string(name));
  meaning.set("adapter.target_parameters", std::move(list), from);
  if (meaning.given("@lora_targets") == nullptr)
    meaning.set("adapter.targets", json::Value::array(), from);
}

}  // namespace

std::vector<std::string> default_targets(const std::string& model_type) {
  std::vector<std::string> out;
  for (const auto& [type, names] : kTargets) {
    if (type != model_type) continue;
    std::string_view rest = names;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      out.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return out;
}

std::string model_type_of(const std::string& folder) {
  try {
    const std::filesystem::path file = hub::model_path(folder) / "config.json";
    const json::Value config = json::parse_strict(files::read(file), file.string());
    const json::Value* const type = config.is_object() ? config.find("model_type") : nullptr;
    return type != nullptr && type->is_string() ? type->as_string() : "";
  } catch (const Error&) {
    return "";  // the training reports what is wrong with the folder
  }
}

void set_adapter(Meaning& meaning, const AdapterRules& rules) {
  const bool rslora = meaning.is_on("@rslora"), dora = meaning.is_on("@dora");
  meaning.set("adapter.type",
              json::Value::string(dora     ? "dora"
                                  : rslora ? "rslora"
                                           : "lora"),
              dora     ? meaning.find("@dora")
              : rslora ? meaning.find("@rslora")
                       : rules.from);
  if (dora && rslora)
    meaning.set("adapter.rank_stabilized", json::Value::boolean(true), meaning.find("@rslora"));
  meaning.copy("adapter.r", meaning.find("@lora_r"));
  meaning.copy("adapter.alpha", meaning.find("@lora_alpha"));
  meaning.copy("adapter.dropout", meaning.find("@lora_dropout"));
  set_targets(meaning, rules);
  set_parameters(meaning);
  if (const Setting* const save = meaning.given("@lora_save")) {
    json::Value list = json::Value::array();
    for (const std::string& name : meaning.texts("@lora_save"))
      list.push_back(json::Value::string(name));
    meaning.set("adapter.modules_to_save", std::move(list), save);
  }
  const bool nf4 = meaning.is_on("@nf4"), int8 = meaning.is_on("@int8");
  if (nf4 && int8) {
    meaning.refuse("weights in four and in eight bits at once", "keep one of them");
  } else if (nf4 || int8) {
    const Setting* const from = meaning.find(nf4 ? "@nf4" : "@int8");
    meaning.set("adapter.quantize_base", json::Value::string(nf4 ? "nf4" : "int8"), from);
    if (nf4)
      meaning.set("adapter.double_quantization",
                  json::Value::boolean(meaning.is_on("@nested")),
                  meaning.find("@nested"));
    const std::string type = meaning.text("@nf4_type", "nf4");
    if (nf4 && type != "nf4")
      meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@nf4_type")->flag, type),
                     "use nf4");
  }
}

}  // namespace tessera::interop::peft
