// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/yaml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/interop/colossal/python_literal.h"
#include "tessera/interop/toml.h"

namespace tessera::interop {
namespace {

constexpr std::size_t kMostParts = 100'000;
constexpr std::size_t kMostLevels = 100;
constexpr std::string_view kMerge = "<<";

// A value with the number of its parts and of its levels.
struct Part {
  json::Value value;
  std::size_t parts = 1, levels = 1;
};

// Plain words of YAML 1.1, as PyYAML reads them.
std::optional<bool> truth(const std::string& word) {
  for (const char* name : {"true", "yes", "on"}) {
    if (text::lower(word) == name) return true;
  }
  for (const char* name : {"false", "no", "off"}) {
    if (text::lower(word) == name) return false;
  }
  return std::nullopt;
}

json::Value plain(const std::string& word) {
  const std::string lower = text::lower(word);
  if (word.empty() || word == "~" || lower == "null") return {};
  if (const auto on = truth(word)) return json::Value::boolean(*on);
  std::string digits = word;
  std::erase(digits, '_');
  const char first = digits.empty() ? '\0' : digits[digits.find_first_not_of("+-") % digits.size()];
  if (!(first >= '0' && first <= '9') && first != '.') return json::Value::string(word);
  if (digits.front() == '+') digits.erase(0, 1);
  try {
    json::Value out = json::parse_strict(digits, "");
    if (out.is_number()) return out;
  } catch (const Error&) {
    // Numbers such as .5 and 1. are read below; others are texts.
  }
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && std::isfinite(number) ? json::Value::number(number) : json::Value::string(word);
}

class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& source) : source_(source) {}
  [[nodiscard]] json::Value result() { return std::move(root_.value); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add({placed(json::Value(), mark)}, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) refuse(mark, "an alias inside of its own value");
    add(found->second, 0);
  }
  void OnScalar(const YAML::Mark& mark,
                const std::string& tag,
                YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!" || tag == "tag:yaml.org,2002:str" || tag == "!!str";
    if (expects_key()) {
      if (find_key(value) && value != kMerge)
        refuse(mark, fmt::format("the key \"{}\" occurs twice", value));
      open_.back().key = value;
      open_.back().key_place = place_of(mark);
      return;
    }
    add({placed(quoted ? json::Value::string(value) : plain(value), mark)}, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark,
                       const std::string& /*tag*/,
                       YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    start(mark, anchor, json::Value::array());
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark,
                  const std::string& /*tag*/,
                  YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    start(mark, anchor, json::Value::object());
  }
  void OnMapEnd() override { end(); }

 private:
  struct Open {
    Part part;
    YAML::anchor_t anchor = 0;
    std::optional<std::string> key;
    json::Place key_place;
    std::vector<json::Value> merged;  ///< values of the merge key
  };

  [[nodiscard]] json::Place place_of(const YAML::Mark& mark) const {
    return {source_, mark.line + 1, mark.column + 1};
  }
  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
    throw Error(Error::Kind::Config, fmt::format("{}: {}", place_of(mark).text(), what), "");
  }
  json::Value placed(json::Value value, const YAML::Mark& mark) const {
    value.place = place_of(mark);
    return value;
  }
  [[nodiscard]] bool expects_key() const {
    return !open_.empty() && open_.back().part.value.is_object() && !open_.back().key;
  }
  [[nodiscard]] bool find_key(const std::string& key) const {
    return open_.back().part.value.find(key) != nullptr;
  }

  void start(const YAML::Mark& mark, YAML::anchor_t anchor, json::Value value) {
    if (expects_key()) refuse(mark, "a key is a text, not a list or a map");
    if (open_.size() >= kMostLevels)
      refuse(mark, fmt::format("values nest deeper than {} levels", kMostLevels));
    open_.push_back({.part = {placed(std::move(value), mark)}, .anchor = anchor});
  }

  void end() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    for (const json::Value& merged : closed.merged)
      merge(closed.part.value, merged);
    add(std::move(closed.part), closed.anchor);
  }

  // Adds the members that the value itself does not have.
  static void merge(json::Value& into, const json::Value& from) {
    if (from.is_array()) {
      for (const json::Value& one : from.items())
        merge(into, one);
    }
    if (!from.is_object()) return;
    for (const auto& [key, value] : from.members()) {
      if (into.find(key) == nullptr) into[key] = value;
    }
  }

  void add(Part part, YAML::anchor_t anchor) {
    total_ += part.parts;
    if (total_ > kMostParts || open_.size() + part.levels > kMostLevels) {
      throw Error(Error::Kind::Config,
                  fmt::format("{}: with its aliases the file has more than {} values, or more than "
                              "{} levels",
                              part.value.place.text(),
                              kMostParts,
                              kMostLevels),
                  "write the values out, without aliases of aliases");
    }
    if (anchor != 0) anchors_[anchor] = part;
    if (open_.empty()) {
      root_ = std::move(part);
      return;
    }
    Open& into = open_.back();
    into.part.parts += part.parts;
    into.part.levels = std::max(into.part.levels, part.levels + 1);
    if (into.part.value.is_array()) {
      into.part.value.push_back(std::move(part.value));
      return;
    }
    const std::string key = std::exchange(into.key, std::nullopt).value_or("");
    if (key == kMerge) {
      into.merged.push_back(std::move(part.value));
      return;
    }
    part.value.key_place = into.key_place;
    into.part.value[key] = std::move(part.value);
  }

  const std::string& source_;
  Part root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Part> anchors_;
  std::size_t total_ = 0;
};

std::string_view line_of(std::string_view text, int number) {
  for (int i = 0; i < number; ++i) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

json::Value parse_yaml(std::string_view text, const std::string& source) {
  if (const auto bad = text::find_invalid_utf8(text)) {
    throw Error(Error::Kind::Config,
                fmt::format("{}: byte {} is not UTF-8", source, *bad),
                "save the file as UTF-8");
  }
  std::istringstream stream{std::string(text)};
  Builder builder(source);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    json::Value out = builder.result();
    Builder more(source);
    TESSERA_REQUIRE(!parser.HandleNextDocument(more),
                    Config,
                    fmt::format("{} has a second document (---), expected one", source),
                    "write one document a file");
    return out;
  } catch (const YAML::Exception& error) {
    const json::Place place{source, error.mark.line + 1, error.mark.column + 1};
    const bool tab = line_of(text, error.mark.line).find('\t') != std::string_view::npos;
    throw Error(Error::Kind::Config,
                fmt::format("{}: not YAML: {}", place.text(), error.msg),
                tab ? "indent with spaces: YAML allows no tabs there" : "");
  }
}

json::Value read_settings(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{4} << 20;
  std::error_code failed;
  TESSERA_REQUIRE(fs::exists(path, failed) && !fs::is_directory(path, failed),
                  Config,
                  fmt::format("the file {} does not exist", path),
                  "name a file of settings");
  const std::uintmax_t size = fs::file_size(path, failed);
  TESSERA_REQUIRE(
      failed || size <= kMostBytes,
      Config,
      fmt::format("{} has {}, too much for a file of settings", path, text::bytes(size)),
      "");
  const std::string text = files::read_stream(path);
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return parse_yaml(text, path);
  if (path.ends_with(".toml")) return parse_toml(text, path);
  if (path.ends_with(".py")) return parse_python(text, path);
  return json::parse(text, path, {.hjson = path.ends_with(".hjson")});
}

}  // namespace tessera::interop
