// SPDX-License-Identifier: Apache-2.0
// Runs a parsed chat template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/chat/syntax.h"
#include "tessera/text/chat/value.h"

namespace tessera::text::chat {

/// The argument values of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  /// Throws Error{Data} if there are arguments and the callee takes none.
  void expect_none(std::string_view callee) const;
  /// The values in the order of `names`; nullptr for an absent one. Throws Error{Data} for too many
  /// or unknown arguments, and for one that is passed twice. `callee` is for the message.
  [[nodiscard]] std::vector<const Value*> bind(std::string_view callee,
                                               std::initializer_list<std::string_view> names) const;
};

/// The variables of one block of the template.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool captured = false;  ///< a macro refers to this scope

  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

struct Rendered {
  std::string text;
  /// Begin and end of {% generation %} blocks in bytes, in order.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// One rendering. Used by one thread.
class Interpreter {
 public:
  Interpreter(Budget& budget, std::time_t now) : budget_(budget), now_(now) {}
  Rendered render(const Body& body, const std::vector<std::pair<std::string, Value>>& variables);

  Budget& budget() { return budget_; }
  [[nodiscard]] std::time_t now() const { return now_; }
  template <class T, class... Args>
  T* own(Args&&... args) {
    budget_.bytes(sizeof(T) + 64);
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* out = made.get();
    objects_.push_back(std::move(made));
    return out;
  }
  Value text(std::string value) { return Value::text(std::move(value), budget_); }
  Value list(std::vector<Value> items, bool tuple = false) {
    return Value::list(std::move(items), budget_, tuple);
  }
  Value call(const Value& callee, const Arguments& arguments);
  /// Evaluates a.name and a[key].
  Value attribute(const Value& of, const std::string& name);
  Value item(const Value& of, const Value& key);
  Value filter(const std::string& name, const Value& value, const Arguments& arguments);
  bool test(const std::string& name, const Value& value, const Arguments& arguments);
  /// Renders the body of a loop with these elements; this is the text of {{ loop(...) }}.
  std::string loop_text(const Statement& loop, const Value& elements, Scope* outer, int depth);
  Value call_macro(const Statement& macro, Scope* defined_in, const Arguments& arguments);

 private:
  enum class Flow : std::uint8_t { On, Break, Continue };
  class Level;
  class Inner;

  Value evaluate(const Expression& node);
  Value evaluate_name(const Expression& node);
  Value evaluate_container(const Expression& node);
  Value evaluate_operator(const Expression& node);
  bool evaluate_compare(const Expression& node);
  Value evaluate_slice(const Expression& node);
  Value evaluate_filter(const Expression& node, const Value* input);
  Arguments evaluate_arguments(const CallArguments& arguments);

  Flow execute(const Body& body);
  Flow execute(const Statement& node);
  Flow execute_for(const Statement& node);
  Flow run_loop(const Statement& node, const Value& iterable, int depth);
  void execute_set_block(const Statement& node);
  void execute_call_block(const Statement& node);
  void assign(const Expression& target, const Value& value);
  void write(const std::string& text);
  std::string captured(const Body& body);

  Budget& budget_;
  std::time_t now_;
  int depth_ = 0;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  Rendered rendered_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
};

// The objects that exist during one rendering: namespaces, loops, macros and functions.

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> names;
  [[nodiscard]] std::string_view type() const override { return "Namespace"; }
};
struct Macro : Object {
  Macro(const Statement& of, Scope* scope) : statement(of), defined_in(scope) {}
  const Statement& statement;
  Scope* defined_in;
  [[nodiscard]] std::string_view type() const override { return "Macro"; }
};
struct Function : Object {
  using Body = Value (*)(Interpreter&, const Arguments&);
  explicit Function(Body run) : body(run) {}
  Body body;
  [[nodiscard]] std::string_view type() const override { return "function"; }
};
struct Method : Object {
  using Body = Value (*)(Interpreter&, const Value&, const Arguments&);
  Method(Value of, Body run) : self(std::move(of)), body(run) {}
  Value self;
  Body body;
  [[nodiscard]] std::string_view type() const override { return "builtin_function_or_method"; }
};
struct Loop : Object {
  const Statement* statement = nullptr;
  Scope* outer = nullptr;
  Value elements;
  std::size_t index = 0;
  int depth = 0;
  Value last_changed;
  bool has_changed = false;
  [[nodiscard]] std::string_view type() const override { return "LoopContext"; }
};
struct Cycler : Object {
  std::vector<Value> items;
  std::size_t at = 0;
  [[nodiscard]] std::string_view type() const override { return "Cycler"; }
};
struct Joiner : Object {
  std::string separator;
  bool used = false;
  [[nodiscard]] std::string_view type() const override { return "Joiner"; }
};

/// Returns nullptr for an unknown name. The tables are in methods.cpp and functions.cpp.
Method::Body find_method(const Value& of, std::string_view name);
Function::Body find_function(std::string_view name);
Value loop_attribute(Interpreter& interpreter, Loop* loop, const std::string& name);
Value cycler_attribute(Interpreter& interpreter, Cycler* cycler, const std::string& name);

/// `name` is one of "+", "-", "*", "/", "//", "%", "**".
Value arithmetic(std::string_view name, const Value& left, const Value& right, Budget& budget);
/// Evaluates text % values.
std::string format_percent(const std::string& text, const Value& values, Budget& budget);
std::int64_t need_int(const Value& value, std::string_view what);
const std::string& need_text(const Value& value, std::string_view what);
/// The length that len() returns.
std::int64_t length_of(const Value& value);

using FilterBody = Value (*)(Interpreter&, const Value&, const Arguments&);
using FilterTable = std::vector<std::pair<std::string_view, FilterBody>>;
const FilterTable& text_filters();
const FilterTable& list_filters();

}  // namespace tessera::text::chat
