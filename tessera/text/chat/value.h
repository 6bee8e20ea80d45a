// SPDX-License-Identifier: Apache-2.0
// Values of a chat template, with Python's semantics: None, booleans, integers, floats, text,
// lists, tuples and dictionaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/json.h"

namespace tessera::text::chat {

/// Limits of one rendering. A template comes from outside, so exceeding a limit is an error.
struct Limits {
  std::int64_t steps = 20'000'000;       ///< evaluated expressions and visited elements
  std::int64_t bytes = 512LL << 20;      ///< of all values created, including those already freed
  int depth = 300;                       ///< nested expressions, statements and macro calls
  int nesting = 100;                     ///< nesting of lists and dictionaries
  std::int64_t longest_range = 100'000;  ///< maximum elements of range()
};

/// Counts the resources that a rendering uses. Throws Error{Data} beyond the limits.
class Budget {
 public:
  explicit Budget(Limits limits) : limits_(limits) {}
  void step(std::int64_t count = 1);
  void bytes(std::size_t count);
  void nesting(int depth) const;
  [[nodiscard]] const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  std::int64_t steps_ = 0, bytes_ = 0;
};

class Value;
struct Sequence;
struct Mapping;
/// An object that belongs to one rendering: a namespace, a loop, a macro, a function. The
/// interpreter owns it, so that cyclic references are freed.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  [[nodiscard]] virtual std::string_view type() const = 0;  ///< Python's name of the type
};

/// Cheap to copy: text and containers are shared and immutable. Used by one thread.
class Value {
 public:
  struct Undefined {
    std::shared_ptr<const std::string> what;  ///< "'x' is undefined"
  };
  struct None {};

  Value() = default;  ///< undefined
  static Value undefined(const std::string& what);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(std::int64_t value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value text(std::string value, Budget& budget);
  static Value list(std::vector<Value> items, Budget& budget, bool tuple = false);
  static Value dict(std::vector<std::pair<Value, Value>> members, Budget& budget);
  static Value object(Object* object) { return Value(Data(object)); }
  static Value from_json(const json::Value& value, Budget& budget, int depth = 0);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(data_); }
  [[nodiscard]] bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  [[nodiscard]] bool is_real() const { return std::holds_alternative<double>(data_); }
  /// True for an integer, a float or a boolean, which Python counts as an integer.
  [[nodiscard]] bool is_number() const { return is_int() || is_real() || is_bool(); }
  [[nodiscard]] bool is_integral() const { return is_int() || is_bool(); }
  [[nodiscard]] bool is_text() const { return std::holds_alternative<Text>(data_); }
  [[nodiscard]] bool is_sequence() const { return std::holds_alternative<List>(data_); }
  [[nodiscard]] bool is_dict() const { return std::holds_alternative<Dict>(data_); }
  [[nodiscard]] bool is_object() const { return std::holds_alternative<Object*>(data_); }

  [[nodiscard]] bool as_bool() const { return std::get<bool>(data_); }
  [[nodiscard]] std::int64_t as_int() const;  ///< requires is_integral()
  [[nodiscard]] double as_real() const;       ///< requires is_number()
  [[nodiscard]] const std::string& as_text() const { return *std::get<Text>(data_); }
  [[nodiscard]] const std::vector<Value>& items() const;
  [[nodiscard]] bool is_tuple() const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& members() const;
  [[nodiscard]] Object* as_object() const { return std::get<Object*>(data_); }
  template <class T>
  [[nodiscard]] T* object_as() const {
    return is_object() ? dynamic_cast<T*>(as_object()) : nullptr;
  }
  [[nodiscard]] std::string what_undefined() const;

  [[nodiscard]] bool truth() const;
  [[nodiscard]] std::string_view type_name() const;  ///< "str", "int", ...
  [[nodiscard]] int depth() const;                   ///< nesting depth; 0 without containers
  /// The entry of a dictionary, or nullptr.
  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;

 private:
  using Text = std::shared_ptr<const std::string>;
  using List = std::shared_ptr<const Sequence>;
  using Dict = std::shared_ptr<const Mapping>;
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, Text, List, Dict, Object*>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};
struct Mapping {
  std::vector<std::pair<Value, Value>> members;
  int depth = 1;
};

/// Throws Error{Data}: the template's operation cannot be done with these values.
[[noreturn]] void fail(const std::string& what);
/// Throws for an undefined value where Jinja does.
void require_defined(const Value& value);

bool equal(const Value& left, const Value& right, Budget& budget);
/// Python's "less than"; throws Error{Data} for types that Python does not order.
bool less(const Value& left, const Value& right, Budget& budget);
/// str() and repr().
std::string to_text(const Value& value, Budget& budget);
std::string to_repr(const Value& value, Budget& budget);
std::string repr_of_double(double value);  ///< "1.0", "1e+16", "nan"
/// `value in container`.
bool contains(const Value& container, const Value& value, Budget& budget);
/// The items of a loop over the value: elements, characters or keys.
std::vector<Value> iterate(const Value& value, Budget& budget);

struct JsonStyle {
  int indent = -1;  ///< negative: on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false, ensure_ascii = false;
};
/// Writes the value as Python's json.dumps does.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace tessera::text::chat
