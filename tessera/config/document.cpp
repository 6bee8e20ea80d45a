// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/document.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::config {
namespace {

// Type names of the slots.
std::string type_of(bool*) {
  return "true or false";
}
std::string type_of(std::int64_t*) {
  return "integer";
}
std::string type_of(double*) {
  return "number";
}
std::string type_of(std::string*) {
  return "string";
}
std::string type_of(std::vector<double>*) {
  return "list of numbers";
}
std::string type_of(std::vector<std::string>*) {
  return "string or list of strings";
}
std::string type_of(json::Value*) {
  return "object";  // unless the Doc names another type
}
template <class T>
std::string type_of(std::optional<T>*) {
  return type_of(static_cast<T*>(nullptr));
}

std::string value_of(bool value) {
  return value ? "true" : "false";
}
std::string value_of(std::int64_t value) {
  return std::to_string(value);
}
std::string value_of(double value) {
  return text::number(value);
}
std::string value_of(const std::string& value) {
  return json::Value::string(value).dump();
}
std::string value_of(const json::Value& value) {
  return value.is_null() ? "" : value.dump();
}
std::string value_of(const std::vector<double>& values) {
  json::Value out = json::Value::array();
  for (const double value : values)
    out.push_back(json::Value::number(value));
  return out.dump();
}
std::string value_of(const std::vector<std::string>& values) {
  return values.empty() ? "" : text::join(values, ", ");
}
template <class T>
std::string value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : "";
}

std::string range_of(const Doc& doc) {
  if (!doc.choices.empty()) return text::join(doc.choices, ", ");
  std::string out;
  if (std::isfinite(doc.min))
    out = (doc.above_min ? "above " : "at least ") + text::number(doc.min);
  if (std::isfinite(doc.max))
    out += (out.empty() ? "at most " : ", at most ") + text::number(doc.max);
  if (!doc.unit.empty()) out += (out.empty() ? "in " : " ") + doc.unit;
  return out;
}

class Documenter : public Fields {
 public:
  using Fields::field;
  void field(std::string_view key, Slot slot, const Doc& doc) override {
    KeyDoc out{json::join_path(path_, key), "", doc.default_text, range_of(doc), doc.text};
    std::visit(
        [&](auto* member) {
          out.type = type_of(member);
          if (out.initial.empty()) out.initial = value_of(*member);
        },
        slot);
    if (!doc.type.empty()) out.type = doc.type;
    if (doc.required) out.initial = "required";
    keys_.push_back(std::move(out));
  }
  void begin(std::string_view key, std::string_view sentence) override {
    outer_.push_back(path_);
    path_ = json::join_path(path_, key);
    keys_.push_back({path_, "", "", "", std::string(sentence)});
  }
  void end() override {
    path_ = outer_.back();
    outer_.pop_back();
  }
  std::vector<KeyDoc> finish() { return std::move(keys_); }

 private:
  std::string path_;
  std::vector<std::string> outer_;
  std::vector<KeyDoc> keys_;
};

constexpr const char* kHead =
    "\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";

bool is_section(const KeyDoc& key) {
  return key.type.empty();
}
bool at_top(const KeyDoc& key) {
  return key.path.find('.') == std::string::npos;
}

std::string row(const KeyDoc& key) {
  return fmt::format("| `{}` | {} | {} | {} | {} |\n",
                     key.path,
                     markdown_cell(key.type),
                     markdown_cell(key.initial),
                     markdown_cell(key.range),
                     markdown_cell(key.text));
}

}  // namespace

namespace detail {

std::vector<KeyDoc> document_fields(void (*describe)(void*, Fields&), void* options) {
  Documenter documenter;
  describe(options, documenter);
  return documenter.finish();
}

}  // namespace detail

std::string markdown_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown(const std::vector<KeyDoc>& keys) {
  std::string top, sections;
  for (const KeyDoc& key : keys) {
    if (is_section(key)) {
      sections += fmt::format("\n## {}\n\n{}\n{}", key.path, key.text, kHead);
    } else {
      (at_top(key) ? top : sections) += row(key);
    }
  }
  return fmt::format("\n## At the top\n{}{}{}", kHead, top, sections);
}

std::vector<std::string> paths_of(const std::vector<KeyDoc>& keys) {
  std::vector<std::string> out;
  for (const KeyDoc& key : keys)
    out.push_back(key.path);
  return out;
}

std::string explain(const KeyDoc& key) {
  std::string out = key.path + ": " + key.text + "\n";
  if (is_section(key)) return out;
  out += "  type     " + key.type + "\n";
  if (!key.initial.empty()) out += "  default  " + key.initial + "\n";
  if (!key.range.empty()) out += "  allowed  " + key.range + "\n";
  return out;
}

}  // namespace tessera::config
