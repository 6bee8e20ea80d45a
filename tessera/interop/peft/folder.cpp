// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/folder.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/peft/layout.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using models::AdapterModule;

/// The version whose layout folders have that are written here.
constexpr const char* kPeftVersion = "0.19.0";

/// Keys that change what an adapter or its base computes, and are not implemented.
constexpr std::array<std::string_view, 14> kNotBuilt = {"alora_invocation_tokens",
                                                        "arrow_config",
                                                        "corda_config",
                                                        "kasa_config",
                                                        "layer_replication",
                                                        "lora_bias",
                                                        "lora_ga_config",
                                                        "monteclora_config",
                                                        "trainable_token_indices",
                                                        "use_bdlora",
                                                        "use_qalora",
                                                        "velora_config",
                                                        "loftq_config",
                                                        "auto_mapping_of_tokens"};

/// True if a value is set: not null, false or empty.
bool is_set(const json::Value* value) {
  if (value == nullptr || value->is_null()) return false;
  if (value->is_bool()) return value->as_bool();
  if (value->is_array()) return !value->items().empty();
  if (value->is_object()) return !value->members().empty();
  return true;
}

/// Reads typed values of adapter_config.json; a wrong type means damage.
class PeftKeys {
 public:
  PeftKeys(const json::Value& config, std::string file) : config_(config), file_(std::move(file)) {}
  [[nodiscard]] const json::Value* find(const char* key) const {
    const json::Value* value = config_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[nodiscard]] json::Value value(const char* key) const {
    const json::Value* found = find(key);
    return found == nullptr ? json::Value() : *found;
  }
  [[nodiscard]] double number(const char* key, double absent) const {
    const json::Value* found = find(key);
    if (found == nullptr) return absent;
    require(found->is_number(), key, "a number");
    return found->as_double();
  }
  [[nodiscard]] std::string string(const char* key, std::string absent) const {
    const json::Value* found = find(key);
    if (found == nullptr) return absent;
    require(found->is_string(), key, "a string");
    return found->as_string();
  }
  [[nodiscard]] bool boolean(const char* key) const {
    const json::Value* found = find(key);
    if (found == nullptr) return false;
    require(found->is_bool(), key, "true or false");
    return found->as_bool();
  }
  /// A string counts as a list of one.
  [[nodiscard]] std::vector<std::string> names(const char* key) const {
    const json::Value* found = find(key);
    if (found == nullptr) return {};
    if (found->is_string()) return {found->as_string()};
    require(found->is_array(), key, "a list of strings");
    std::vector<std::string> out;
    for (const json::Value& item : found->items()) {
      require(item.is_string(), key, "a list of strings");
      if (std::find(out.begin(), out.end(), item.as_string()) == out.end())
        out.push_back(item.as_string());
    }
    return out;
  }

 private:
  void require(bool holds, const char* key, const char* expected) const {
    TESSERA_REQUIRE(holds,
                    Format,
                    fmt::format("{}: {} should be {}", file_, key, expected),
                    "write the file again with PEFT");
  }

  const json::Value& config_;
  std::string file_;
};

models::AdapterBias bias_of(const std::string& word, const std::string& file) {
  for (const auto& [value, name] : models::kAdapterBiases) {
    if (name == word) return value;
  }
  throw Error(Error::Kind::Format,
              fmt::format("{}: bias is \"{}\"", file, word),
              "expected none, all or lora_only");
}

/// Before 0.19 PEFT stored the adapters of stacked parameters with inputs and outputs exchanged.
void require_recent(const std::string& version, const std::string& file) {
  int major = 0, minor = 0;
  const bool known = std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2;
  TESSERA_REQUIRE(known && (major > 0 || minor >= 19),
                  Unsupported,
                  fmt::format("{}: target_parameters of PEFT {}, which stores the adapters of "
                              "experts with inputs and outputs exchanged",
                              file,
                              version.empty() ? "before 0.19 (it has no peft_version)" : version),
                  "load and save it with PEFT 0.19 or later");
}

