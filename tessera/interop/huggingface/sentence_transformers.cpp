// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/sentence_transformers.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {
namespace {
namespace fs = std::filesystem;

constexpr std::int64_t kLongest = 100'000'000;

json::Value read_object(const fs::path& path) {
  json::Value out = json::parse_strict(text::read_small_file(path), path.string());
  TESSERA_REQUIRE(out.is_object(),
                  Format,
                  path.string() + " is not a JSON object",
                  "copy the file again from where the model was published");
  return out;
}

/// The flag; false where it is absent or null.
bool flag(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && !value->is_null() && value->as_bool();
}

std::string word(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && !value->is_null() ? value->as_string() : "";
}

/// "Pooling" of "sentence_transformers.models.Pooling".
std::string kind_of(const json::Value& module) {
  const std::string type = word(module, "type");
  return type.substr(type.rfind('.') + 1);
}

/// The folder of a module, which must be inside the model's.
fs::path folder_of(const fs::path& model, const json::Value& module, const std::string& place) {
  const fs::path inside = word(module, "path");
  const bool leaves =
      std::ranges::any_of(inside, [](const fs::path& part) { return part == ".."; });
  TESSERA_REQUIRE(
      !inside.is_absolute() && !leaves,
      Format,
      fmt::format("{}: the path \"{}\" leads out of the folder", place, inside.string()),
      "copy the files again from where the model was published");
  return inside.empty() ? model : model / inside;
}

void read_pooling(const fs::path& folder, SentenceModel& out) {
  constexpr std::array<std::pair<const char*, const char*>, 6> kModes = {{
      {"pooling_mode_cls_token", "cls"},
      {"pooling_mode_mean_tokens", "mean"},
      {"pooling_mode_lasttoken", "last"},
      {"pooling_mode_max_tokens", "max"},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
      {"pooling_mode_weightedmean_tokens", "weightedmean"},
  }};
  const fs::path path = folder / "config.json";
  const json::Value config = read_object(path);
  std::vector<std::string> modes;
  for (const auto& [key, mode] : kModes) {
    if (flag(config, key)) modes.emplace_back(mode);
  }
  if (const std::string mode = word(config, "pooling_mode"); !mode.empty())
    modes = {mode == "lasttoken" ? "last" : mode};
  constexpr std::array<std::string_view, 3> kBuilt = {"cls", "mean", "last"};
  TESSERA_REQUIRE(
      modes.size() == 1 && std::ranges::find(kBuilt, modes.front()) != kBuilt.end(),
      Unsupported,
      fmt::format("{}: {}",
                  path.string(),
                  modes.empty()      ? std::string("no way of pooling is chosen")
                  : modes.size() > 1 ? std::string("several ways of pooling side by side")
                                     : fmt::format("pooling by {} is not built", modes.front())),
      "use a model that pools by cls, mean or lasttoken, or name one of them with --pooling");
  out.pooling = modes.front();
  const json::Value* prompts = config.find("include_prompt");
  TESSERA_REQUIRE(out.prompt.empty() || prompts == nullptr || prompts->as_bool(),
                  Unsupported,
                  path.string() + ": the tokens of the prompt are left out of the embedding",
                  "use a model whose include_prompt is true");
}

/// Reads sentence_bert_config.json, or the corresponding file of another family.
void read_limits(const fs::path& folder, SentenceModel& out) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("sentence_") && name.ends_with("_config.json"))
      found.push_back(entry.path());
  }
  std::ranges::sort(found);
  if (found.empty()) return;
  const json::Value config = read_object(found.front());
  out.lower_case = flag(config, "do_lower_case");
  const json::Value* most = config.find("max_seq_length");
  if (most == nullptr || most->is_null()) return;
  out.max_tokens = most->as_integer();
  TESSERA_REQUIRE(out.max_tokens && *out.max_tokens >= 1 && *out.max_tokens <= kLongest,
                  Format,
                  fmt::format("{}: max_seq_length {}", most->place.text(), most->dump()),
                  fmt::format("give an integer from 1 to {}", kLongest));
}

/// Reads the model's default prompt.
void read_prompt(const fs::path& folder, SentenceModel& out) {
  const fs::path path = folder / "config_sentence_transformers.json";
  if (!fs::exists(path)) return;
  const json::Value config = read_object(path);
  const std::string name = word(config, "default_prompt_name");
  if (name.empty()) return;
  const json::Value* prompts = config.find("prompts");
  const json::Value* prompt =
      prompts != nullptr && prompts->is_object() ? prompts->find(name) : nullptr;
  TESSERA_REQUIRE(prompt != nullptr && prompt->is_string(),
                  Format,
                  fmt::format("{}: there is no prompt \"{}\"", path.string(), name),
                  "copy the file again from where the model was published");
  out.prompt = prompt->as_string();
}

}  // namespace

std::optional<SentenceModel> sentence_model_of(const fs::path& folder) {
  const fs::path path = folder / "modules.json";
  if (!fs::is_directory(folder) || !fs::exists(path)) return std::nullopt;
  const json::Value modules = json::parse_strict(text::read_small_file(path), path.string());
  SentenceModel out{.folder = folder};
  read_prompt(folder, out);
  bool transforms = false;
  for (const json::Value& module : modules.items()) {
    const std::string kind = kind_of(module);
    const fs::path inside = folder_of(folder, module, path.string());
    if (kind == "Transformer" && !transforms) {
      transforms = true;
      out.folder = inside;
      read_limits(inside, out);
    } else if (kind == "Pooling" && transforms && out.pooling.empty()) {
      read_pooling(inside, out);
    } else if (kind == "Normalize" && !out.pooling.empty()) {
      out.normalize = true;
    } else {
      TESSERA_REQUIRE(
          kind == "Dropout",  // does nothing outside of training
          Unsupported,
          fmt::format("{}: a module {} at this place is not built", path.string(), kind),
          "use a model of a Transformer, a Pooling and perhaps a Normalize");
    }
  }
  TESSERA_REQUIRE(!out.pooling.empty(),
                  Format,
                  path.string() + " names no Transformer with a Pooling behind it",
                  "copy the files again from where the model was published");
  return out;
}

std::optional<std::int64_t> tokenizer_limit_of(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::is_directory(folder) || !fs::exists(path)) return std::nullopt;
  const json::Value config = read_object(path);
  const json::Value* most = config.find("model_max_length");
  if (most == nullptr || !most->is_number()) return std::nullopt;
  const std::optional<std::int64_t> limit = most->as_integer();
  return limit && *limit >= 1 && *limit <= kLongest ? limit : std::nullopt;
}

}  // namespace tessera::interop
