// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/toml.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

#if __has_include(<toml++/toml.h>)
#define TESSERA_TOML 1
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 1
#include <toml++/toml.h>
#else
#define TESSERA_TOML 0
#endif

namespace tessera::interop {

#if TESSERA_TOML

namespace {

class TomlReader {
 public:
  explicit TomlReader(const std::string& source) : source_(source) {}

  json::Value value_of(const toml::node& node) const {
    json::Value out;
    if (const auto* table = node.as_table()) {
      out = json::Value::object();
      for (const auto& [key, member] : *table) {
        json::Value value = value_of(member);
        value.key_place = place_of(key.source());
        out.members().emplace_back(std::string(key.str()), std::move(value));
      }
    } else if (const auto* list = node.as_array()) {
      out = json::Value::array();
      for (const toml::node& item : *list)
        out.push_back(value_of(item));
    } else if (const auto* text = node.as_string()) {
      out = json::Value::string(text->get());
    } else if (const auto* integer = node.as_integer()) {
      out = json::Value::integer(integer->get());
    } else if (const auto* flag = node.as_boolean()) {
      out = json::Value::boolean(flag->get());
    } else if (const auto* number = node.as_floating_point()) {
      TESSERA_REQUIRE(
          std::isfinite(number->get()),
          Config,
          fmt::format("{}: a number that is not finite", place_of(node.source()).text()),
          "write a finite number");
      out = json::Value::number(number->get());
    } else {
      std::ostringstream stream;
      node.visit([&](const auto& one) { stream << one; });
      out = json::Value::string(stream.str());
    }
    out.place = place_of(node.source());
    return out;
  }

  [[nodiscard]] json::Place place_of(const toml::source_region& region) const {
    return {source_, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
  }

 private:
  const std::string& source_;
};

}  // namespace

json::Value parse_toml(std::string_view text, const std::string& source) {
  // toml++ limits the depth of values, but not that of dotted keys, and reads tables recursively.
  constexpr std::ptrdiff_t kMostDots = 4096;
  TESSERA_REQUIRE(std::count(text.begin(), text.end(), '.') <= kMostDots,
                  Config,
                  fmt::format("{}: more than {} dots in a file of settings", source, kMostDots),
                  "write fewer dotted keys");
  const TomlReader reader(source);
  try {
    return reader.value_of(toml::parse(text, source));
  } catch (const toml::parse_error& error) {
    throw Error(
        Error::Kind::Config,
        fmt::format(
            "{}: not TOML: {}", reader.place_of(error.source()).text(), error.description()),
        "");
  }
}

bool reads_toml() {
  return true;
}

#else

json::Value parse_toml(std::string_view /*text*/, const std::string& source) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{}: this program was built without toml++, which reads TOML", source),
              "install libtomlplusplus-dev and build it again, or write the settings as YAML");
}

bool reads_toml() {
  return false;
}

#endif

}  // namespace tessera::interop