models::AdapterOptions options_of(const json::Value& config, const std::string& file) {
  TESSERA_REQUIRE(
      config.is_object(), Format, file + " is not an object", "name a folder of PEFT's");
  const PeftKeys keys(config, file);
  const std::string kind = keys.string("peft_type", "LORA");
  TESSERA_REQUIRE(text::lower(kind) == "lora",
                  Unsupported,
                  fmt::format("{}: adapters of the type {} are not built", file, kind),
                  "use LoRA, with or without rsLoRA and DoRA");
  for (const std::string_view key : kNotBuilt) {
    TESSERA_REQUIRE(!is_set(config.find(key)),
                    Unsupported,
                    fmt::format("{}: {} is not built yet", file, key),
                    "merge the adapter with PEFT and use the merged model");
  }
  const json::Value* begins = keys.find("init_lora_weights");
  TESSERA_REQUIRE(begins == nullptr || begins->is_bool() ||
                      (begins->is_string() && begins->as_string() == "gaussian"),
                  Unsupported,
                  fmt::format("{}: init_lora_weights {} changes the base, which is not built",
                              file,
                              begins == nullptr ? "" : begins->dump()),
                  "convert it to a plain adapter with PEFT (save_pretrained with "
                  "path_initial_model_for_weight_conversion)");
  models::AdapterOptions out;
  const bool stabilized = keys.boolean("use_rslora");
  out.type = keys.boolean("use_dora") ? "dora" : stabilized ? "rslora" : "lora";
  out.rank_stabilized = stabilized;
  const double rank = keys.number("r", 8);
  TESSERA_REQUIRE(rank >= 1 && rank <= 65536 && rank == static_cast<double>(static_cast<int>(rank)),
                  Format,
                  fmt::format("{}: r is {}", file, rank),
                  "a rank is a whole number from 1 on");
  out.r = static_cast<std::int64_t>(rank);
  out.alpha = keys.number("lora_alpha", 8);
  out.dropout = keys.number("lora_dropout", 0);
  TESSERA_REQUIRE(out.dropout >= 0 && out.dropout < 1,
                  Format,
                  fmt::format("{}: lora_dropout is {}", file, out.dropout),
                  "a probability is from 0 to below 1");
  out.targets = keys.value("target_modules");
  out.target_parameters = keys.names("target_parameters");
  if (!out.target_parameters.empty()) {
    require_recent(keys.string("peft_version", ""), file);
    if (out.targets.is_null()) out.targets = json::Value::array();
  }
  TESSERA_REQUIRE(!out.targets.is_null(),
                  Format,
                  fmt::format("{}: names no target_modules", file),
                  "name the adapted modules");
  out.exclude = keys.value("exclude_modules");
  out.rank_pattern = keys.value("rank_pattern");
  out.alpha_pattern = keys.value("alpha_pattern");
  out.layers = keys.value("layers_to_transform");
  if (out.layers.is_array() && out.layers.items().empty()) out.layers = {};
  out.layers_pattern = keys.names("layers_pattern");
  out.modules_to_save = keys.names("modules_to_save");
  out.bias = bias_of(keys.string("bias", "none"), file);
  return out;
}

}  // namespace

std::string plain_peft_name(std::string name) {
  if (name.starts_with(kPeftPrefix)) name.erase(0, kPeftPrefix.size());
  for (const std::string_view inserted : {".default", ".modules_to_save", ".base_layer"}) {
    const std::size_t at = name.find(inserted);
    const std::size_t behind = at == std::string::npos ? 0 : at + inserted.size();
    // The wrapper of one of two adapted parameters of a module is a part of its adapter's name.
    if (behind > 0 && inserted == ".base_layer" && name.substr(behind).starts_with(".lora_"))
      continue;
    if (behind > 0 && (behind == name.size() || name[behind] == '.'))
      name.erase(at, inserted.size());
  }
  constexpr std::string_view kOldMagnitude = ".lora_magnitude_vector.weight";
  if (name.ends_with(kOldMagnitude)) name.erase(name.size() - std::string_view(".weight").size());
  return name;
}

bool is_base_of_peft(const std::string& stored) {
  // The second is kept in addition to a copy that is trained.
  return stored.ends_with(".base_layer.weight") ||
         stored.find(".original_module.") != std::string::npos;
}

namespace {

std::int64_t numel_of(const Shape& shape) {
  std::int64_t out = 1;
  for (const std::int64_t size : shape)
    out *= size;
  return out;
}

std::vector<float> floats_of(const Weight& weight) {
  const auto numel = static_cast<std::size_t>(weight.numel());
  std::vector<std::byte> raw(numel * size_of(weight.dtype));
  weight.copy(0, weight.numel(), raw.data());
  std::vector<float> out(numel);
  checkpoint::convert(weight.dtype,
                      raw.data(),
                      DType::F32,
                      reinterpret_cast<std::byte*>(out.data()),
                      weight.numel());
  return out;
}

bool is_in_saved_module(const std::string& stored) {
  return stored.find(".modules_to_save.") != std::string::npos;
}

}  // namespace

bool is_peft(const fs::path& folder) {
  std::error_code failed;
  return fs::is_regular_file(folder / "adapter_config.json", failed);
}

