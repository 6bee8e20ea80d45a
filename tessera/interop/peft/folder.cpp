// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/folder.h"

#include <algorithm>
#include <array>
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
#include "tessera/text/small_file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using models::AdapterModule;

constexpr std::string_view kPrefix = "base_model.model.";

/// Keys that change what an adapter or its base computes, and are not implemented.
constexpr std::array<std::string_view, 15> kNotBuilt = {"alora_invocation_tokens",
                                                        "arrow_config",
                                                        "corda_config",
                                                        "kasa_config",
                                                        "layer_replication",
                                                        "lora_bias",
                                                        "lora_ga_config",
                                                        "monteclora_config",
                                                        "target_parameters",
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
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  for (const std::string_view inserted : {".default", ".modules_to_save", ".base_layer"}) {
    const std::size_t at = name.find(inserted);
    const std::size_t behind = at == std::string::npos ? 0 : at + inserted.size();
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

/// A tensor of the folder that corresponds to all or a part of a parameter.
struct PeftTensor {
  std::string name;  ///< plain_peft_name()
  Shape shape;
  std::string stored;  ///< the name that PEFT writes
  /// Copies it into the parameter.
  std::function<void(const std::vector<float>& theirs, float* ours)> into;
  /// Copies it out of the parameter.
  std::function<void(const float* ours, std::vector<float>& theirs)> out_of;
};

/// Rows of `width` floats; each row of the parameter corresponds to a row of the tensor.
PeftTensor of_rows(std::string name,
                   Shape shape,
                   const std::vector<std::int64_t>& rows,
                   std::int64_t count,
                   std::int64_t width) {
  PeftTensor out{std::move(name), std::move(shape), {}, {}, {}};
  out.stored = std::string(kPrefix) + out.name;
  const auto row_of = [rows](std::int64_t row) {
    return rows.empty() ? row : rows[static_cast<std::size_t>(row)];
  };
  out.into = [=](const std::vector<float>& theirs, float* ours) {
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(theirs.data() + row_of(row) * width, width, ours + row * width);
  };
  out.out_of = [=](const float* ours, std::vector<float>& theirs) {
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(ours + row * width, width, theirs.data() + row_of(row) * width);
  };
  return out;
}

/// A matrix that is stored transposed.
PeftTensor of_transposed(std::string name, std::int64_t rows, std::int64_t columns) {
  PeftTensor out{std::move(name), {columns, rows}, {}, {}, {}};
  out.stored = std::string(kPrefix) + out.name;
  out.into = [=](const std::vector<float>& theirs, float* ours) {
    for (std::int64_t i = 0; i < rows * columns; ++i)
      ours[i] = theirs[static_cast<std::size_t>((i % columns) * rows + i / columns)];
  };
  out.out_of = [=](const float* ours, std::vector<float>& theirs) {
    for (std::int64_t i = 0; i < rows * columns; ++i)
      theirs[static_cast<std::size_t>((i % columns) * rows + i / columns)] = ours[i];
  };
  return out;
}

/// The tensors that form each parameter of the adapter.
using PeftLayout = std::map<std::string, std::vector<PeftTensor>>;

void add_module(const AdapterModule& module, PeftLayout& out) {
  const std::int64_t rank = module.part.rank;
  const auto add = [&](const std::string& name, PeftTensor tensor) {
    out[name].push_back(std::move(tensor));
  };
  if (module.table) {
    add(module.a(), of_transposed(module.a(), module.outputs, rank));
    add(module.b(), of_rows(module.b(), {module.inputs, rank}, {}, module.inputs, rank));
    return;
  }
  add(module.a(), of_rows(module.a(), {rank, module.inputs}, {}, rank, module.inputs));
  add(module.b(), of_rows(module.b(), {module.outputs, rank}, module.rows, module.outputs, rank));
  if (!module.part.magnitude) return;
  add(module.magnitude(),
      of_rows(module.magnitude(), {module.outputs}, module.rows, module.outputs, 1));
}

/// Adds a parameter that is trained as a whole. Biases of adapted layers are stored inside these
/// layers.
void add_trained(const ParamInfo& info,
                 const models::WeightMap& map,
                 const std::set<std::string>& adapted,
                 PeftLayout& out) {
  const models::Composition composition = map.compose(info);
  for (const models::Composition::Part& part : composition.parts()) {
    const models::StridedCopy copy = composition.copy_of(part);
    PeftTensor tensor{part.tensor, part.tensor_shape, {}, {}, {}};
    const std::size_t dot = part.tensor.rfind('.');
    const std::string module = part.tensor.substr(0, dot);
    tensor.stored =
        std::string(kPrefix) +
        (adapted.contains(module) ? module + ".base_layer" + part.tensor.substr(dot) : part.tensor);
    const std::int64_t numel = info.numel();
    tensor.into = [copy, numel](const std::vector<float>& theirs, float* ours) {
      copy_range(
          copy,
          0,
          numel,
          [&](std::int64_t begin, std::int64_t end, float* to) {
            std::copy(theirs.begin() + begin, theirs.begin() + end, to);
          },
          ours);
    };
    tensor.out_of = [copy = copy.reversed()](const float* ours, std::vector<float>& theirs) {
      copy_range(
          copy,
          0,
          static_cast<std::int64_t>(theirs.size()),
          [&](std::int64_t begin, std::int64_t end, float* to) {
            std::copy(ours + begin, ours + end, to);
          },
          theirs.data());
    };
    out[info.name].push_back(std::move(tensor));
  }
}

PeftLayout layout_of(const models::Adapter& adapter, const models::WeightMap& map) {
  PeftLayout out;
  std::set<std::string> adapted;
  for (const AdapterModule& module : adapter.modules) {
    add_module(module, out);
    adapted.insert(module.part.module);
  }
  for (const std::string& name : adapter.trained)
    add_trained(*adapter.parameters.at(name), map, adapted, out);
  return out;
}

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
  std::set<std::string> modules;
  json::Value ranks = json::Value::object(), alphas = json::Value::object();
  bool transposed = false;
  const models::AdapterRules rules(options);
  for (const AdapterModule& module : adapter.modules) {
    const std::string& name = module.part.module;
    modules.insert(name);
    transposed = transposed || module.transposed;
    if (module.part.rank != options.r) ranks[name] = json::Value::integer(module.part.rank);
    if (rules.alpha(name) != options.alpha) alphas[name] = json::Value::number(rules.alpha(name));
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
