// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/value.h"

#include <algorithm>
#include <cmath>

#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {

void fail(const std::string& what) {
  throw Error(Error::Kind::Data,
              "chat template: " + what,
              "correct the template, or give it the messages and variables that it expects");
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail(value.what_undefined());
}

void Budget::step(std::int64_t count) {
  steps_ += count;
  if (steps_ > limits_.steps)
    fail("it needs more than " + std::to_string(limits_.steps) + " steps");
}

void Budget::bytes(std::size_t count) {
  bytes_ += static_cast<std::int64_t>(std::min<std::size_t>(count, 1ULL << 60));
  if (bytes_ > limits_.bytes)
    fail("it makes more than " + std::to_string(limits_.bytes) + " bytes of values");
  step(static_cast<std::int64_t>(count / 64));
}

void Budget::nesting(int depth) const {
  if (depth > limits_.nesting)
    fail("it nests values deeper than " + std::to_string(limits_.nesting));
}

Value Value::undefined(const std::string& what) {
  return Value(Data(Undefined{std::make_shared<const std::string>(what)}));
}

Value Value::text(std::string value, Budget& budget) {
  budget.bytes(value.size() + sizeof(std::string));
  return Value(Data(std::make_shared<const std::string>(std::move(value))));
}

Value Value::list(std::vector<Value> items, Budget& budget, bool tuple) {
  budget.bytes((items.size() + 1) * sizeof(Value));
  Sequence made{std::move(items), tuple, 1};
  for (const Value& item : made.items)
    made.depth = std::max(made.depth, item.depth() + 1);
  budget.nesting(made.depth);
  return Value(Data(std::make_shared<const Sequence>(std::move(made))));
}

Value Value::dict(std::vector<std::pair<Value, Value>> members, Budget& budget) {
  budget.bytes((members.size() + 1) * 2 * sizeof(Value));
  Mapping made{std::move(members), 1};
  for (const auto& [key, value] : made.members)
    made.depth = std::max({made.depth, key.depth() + 1, value.depth() + 1});
  budget.nesting(made.depth);
  return Value(Data(std::make_shared<const Mapping>(std::move(made))));
}

Value Value::from_json(const json::Value& value, Budget& budget, int depth) {
  budget.nesting(depth);
  budget.step();
  switch (value.type()) {
    case json::Value::Type::Null:
      return none();
    case json::Value::Type::Bool:
      return boolean(value.as_bool());
    case json::Value::Type::Number: {
      // Python reads a number with a fraction or an exponent as a float.
      const bool whole = value.dump().find_first_of(".eE") == std::string::npos;
      const auto integral = value.as_integer();
      return whole && integral ? integer(*integral) : real(value.as_double());
    }
    case json::Value::Type::String:
      return text(value.as_string(), budget);
    case json::Value::Type::Array: {
      std::vector<Value> items;
      for (const json::Value& item : value.items())
        items.push_back(from_json(item, budget, depth + 1));
      return list(std::move(items), budget);
    }
    case json::Value::Type::Object: {
      std::vector<std::pair<Value, Value>> members;
      for (const auto& [key, member] : value.members())
        members.emplace_back(text(key, budget), from_json(member, budget, depth + 1));
      return dict(std::move(members), budget);
    }
  }
  return {};
}

std::int64_t Value::as_int() const {
  return is_bool() ? static_cast<std::int64_t>(as_bool()) : std::get<std::int64_t>(data_);
}

double Value::as_real() const {
  return is_real() ? std::get<double>(data_) : static_cast<double>(as_int());
}

const std::vector<Value>& Value::items() const {
  return std::get<List>(data_)->items;
}
bool Value::is_tuple() const {
  return is_sequence() && std::get<List>(data_)->tuple;
}
const std::vector<std::pair<Value, Value>>& Value::members() const {
  return std::get<Dict>(data_)->members;
}