PeftFolder open_peft(const fs::path& folder) {
  const fs::path file = folder / "adapter_config.json";
  TESSERA_REQUIRE(is_peft(folder),
                  Format,
                  fmt::format("{} has no adapter_config.json", folder.string()),
                  "name a folder that PEFT saved");
  const json::Value config = json::parse_strict(text::read_small_file(file), file.string());
  PeftFolder out;
  out.folder = folder;
  out.options = options_of(config, file.string());
  out.base = PeftKeys(config, file.string()).string("base_model_name_or_path", "");
  for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"}) {
    if (!fs::exists(folder / name)) continue;
    out.tensors = open_weight_file(folder / name);
    return out;
  }
  throw Error(Error::Kind::Format,
              fmt::format("{} has neither adapter_model.safetensors nor adapter_model.bin",
                          folder.string()),
              "copy all files of the folder");
}

fs::path base_of(const PeftFolder& peft) {
  TESSERA_REQUIRE(!peft.base.empty(),
                  Config,
                  fmt::format("{} does not say which model it adapts", peft.folder.string()),
                  "write base_model_name_or_path into adapter_config.json");
  for (const fs::path& path : {fs::path(peft.base), peft.folder / peft.base}) {
    if (fs::exists(path)) return path;
  }
  throw Error(
      Error::Kind::Config,
      fmt::format("{} adapts {}, which is not a folder here", peft.folder.string(), peft.base),
      "write the folder of that model into base_model_name_or_path of "
      "adapter_config.json; models are not downloaded");
}

models::WeightSource peft_weights(const PeftFolder& peft,
                                  const models::Adapter& adapter,
                                  const models::WeightMap& map) {
  std::map<std::string, Weight> by_name;
  std::vector<std::string> missing, unexpected, misshapen;
  for (const Weight& weight : peft.tensors) {
    if (is_base_of_peft(weight.name)) continue;
    std::string name = plain_peft_name(weight.name);
    if (map.known_as != nullptr) name = map.known_as(std::move(name));
    const auto [other, fresh] = by_name.emplace(std::move(name), weight);
    // With biases "all" PEFT writes those of modules that are trained whole twice.
    const bool twice = is_in_saved_module(weight.name) != is_in_saved_module(other->second.name);
    if (!fresh && !twice) unexpected.push_back(weight.name);
  }
  struct Held {
    PeftLayout layout;
    std::map<std::string, Weight> weights;
  };
  auto held = std::make_shared<Held>();
  held->layout = layout_of(adapter, map);
  for (const auto& [parameter, tensors] : held->layout) {
    for (const PeftTensor& tensor : tensors) {
      const auto found = by_name.find(tensor.name);
      if (found == by_name.end()) {
        missing.push_back(tensor.stored);
      } else if (found->second.shape != tensor.shape ||
                 !checkpoint::convertible(found->second.dtype, DType::F32)) {
        misshapen.push_back(fmt::format("{} [{}] instead of [{}]",
                                        found->second.name,
                                        fmt::join(found->second.shape, ", "),
                                        fmt::join(tensor.shape, ", ")));
      } else {
        held->weights.insert(*found);
      }
    }
  }
  for (const auto& [name, weight] : by_name) {
    const bool used = held->weights.contains(name);
    const bool of_wrong_shape =
        std::any_of(misshapen.begin(), misshapen.end(), [&](const std::string& line) {
          return line.starts_with(weight.name + " ");
        });
    if (!used && !of_wrong_shape) unexpected.push_back(weight.name);
  }
  std::string lines;
  const auto tell = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      lines += fmt::format("\n  {} ({}): {}", what, names.size(), text::join_some(names, ", "));
  };
  tell("missing", missing);
  tell("unexpected", unexpected);
  tell("of another shape", misshapen);
  TESSERA_REQUIRE(
      lines.empty(),
      Format,
      fmt::format(
          "{} does not fit its base and its adapter_config.json{}", peft.folder.string(), lines),
      "use the base that the adapter was trained on");
  return [held](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    std::vector<float> whole(static_cast<std::size_t>(info.numel()));
    for (const PeftTensor& tensor : held->layout.at(info.name))
      tensor.into(floats_of(held->weights.at(tensor.name)), whole.data());
    std::copy(whole.begin() + begin, whole.begin() + end, out);
  };
}

