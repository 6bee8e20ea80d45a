// SPDX-License-Identifier: Apache-2.0
// JSON values that record their source position: line, column and key path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::json {

/// The source position of a value. A value made by the program or by `--set` has line 0 and a
/// `source` that says so.
struct Place {
  std::string source;  ///< file name, "--set optimizer.lr=1", ...
  int line = 0;
  int column = 0;
  /// Returns "config.json:3:12", or the source alone.
  [[nodiscard]] std::string text() const;
};

/// A JSON value. Objects keep the order of their members. Numbers keep their text, so that 5e8 can
/// be read as an integer. The as_...() accessors throw with the place of the value if it has
/// another type: Error{Config}, or Error{Format} for values read by parse_strict(). Threads:
/// concurrent reads are safe; writes need external locking.
class Value {
 public:
  enum class Type { Null, Bool, Number, String, Array, Object };
  using Member = std::pair<std::string, Value>;

  Value() = default;  // null
  static Value boolean(bool value);
  static Value integer(std::int64_t value);
  static Value number(
      double value);  ///< null if it is not finite, because JSON cannot represent it
  static Value string(std::string value);
  static Value array(std::vector<Value> items = {});
  static Value object(std::vector<Member> members = {});

  [[nodiscard]] Type type() const { return type_; }
  [[nodiscard]] std::string_view type_name() const;  ///< "a number", "an object", ...
  [[nodiscard]] bool is_null() const { return type_ == Type::Null; }
  [[nodiscard]] bool is_object() const { return type_ == Type::Object; }
  [[nodiscard]] bool is_array() const { return type_ == Type::Array; }
  [[nodiscard]] bool is_string() const { return type_ == Type::String; }
  [[nodiscard]] bool is_number() const { return type_ == Type::Number; }
  [[nodiscard]] bool is_bool() const { return type_ == Type::Bool; }

  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] double as_double() const;
  /// Returns the number if it is integral and fits (5e8 does), else nothing.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const std::vector<Value>& items() const;
  [[nodiscard]] std::vector<Value>& items();
  [[nodiscard]] const std::vector<Member>& members() const;
  [[nodiscard]] std::vector<Member>& members();
  /// Returns the member or nullptr.
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] Value* find(std::string_view key);
  /// Returns the member; an absent one is added as null. `this` must be an object, or null, which
  /// becomes an object.
  Value& operator[](std::string_view key);
  void push_back(Value item);

  Place place;      ///< place of the value
  Place key_place;  ///< place of its key, if it is a member

  /// Returns compact or indented text. Doubles are the shortest decimals that round-trip; integers
  /// stay integers.
  [[nodiscard]] std::string dump(int indent = -1) const;
  bool operator==(
      const Value& other) const;  ///< compares values; places and the order of members are ignored

 private:
  friend class Parser;
  void expect(Type type) const;
  void append_to(std::string& out, int indent, int depth) const;

  Type type_ = Type::Null;
  bool bool_ = false;
  bool strict_ = false;  // set by parse_strict()
  std::string text_;     // of a number or string
  std::vector<Value> items_;
  std::vector<Member> members_;
};

struct ParseOptions {
  /// Accepts the unambiguous extensions of Hjson: `//`, `/* */` and `#` comments, trailing commas,
  /// the end of a line instead of a comma, keys without quotes, strings in single or three single
  /// quotes, and an unquoted word that ends its line.
  bool relaxed = true;
  /// Full Hjson: an unquoted string extends to the end of its line, including comment marks and
  /// commas, and the outermost braces may be omitted.
  bool hjson = false;
  int max_depth = 200;
};
/// Reads one JSON value. Throws Error{Config} with source:line:column, the key path, what was
/// expected and what was found. Duplicate keys, NaN and Infinity, deeper nesting and invalid UTF-8
/// are rejected. A BOM is accepted.
Value parse(std::string_view text, const std::string& source, ParseOptions options = {});
/// Like parse() for strict machine-made JSON (metrics, manifests, headers of other files); errors
/// are Error{Format}.
Value parse_strict(std::string_view text, const std::string& source, int max_depth = 200);

/// Appends a step to a path: "a" + "b" = "a.b".
std::string join_path(std::string_view path, std::string_view key);
/// The members of an object and of the objects in it, by their paths; other values are leaves.
std::vector<std::pair<std::string, Value>> leaves(const Value& object);

}  // namespace tessera::json
