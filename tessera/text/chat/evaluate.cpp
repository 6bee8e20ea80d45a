// SPDX-License-Identifier: Apache-2.0
// Evaluates the expressions of a template.
#include <algorithm>
#include <limits>

#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/levels.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {

using Kind = Expression::Kind;

Value Interpreter::evaluate(const Expression& node) {
  const Level level(*this);
  switch (node.kind) {
    case Kind::None:
      return Value::none();
    case Kind::Boolean:
      return Value::boolean(node.integer != 0);
    case Kind::Integer:
      return Value::integer(node.integer);
    case Kind::Real:
      return Value::real(node.real);
    case Kind::Text:
      return text(node.text);
    case Kind::Name:
      return evaluate_name(node);
    case Kind::Tuple:
    case Kind::List:
    case Kind::Dict:
      return evaluate_container(node);
    case Kind::Attribute:
      return attribute(evaluate(*node.children[0]), node.text);
    case Kind::Item: {
      const Value of = evaluate(*node.children[0]);
      return item(of, evaluate(*node.children[1]));
    }
    case Kind::Slice:
      return evaluate_slice(node);
    case Kind::Call: {
      const Value callee = evaluate(*node.children[0]);
      return call(callee, evaluate_arguments(node.arguments));
    }
    case Kind::Filter:
      return evaluate_filter(node, nullptr);
    case Kind::Test: {
      const Value value = evaluate(*node.children[0]);
      return Value::boolean(test(node.text, value, evaluate_arguments(node.arguments)));
    }
    default:
      return evaluate_operator(node);
  }
}

Value Interpreter::evaluate_name(const Expression& node) {
  budget_.step();
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->find(node.text)) return *found;
  }
  if (const Function::Body body = find_function(node.text))
    return Value::object(own<Function>(body));
  return Value::undefined("'" + node.text + "' is undefined");
}

Value Interpreter::evaluate_container(const Expression& node) {
  if (node.kind != Kind::Dict) {
    std::vector<Value> items;
    for (const auto& child : node.children)
      items.push_back(evaluate(*child));
    return list(std::move(items), node.kind == Kind::Tuple);
  }
  std::vector<std::pair<Value, Value>> members;
  for (std::size_t i = 0; i < node.children.size(); i += 2) {
    const Value key = evaluate(*node.children[i]);
    Value value = evaluate(*node.children[i + 1]);
    if (key.is_dict() || (key.is_sequence() && !key.is_tuple()))
      fail("unhashable type: '" + std::string(key.type_name()) + "'");
    const auto same = std::find_if(members.begin(), members.end(), [&](const auto& member) {
      return equal(member.first, key, budget_);
    });
    if (same == members.end()) {
      members.emplace_back(key, std::move(value));
    } else {
      same->second = std::move(value);
    }
  }
  return Value::dict(std::move(members), budget_);
}

Value Interpreter::evaluate_operator(const Expression& node) {
  const auto child = [&](std::size_t i) { return evaluate(*node.children[i]); };
  switch (node.kind) {
    case Kind::Condition:
      if (child(1).truth()) return child(0);
      if (node.children[2]) return child(2);
      return Value::undefined("the inline if-expression has no else and its condition is false");
    case Kind::And: {
      const Value left = child(0);
      return left.truth() ? child(1) : left;
    }
    case Kind::Or: {
      const Value left = child(0);
      return left.truth() ? left : child(1);
    }
    case Kind::Not:
      return Value::boolean(!child(0).truth());
    case Kind::Negative:
    case Kind::Positive: {
      const Value value = child(0);
      require_defined(value);
      if (!value.is_number())
        fail("bad operand type for a sign: '" + std::string(value.type_name()) + "'");
      if (node.kind == Kind::Positive)
        return value.is_real() ? value : Value::integer(value.as_int());
      if (value.is_real()) return Value::real(-value.as_real());
      return arithmetic("-", Value::integer(0), value, budget_);
    }
    case Kind::Arithmetic: {
      const Value left = child(0);
      return arithmetic(node.text, left, child(1), budget_);
    }
    case Kind::Concat: {
      std::string out;
      for (std::size_t i = 0; i < node.children.size(); ++i)
        out += to_text(child(i), budget_);
      return text(std::move(out));
    }
    default:
      return Value::boolean(evaluate_compare(node));
  }
}