json::Value peft_config(const models::Adapter& adapter,
                        const std::string& base,
                        const std::string& objective) {
  const models::AdapterOptions& options = adapter.options;
  static const std::map<std::string, const char*, std::less<>> kTasks = {
      {"causal_lm", "CAUSAL_LM"},
      {"sequence_classification", "SEQ_CLS"},
      {"token_classification", "TOKEN_CLS"},
      {"seq2seq_lm", "SEQ_2_SEQ_LM"}};
  const auto task = kTasks.find(objective);
  const auto strings = [](const auto& names) {
    json::Value out = json::Value::array();
    for (const std::string& name : names)
      out.push_back(json::Value::string(name));
    return out;
  };
  // Full names select the same modules, whatever other modules the reading program finds in the
  // model.
  std::set<std::string> modules, parameters;
  json::Value ranks = json::Value::object(), alphas = json::Value::object();
  bool transposed = false;
  const models::AdapterRules rules(options);
  for (const AdapterModule& module : adapter.modules) {
    if (!module.parameter.empty()) parameters.insert(module.parameter);
    transposed = transposed || module.transposed;
    const std::vector<std::string> names =
        module.experts > 0 ? module.stored : std::vector<std::string>{module.part.module};
    for (const std::string& name : names) {
      if (module.parameter.empty()) modules.insert(name);
      if (module.part.rank != options.r) ranks[name] = json::Value::integer(module.part.rank);
      if (rules.alpha(name) != options.alpha) alphas[name] = json::Value::number(rules.alpha(name));
    }
  }
  static constexpr std::array<const char*, 3> kBiases = {"none", "all", "lora_only"};
  return json::Value::object(
      {{"peft_type", json::Value::string("LORA")},
       {"task_type", task == kTasks.end() ? json::Value() : json::Value::string(task->second)},
       {"base_model_name_or_path", json::Value::string(base)},
       {"revision", json::Value()},
       {"inference_mode", json::Value::boolean(true)},
       {"r", json::Value::integer(options.r)},
       {"lora_alpha", json::Value::number(options.alpha)},
       {"lora_dropout", json::Value::number(options.dropout)},
       {"target_modules", strings(modules)},
       {"target_parameters", parameters.empty() ? json::Value() : strings(parameters)},
       {"peft_version", json::Value::string(kPeftVersion)},
       {"rank_pattern", std::move(ranks)},
       {"alpha_pattern", std::move(alphas)},
       {"modules_to_save",
        options.modules_to_save.empty() ? json::Value() : strings(options.modules_to_save)},
       {"bias", json::Value::string(kBiases.at(static_cast<std::size_t>(options.bias)))},
       {"fan_in_fan_out", json::Value::boolean(transposed)},
       {"init_lora_weights", json::Value::boolean(true)},
       {"use_rslora", json::Value::boolean(options.rank_stabilized || options.type == "rslora")},
       {"use_dora", json::Value::boolean(options.has_magnitude())}});
}

std::vector<checkpoint::StreamedTensor> peft_tensors(const models::Adapter& adapter,
                                                     const models::WeightMap& map,
                                                     models::WeightSource weights) {
  const auto layout = std::make_shared<const PeftLayout>(layout_of(adapter, map));
  const auto source = std::make_shared<const models::WeightSource>(std::move(weights));
  std::vector<checkpoint::StreamedTensor> out;
  for (const auto& [parameter, tensors] : *layout) {
    for (const PeftTensor& tensor : tensors) {
      const std::shared_ptr<const ParamInfo> info = adapter.parameters.at(parameter);
      out.push_back(
          {tensor.stored,
           DType::F32,
           tensor.shape,
           [layout, source, info, &tensor](std::int64_t begin, std::int64_t end, std::byte* to) {
             std::vector<float> ours(static_cast<std::size_t>(info->numel()));
             (*source)(*info, 0, info->numel(), ours.data());
             std::vector<float> theirs(static_cast<std::size_t>(numel_of(tensor.shape)));
             tensor.out_of(ours.data(), theirs);
             std::copy(theirs.begin() + begin, theirs.begin() + end, reinterpret_cast<float*>(to));
           },
           {},
           {}});
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& one, const auto& other) {
    return one.name < other.name;
  });
  return out;
}

void write_peft(const fs::path& folder,
                const json::Value& config,
                const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<checkpoint::TensorBytes> written;
  for (const checkpoint::StreamedTensor& tensor : tensors) {
    bytes.emplace_back(tensor.bytes());
    tensor.read(0, numel_of(tensor.shape), bytes.back().data());
    written.push_back({tensor.name, tensor.dtype, tensor.shape, bytes.back()});
  }
  checkpoint::write_safetensors(folder / "adapter_model.safetensors", written, {{"format", "pt"}});
  files::write_atomic(folder / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace tessera::interop
