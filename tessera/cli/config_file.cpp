// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/config_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/interop/colossal/python_literal.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{4} << 20;

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  unsigned bits = 0, have = 0;
  while (!text.empty() && text.back() == '=')
    text.remove_suffix(1);
  for (const char c : text) {
    unsigned value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<unsigned>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<unsigned>(c - 'a') + 26;
    else if (c >= '0' && c <= '9')
      value = static_cast<unsigned>(c - '0') + 52;
    else if (c == '-' || c == '+')
      value = 62;
    else if (c == '_' || c == '/')
      value = 63;
    else
      return std::nullopt;
    bits = (bits << 6 | value) & 0xFFFFFF;
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out += static_cast<char>(bits >> have & 0xFF);
  }
  return out;
}

[[noreturn]] void refuse_missing(const fs::path& path) {
  std::vector<std::string> beside;
  std::error_code ignored;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    if (at->path().extension() == ".json" || at->path().extension() == ".hjson")
      beside.push_back((path.parent_path() / at->path().filename()).string());
  }
  const auto near = text::nearest(path.string(), beside);
  throw Error(Error::Kind::Config,
              fmt::format("the file {} does not exist", path.string()),
              near
                  ? "did you mean " + *near + "?"
                  : fmt::format("create one: tessera init nano --data my.txt > {}", path.string()));
}

bool ends_with(const std::string& word, std::string_view end) {
  return word.size() > end.size() && word.ends_with(end);
}

std::optional<std::string> decode_config(const std::string& argument) {
  auto decoded = argument.size() >= 8 ? decode_base64(argument) : std::nullopt;
  if (!decoded || text::trim(*decoded).substr(0, 1) != "{") return std::nullopt;
  return decoded;
}

/// A configuration that is the argument itself.
std::optional<std::string> in_place_of_file(const std::string& argument) {
  std::error_code ignored;
  return fs::exists(argument, ignored) ? std::nullopt : decode_config(argument);
}

std::string read_text(const std::string& argument) {
  const fs::path path = argument;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) refuse_missing(path);
  if (fs::is_directory(path, ignored)) {
    std::string fix = "name a JSON file";
    if (fs::exists(path / "status.json", ignored)) {
      fix = fmt::format("to continue this run: tessera train {}", (path / "config.json").string());
    } else if (fs::exists(path / "config.json", ignored)) {
      fix =
          "to train the model of this folder, name it in a configuration: \"model\": {\"from\": " +
          json::Value::string(argument).dump() + "}";
    }
    throw Error(Error::Kind::Config,
                fmt::format("{} is a folder, expected a configuration", argument),
                fix);
  }
  const fs::file_type type = fs::status(path, ignored).type();
  TESSERA_REQUIRE(type != fs::file_type::character && type != fs::file_type::block,
                  Config,
                  fmt::format("{} is a device, expected a configuration", argument),
                  "name a JSON file");
  const std::uintmax_t size = fs::file_size(path, ignored);
  TESSERA_REQUIRE(
      ignored || size <= kMostBytes,
      Config,
      fmt::format("{} has {}, too much for a configuration", argument, text::bytes(size)),
      "name a JSON file");
  return files::read_stream(path);
}

// A file with only assignments is a Colossal-AI configuration; any other is a script.
void refuse_python_config(const std::string& file) {
  std::error_code ignored;
  if (!ends_with(file, ".py") || !fs::is_regular_file(file, ignored)) return;
  bool config = false;
  try {
    config = !interop::parse_python(read_text(file), file).members().empty();
  } catch (const Error&) {
    // it is a script
  }
  TESSERA_REQUIRE(!config,
                  Config,
                  fmt::format("{} is a configuration in Python, expected JSON", file),
                  fmt::format("type: tessera config convert {} --to tessera > {}",
                              file,
                              fs::path(file).replace_extension(".json").string()));
}

// JSON is a part of YAML: a file of that name may be a configuration.
json::Value read_yaml_name(const std::string& file, const std::string& text) {
  try {
    return json::parse(text, file);
  } catch (const Error&) {
    throw Error(Error::Kind::Config,
                fmt::format("{} is a configuration in YAML, expected JSON", file),
                "give its settings as flags, because those of Hugging Face and DeepSpeed are known "
                "(tessera train --help), or write a JSON file: tessera init > my.json");
  }
}

}  // namespace

json::Value read_config(const std::string& argument) {
  if (const auto decoded = in_place_of_file(argument))
    return json::parse(*decoded, "CONFIG (base64)");
  refuse_python_config(argument);
  if (ends_with(argument, ".yaml") || ends_with(argument, ".yml"))
    return read_yaml_name(argument, read_text(argument));
  return json::parse(read_text(argument), argument, {.hjson = ends_with(argument, ".hjson")});
}

ReadConfig read_config_or_python(const std::string& argument) {
  const auto python = [&] {
    return ReadConfig{interop::parse_python(read_text(argument), argument), /*python=*/true};
  };
  if (ends_with(argument, ".py")) return python();
  try {
    return {read_config(argument), /*python=*/false};
  } catch (const Error&) {
    std::error_code ignored;
    if (!fs::is_regular_file(argument, ignored)) throw;
    try {
      return python();
    } catch (const Error&) {
      // It is not Python either, so the JSON error is the better message.
    }
    throw;
  }
}

std::string name_of_config(const std::string& argument) {
  return in_place_of_file(argument) ? "run" : argument;
}

bool names_config(const std::string& word) {
  std::error_code ignored;
  return ends_with(word, ".json") || ends_with(word, ".hjson") || ends_with(word, ".py") ||
         fs::is_regular_file(word, ignored) || decode_config(word).has_value();
}

void refuse_script(const std::string& word, const std::vector<std::string>& rest) {
  if (!ends_with(word, ".py") || word.find('=') != std::string::npos) return;
  std::vector<std::string> words;
  for (const std::string& other : rest) {
    if (other != word) words.push_back(other);
  }
  const bool config = std::any_of(words.begin(), words.end(), [](const std::string& other) {
    return ends_with(other, ".json") || ends_with(other, ".hjson");
  });
  if (!config) refuse_python_config(word);
  throw Error(Error::Kind::Config,
              fmt::format("{} is a Python script: tessera trains what a configuration says", word),
              fmt::format("type: tessera train {}{}{}",
                          config ? "" : "CONFIG",
                          config || words.empty() ? "" : " ",
                          text::join(words, " ")));
}

}  // namespace tessera::cli
