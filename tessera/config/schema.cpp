// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/schema.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::config {
namespace {

json::Value words(const std::vector<std::string>& list) {
  json::Value out = json::Value::array();
  for (const std::string& word : list)
    out.push_back(json::Value::string(word));
  return out;
}

json::Value type(const char* name) {
  return json::Value::object({{"type", json::Value::string(name)}});
}

json::Value list_of(json::Value items) {
  json::Value out = type("array");
  out["items"] = std::move(items);
  return out;
}

/// One of the alternatives of a type, such as "list of integers".
std::optional<json::Value> simple(std::string_view name) {
  if (name == "true" || name == "false") return type("boolean");
  if (name.starts_with("list of ")) {
    std::string item(name.substr(8));
    if (item.ends_with("s")) item.pop_back();
    auto items = simple(item);
    return items ? std::optional(list_of(std::move(*items))) : type("array");
  }
  for (const char* known : {"integer", "number", "string", "object"}) {
    if (name == known) return type(known);
  }
  if (name.size() > 2 && name.front() == '"' && name.back() == '"')
    return json::Value::object(
        {{"const", json::Value::string(std::string(name.substr(1, name.size() - 2)))}});
  return std::nullopt;
}

json::Value type_of(const bool*) {
  return type("boolean");
}
json::Value type_of(const std::int64_t*) {
  return type("integer");
}
json::Value type_of(const double*) {
  return type("number");
}
json::Value type_of(const std::string*) {
  return type("string");
}
json::Value type_of(const std::vector<double>*) {
  return list_of(type("number"));
}
json::Value type_of(const std::vector<std::string>*) {
  return schema_of_type("string or list of strings");
}
json::Value type_of(const json::Value*) {
  return json::Value::object();
}
template <class T>
json::Value type_of(const std::optional<T>*) {
  return type_of(static_cast<const T*>(nullptr));
}

json::Value value_of(bool value) {
  return json::Value::boolean(value);
}
json::Value value_of(std::int64_t value) {
  return json::Value::integer(value);
}
json::Value value_of(double value) {
  return std::isfinite(value) ? json::Value::number(value) : json::Value();
}
json::Value value_of(const std::string& value) {
  return json::Value::string(value);
}
json::Value value_of(const json::Value& value) {
  return value;
}
json::Value value_of(const std::vector<std::string>& values) {
  return words(values);
}
json::Value value_of(const std::vector<double>& values) {
  json::Value out = json::Value::array();
  for (const double value : values)
    out.push_back(value_of(value));
  return out;
}
template <class T>
json::Value value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : json::Value();
}

void add_limits(json::Value& schema, const Doc& doc) {
  if (std::isfinite(doc.min))
    schema[doc.above_min ? "exclusiveMinimum" : "minimum"] = json::Value::number(doc.min);
  if (std::isfinite(doc.max)) schema["maximum"] = json::Value::number(doc.max);
}

class SchemaWriter : public Fields {
 public:
  using Fields::field;
  void field(std::string_view key, Slot slot, const Doc& doc) override {
    json::Value schema, initial;
    std::visit(
        [&](const auto* member) {
          schema = type_of(member);
          initial = value_of(*member);
        },
        slot);
    if (!doc.type.empty()) schema = schema_of_type(doc.type);
    // A string whose default is not among its choices is one of them or empty.
    if (!doc.choices.empty()) {
      schema = json::Value::object({{"enum", words(doc.choices)}});
    } else {
      add_limits(schema, doc);
    }
    if (!schema.members().empty()) allow_also(schema, type("null"));
    std::string text = doc.text;
    if (!doc.unit.empty()) text += " Unit: " + doc.unit + ".";
    if (!doc.default_text.empty()) text += " Default: " + doc.default_text + ".";
    schema["description"] = json::Value::string(std::move(text));
    if (doc.default_text.empty() && !doc.required && !initial.is_null())
      schema["default"] = std::move(initial);
    open_.back()["properties"][key] = std::move(schema);
  }
  void begin(std::string_view key, std::string_view sentence) override {
    keys_.emplace_back(key);
    open_.push_back(object());
    open_.back()["description"] = json::Value::string(std::string(sentence));
  }
  void end() override {
    json::Value inner = std::move(open_.back());
    open_.pop_back();
    open_.back()["properties"][keys_.back()] = std::move(inner);
    keys_.pop_back();
  }
  json::Value finish() { return std::move(open_.back()); }

 private:
  static json::Value object() {
    json::Value out = json::Value::object(
        {{"type", words({"object", "null"})}, {"properties", json::Value::object()}});
    out["additionalProperties"] = json::Value::boolean(false);
    return out;
  }

  std::vector<json::Value> open_{object()};
  std::vector<std::string> keys_;
};

}  // namespace

namespace detail {

json::Value schema_of_fields(void (*describe)(void*, Fields&), void* options) {
  SchemaWriter writer;
  describe(options, writer);
  return writer.finish();
}

}  // namespace detail

json::Value schema_of_type(std::string_view words) {
  json::Value out;
  std::string rest(words);
  while (!rest.empty()) {
    const std::size_t at = rest.find(" or ");
    auto one = simple(rest.substr(0, at));
    if (!one) return json::Value::object();
    if (out.is_null()) {
      out = std::move(*one);
    } else {
      allow_also(out, std::move(*one));
    }
    rest = at == std::string::npos ? "" : rest.substr(at + 4);
  }
  return out.is_null() ? json::Value::object() : out;
}

void allow_also(json::Value& schema, json::Value other) {
  if (json::Value* any = schema.find("anyOf")) {
    any->push_back(std::move(other));
    return;
  }
  // Text for people stays where it is; what decides moves into the first alternative.
  json::Value first = json::Value::object(), out = json::Value::object();
  for (const auto& [key, value] : schema.members())
    (key == "description" || key == "default" ? out : first)[key] = value;
  if (first.members().empty() || first == other) return;
  out["anyOf"] = json::Value::array({std::move(first), std::move(other)});
  schema = std::move(out);
}

}  // namespace tessera::config