std::string Value::what_undefined() const {
  const auto& what = std::get<Undefined>(data_).what;
  return what ? *what : "an undefined value is used";
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return as_real() != 0.0;
  if (is_text()) return !as_text().empty();
  if (is_sequence()) return !items().empty();
  if (is_dict()) return !members().empty();
  return true;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_real()) return "float";
  if (is_text()) return "str";
  if (is_sequence()) return is_tuple() ? "tuple" : "list";
  if (is_dict()) return "dict";
  return as_object()->type();
}

int Value::depth() const {
  if (is_sequence()) return std::get<List>(data_)->depth;
  return is_dict() ? std::get<Dict>(data_)->depth : 0;
}

const Value* Value::find(const Value& key, Budget& budget) const {
  if (key.is_dict() || (key.is_sequence() && !key.is_tuple()))
    fail("unhashable type: '" + std::string(key.type_name()) + "'");
  const auto& all = members();
  budget.step(1 + static_cast<std::int64_t>(all.size() / 8));
  for (const auto& [name, value] : all) {
    if (equal(name, key, budget)) return &value;
  }
  return nullptr;
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return left.as_int() == right.as_int();
    return left.as_real() == right.as_real();
  }
  if (left.is_text() && right.is_text()) return left.as_text() == right.as_text();
  if (left.is_undefined() || left.is_none())
    return left.is_none() ? right.is_none() : right.is_undefined();
  if (left.is_sequence() && right.is_sequence()) {
    if (left.is_tuple() != right.is_tuple() || left.items().size() != right.items().size())
      return false;
    for (std::size_t i = 0; i < left.items().size(); ++i) {
      if (!equal(left.items()[i], right.items()[i], budget)) return false;
    }
    return true;
  }
  if (left.is_dict() && right.is_dict()) {
    if (left.members().size() != right.members().size()) return false;
    for (const auto& [key, value] : left.members()) {
      const Value* other = right.find(key, budget);
      if (other == nullptr || !equal(value, *other, budget)) return false;
    }
    return true;
  }
  return left.is_object() && right.is_object() && left.as_object() == right.as_object();
}

bool less(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return left.as_int() < right.as_int();
    return left.as_real() < right.as_real();
  }
  // UTF-8 orders as its code points do.
  if (left.is_text() && right.is_text()) return left.as_text() < right.as_text();
  if (left.is_sequence() && right.is_sequence() && left.is_tuple() == right.is_tuple()) {
    const auto &a = left.items(), &b = right.items();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal(a[i], b[i], budget)) return less(a[i], b[i], budget);
    }
    return a.size() < b.size();
  }
  fail("'<' is not supported between '" + std::string(left.type_name()) + "' and '" +
       std::string(right.type_name()) + "'");
}

bool contains(const Value& container, const Value& value, Budget& budget) {
  if (container.is_text()) {
    if (!value.is_text())
      fail("'in <string>' requires a string on the left, not " + std::string(value.type_name()));
    budget.step(1 + static_cast<std::int64_t>(container.as_text().size() / 64));
    return container.as_text().find(value.as_text()) != std::string::npos;
  }
  if (container.is_dict()) return container.find(value, budget) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_sequence())
    fail("argument of type '" + std::string(container.type_name()) + "' is not iterable");
  return std::any_of(container.items().begin(), container.items().end(), [&](const Value& item) {
    return equal(item, value, budget);
  });
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> out;
  if (value.is_undefined()) return out;
  if (value.is_sequence()) {
    budget.bytes(value.items().size() * sizeof(Value));
    return value.items();
  }
  if (value.is_dict()) {
    budget.bytes(value.members().size() * sizeof(Value));
    for (const auto& [key, member] : value.members())
      out.push_back(key);
    return out;
  }
  if (!value.is_text()) fail("'" + std::string(value.type_name()) + "' object is not iterable");
  for (const std::string_view character : characters(value.as_text()))
    out.push_back(Value::text(std::string(character), budget));
  return out;
}

}  // namespace tessera::text::chat
