// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/hf_config.h"

#include <map>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

[[noreturn]] void fail(const json::Value& value, const char* key, const std::string& expected) {
  throw Error(
      Error::Kind::Format,
      fmt::format("{}: \"{}\" is {}, expected {}", value.place.text(), key, value.dump(), expected),
      "mend config.json, or fetch it again");
}

}  // namespace

HfConfig::HfConfig(const json::Value& config) : config_(config) {
  TESSERA_REQUIRE(
      config.is_object(),
      Format,
      config.place.text() + ": expected an object, found " + std::string(config.type_name()),
      "");
}

const json::Value* HfConfig::find(const char* key) const {
  const json::Value* value = config_.find(key);
  return value && !value->is_null() ? value : nullptr;
}

bool HfConfig::given(const char* key) const {
  return config_.find(key) != nullptr;
}

bool HfConfig::empty(const char* key) const {
  const json::Value* value = find(key);
  return !value || (value->is_object() && value->members().empty()) ||
         (value->is_array() && value->items().empty());
}

std::int64_t HfConfig::count(const char* key, std::int64_t absent, double max) const {
  const json::Value* value = find(key);
  if (!value) return absent;
  const auto number = value->is_number() ? value->as_integer() : std::nullopt;
  if (!number || *number < 1 || static_cast<double>(*number) > max)
    fail(*value, key, fmt::format("a whole number from 1 to {}", max));
  return *number;
}

std::int64_t HfConfig::count_or_null(const char* key, double max) const {
  return empty(key) ? 0 : count(key, 0, max);
}

double HfConfig::number(const char* key, double absent, double min, double max) const {
  const json::Value* value = find(key);
  if (!value) return absent;
  if (!value->is_number() || !(value->as_double() >= min && value->as_double() <= max)) {
    fail(*value, key, fmt::format("a number from {} to {}", min, max));
  }
  return value->as_double();
}

std::optional<double> HfConfig::number_or_none(const char* key, double min, double max) const {
  if (empty(key)) return std::nullopt;
  return number(key, min, min, max);
}

bool HfConfig::flag(const char* key, bool absent) const {
  const json::Value* value = find(key);
  if (!value) return absent;
  if (!value->is_bool()) fail(*value, key, "true or false");
  return value->as_bool();
}

std::string HfConfig::word(const char* key, const char* absent) const {
  const json::Value* value = find(key);
  if (!value) return absent;
  if (!value->is_string()) fail(*value, key, "a string");
  return value->as_string();
}

std::string HfConfig::activation(const char* key, const char* absent) const {
  const std::string name = word(key, absent);
  for (const char* tanh_form : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    if (name == tanh_form) return "gelu_tanh";
  }
  if (name == "swish") return "silu";
  if (name == "gelu_python") return "gelu";
  for (const char* same : {"gelu", "relu", "silu", "quick_gelu", "relu2"}) {
    if (name == same) return same;
  }
  refuse(key, false, "gelu_new, gelu, relu, silu, quick_gelu or relu2");
  return {};
}

void HfConfig::refuse(const char* key, bool harmless, const char* expected) const {
  if (harmless) return;
  const json::Value* value = find(key);
  throw Error(Error::Kind::Unsupported,
              value == nullptr ? fmt::format("{}: \"{}\" is missing", config_.place.text(), key)
                               : fmt::format("{}: \"{}\" is {}, which is not supported",
                                             value->place.text(),
                                             key,
                                             value->dump()),
              fmt::format("only models with {} can be read", expected));
}

json::Value real_to_hf(double value) {
  const json::Value plain = json::Value::number(value);
  const bool whole = plain.is_number() && plain.as_integer().has_value();
  const std::string text = plain.dump();
  if (!whole || text.find_first_of(".e") != std::string::npos) return plain;
  return json::parse_strict(text + ".0", "config.json");
}

std::string activation_to_hf(const std::string& name) {
  static const std::map<std::string, std::string> names = {{"gelu_tanh", "gelu_new"},
                                                           {"gelu_new", "gelu_new"},
                                                           {"gelu", "gelu"},
                                                           {"relu", "relu"},
                                                           {"silu", "silu"},
                                                           {"quick_gelu", "quick_gelu"},
                                                           {"relu2", "relu2"}};
  const auto found = names.find(name);
  return found == names.end() ? "" : found->second;
}

}  // namespace tessera::models