bool Interpreter::evaluate_compare(const Expression& node) {
  Value left = evaluate(*node.children[0]);
  for (std::size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    const std::string& name = node.operators[i];
    bool holds = false;
    if (name == "==" || name == "!=") {
      holds = equal(left, right, budget_) == (name == "==");
    } else if (name == "in" || name == "not in") {
      holds = contains(right, left, budget_) == (name == "in");
    } else if (name == "<" || name == "<=") {
      holds = less(left, right, budget_) || (name == "<=" && equal(left, right, budget_));
    } else {
      holds = less(right, left, budget_) || (name == ">=" && equal(left, right, budget_));
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Expression& node) {
  const Value of = evaluate(*node.children[0]);
  require_defined(of);
  if (!of.is_text() && !of.is_sequence())
    fail("'" + std::string(of.type_name()) + "' object cannot be sliced");
  std::vector<std::string_view> letters;
  if (of.is_text()) letters = characters(of.as_text());
  const auto size = static_cast<std::int64_t>(of.is_text() ? letters.size() : of.items().size());
  budget_.bytes(static_cast<std::size_t>(size) * sizeof(Value));
  const auto part = [&](std::size_t i, std::int64_t otherwise) {
    if (!node.children[i]) return otherwise;
    const Value value = evaluate(*node.children[i]);
    return value.is_none() ? otherwise : need_int(value, "a part of a slice");
  };
  constexpr std::int64_t kAbsent = std::numeric_limits<std::int64_t>::max();
  const std::int64_t step = part(3, 1);
  if (step == 0) fail("slice step cannot be zero");
  const auto clip = [&](std::int64_t at, std::int64_t otherwise) {
    if (at == kAbsent) return otherwise;
    if (at < 0)
      at = at < -size ? -1 : at + size;
    else if (at > size)
      at = size;
    if (step > 0) return std::max<std::int64_t>(at, 0);
    return std::min(at, size - 1);
  };
  const std::int64_t begin = clip(part(1, kAbsent), step > 0 ? 0 : size - 1);
  const std::int64_t end = clip(part(2, kAbsent), step > 0 ? size : -1);
  std::string piece;
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (of.is_text()) {
      piece += letters[static_cast<std::size_t>(i)];
    } else {
      items.push_back(of.items()[static_cast<std::size_t>(i)]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return of.is_text() ? text(std::move(piece)) : list(std::move(items), of.is_tuple());
}

Value Interpreter::evaluate_filter(const Expression& node, const Value* input) {
  const Level level(*this);
  Value value;
  if (!node.children[0]) {
    value = *input;
  } else if (input != nullptr && node.children[0]->kind == Kind::Filter) {
    value = evaluate_filter(*node.children[0], input);
  } else {
    value = evaluate(*node.children[0]);
  }
  return filter(node.text, value, evaluate_arguments(node.arguments));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments out;
  for (const auto& argument : arguments.positional)
    out.positional.push_back(evaluate(*argument));
  for (const auto& [name, argument] : arguments.named)
    out.named.emplace_back(name, evaluate(*argument));
  if (arguments.more_positional) {
    for (Value& value : iterate(evaluate(*arguments.more_positional), budget_))
      out.positional.push_back(std::move(value));
  }
  if (arguments.more_named) {
    const Value more = evaluate(*arguments.more_named);
    if (!more.is_dict()) fail("the argument after ** is not a dictionary");
    for (const auto& [key, value] : more.members())
      out.named.emplace_back(need_text(key, "a name after **"), value);
  }
  return out;
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  const Level level(*this);
  require_defined(callee);
  if (const auto* function = callee.object_as<Function>()) return function->body(*this, arguments);
  if (const auto* method = callee.object_as<Method>())
    return method->body(*this, method->self, arguments);
  if (const auto* macro = callee.object_as<Macro>())
    return call_macro(macro->statement, macro->defined_in, arguments);
  if (const auto* loop = callee.object_as<Loop>()) {
    const auto bound = arguments.bind("loop", {"iterable"});
    if (!loop->statement->recursive) fail("loop() in a loop that is not recursive");
    if (bound[0] == nullptr) fail("loop() needs what to loop over");
    return text(loop_text(*loop->statement, *bound[0], loop->outer, loop->depth + 1));
  }
  if (auto* joiner = callee.object_as<Joiner>())
    return text(std::exchange(joiner->used, true) ? joiner->separator : "");
  fail("'" + std::string(callee.type_name()) + "' object is not callable");
}

Value Interpreter::attribute(const Value& of, const std::string& name) {
  budget_.step();
  require_defined(of);
  if (auto* names = of.object_as<Namespace>()) {
    for (const auto& [key, value] : names->names) {
      if (key == name) return value;
    }
    return Value::undefined("the namespace has no attribute '" + name + "'");
  }
  if (auto* loop = of.object_as<Loop>()) return loop_attribute(*this, loop, name);
  if (auto* cycler = of.object_as<Cycler>()) return cycler_attribute(*this, cycler, name);
  if (const auto* macro = of.object_as<Macro>(); macro != nullptr && name == "name")
    return text(macro->statement.text);
  if (const Method::Body body = find_method(of, name)) return Value::object(own<Method>(of, body));
  if (of.is_dict()) {
    if (const Value* found = of.find(text(name), budget_)) return *found;
  }
  return Value::undefined("'" + std::string(of.type_name()) + " object' has no attribute '" + name +
                          "'");
}

Value Interpreter::item(const Value& of, const Value& key) {
  budget_.step();
  require_defined(of);
  if (of.is_dict()) {
    if (key.is_dict() || (key.is_sequence() && !key.is_tuple()))
      return Value::undefined("a dictionary has no such key");
    if (const Value* found = of.find(key, budget_)) return *found;
  } else if (key.is_integral() && (of.is_sequence() || of.is_text())) {
    const std::int64_t size = length_of(of);
    if (of.is_text()) budget_.step(size / 16);
    const std::int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at < 0 || at >= size)
      return Value::undefined("'" + std::string(of.type_name()) + " object' has no element " +
                              std::to_string(key.as_int()));
    if (of.is_sequence()) return of.items()[static_cast<std::size_t>(at)];
    return text(std::string(characters(of.as_text())[static_cast<std::size_t>(at)]));
  }
  if (key.is_text()) return attribute(of, key.as_text());
  return Value::undefined("'" + std::string(of.type_name()) + " object' has no element " +
                          to_repr(key, budget_));
}

}  // namespace tessera::text::chat
