// SPDX-License-Identifier: Apache-2.0
// Executes the statements of a template.
#include <algorithm>

#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/levels.h"

namespace tessera::text::chat {
namespace {

/// Temporarily redirects the output to another text.
class Redirect {
 public:
  Redirect(std::string*& out, std::string* to) : out_(out), before_(std::exchange(out, to)) {}
  ~Redirect() { out_ = before_; }
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

 private:
  std::string*& out_;
  std::string* before_;
};

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const auto& [key, value] : names) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

void Arguments::expect_none(std::string_view callee) const {
  if (!positional.empty() || !named.empty())
    fail(std::string(callee) + "() takes no arguments here");
}

std::vector<const Value*> Arguments::bind(std::string_view callee,
                                          std::initializer_list<std::string_view> names) const {
  const std::string of(callee);
  if (positional.size() > names.size())
    fail(of + "() takes at most " + std::to_string(names.size()) + " arguments and was given " +
         std::to_string(positional.size()));
  std::vector<const Value*> out(names.size(), nullptr);
  for (std::size_t i = 0; i < positional.size(); ++i)
    out[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail(of + "() has no argument '" + name + "'");
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (out[at] != nullptr) fail(of + "() was given '" + name + "' twice");
    out[at] = &value;
  }
  return out;
}

Rendered Interpreter::render(const Body& body,
                             const std::vector<std::pair<std::string, Value>>& variables) {
  Scope given;
  given.names = variables;
  Scope top;
  top.parent = &given;
  scope_ = &top;
  rendered_ = {};
  out_ = &rendered_.text;
  execute(body);
  scope_ = nullptr;
  return std::move(rendered_);
}

void Interpreter::write(const std::string& text) {
  budget_.bytes(text.size());
  *out_ += text;
}

std::string Interpreter::captured(const Body& body) {
  std::string out;
  const Redirect redirect(out_, &out);
  execute(body);
  return out;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const auto& statement : body) {
    if (const Flow flow = execute(*statement); flow != Flow::On) return flow;
  }
  return Flow::On;
}

Interpreter::Flow Interpreter::execute(const Statement& node) {
  const Level level(*this);
  switch (node.kind) {
    case Statement::Kind::Data:
      write(node.text);
      break;
    case Statement::Kind::Output:
      write(to_text(evaluate(*node.value), budget_));
      break;
    case Statement::Kind::For:
      return execute_for(node);
    case Statement::Kind::If:
      return execute(evaluate(*node.value).truth() ? node.body : node.otherwise);
    case Statement::Kind::Set:
      assign(*node.target, evaluate(*node.value));
      break;
    case Statement::Kind::SetBlock:
      execute_set_block(node);
      break;
    case Statement::Kind::Macro:
      for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
        scope->captured = true;
      scope_->set(node.text, Value::object(own<Macro>(node, scope_)));
      break;
    case Statement::Kind::CallBlock:
      execute_call_block(node);
      break;
    case Statement::Kind::FilterBlock: {
      const Inner inner(*this, scope_);
      const Value made = text(captured(node.body));
      write(to_text(evaluate_filter(*node.value, &made), budget_));
      break;
    }
    case Statement::Kind::With: {
      std::vector<Value> values;
      for (const auto& [name, value] : node.assignments)
        values.push_back(evaluate(*value));
      const Inner inner(*this, scope_);
      for (std::size_t i = 0; i < values.size(); ++i)
        assign(*node.assignments[i].first, values[i]);
      return execute(node.body);
    }
    case Statement::Kind::Generation: {
      const Inner inner(*this, scope_);
      const std::string made = captured(node.body);
      const std::size_t begin = rendered_.text.size();
      rendered_.generated.emplace_back(begin, begin + made.size());
      write(made);
      break;
    }
    case Statement::Kind::Break:
      return Flow::Break;
    case Statement::Kind::Continue:
      return Flow::Continue;
  }
  return Flow::On;
}

Interpreter::Flow Interpreter::execute_for(const Statement& node) {
  const Value iterable = evaluate(*node.value);
  return run_loop(node, iterable, 0);
}

Interpreter::Flow Interpreter::run_loop(const Statement& node, const Value& iterable, int depth) {
  std::vector<Value> elements = iterate(iterable, budget_);
  if (node.test) {
    std::vector<Value> kept;
    for (Value& element : elements) {
      const Inner inner(*this, scope_);
      assign(*node.target, element);
      if (evaluate(*node.test).truth()) kept.push_back(std::move(element));
    }
    elements = std::move(kept);
  }
  if (elements.empty()) {
    const Inner inner(*this, scope_);
    return execute(node.otherwise);
  }
  Loop* loop = own<Loop>();
  loop->statement = &node;
  loop->outer = scope_;
  loop->depth = depth;
  loop->elements = list(std::move(elements));
  for (; loop->index < loop->elements.items().size(); ++loop->index) {
    budget_.step();
    const Inner inner(*this, scope_);
    assign(*node.target, loop->elements.items()[loop->index]);
    scope_->set("loop", Value::object(loop));
    if (execute(node.body) == Flow::Break) break;
  }
  return Flow::On;
}

std::string Interpreter::loop_text(const Statement& loop,
                                   const Value& elements,
                                   Scope* outer,
                                   int depth) {
  const Level level(*this);
  std::string out;
  const Redirect redirect(out_, &out);
  const Inner inner(*this, outer);
  run_loop(loop, elements, depth);
  return out;
}

void Interpreter::execute_set_block(const Statement& node) {
  Value made;
  {
    const Inner inner(*this, scope_);
    made = text(captured(node.body));
    if (node.value) made = evaluate_filter(*node.value, &made);
  }
  assign(*node.target, made);
}

void Interpreter::execute_call_block(const Statement& node) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  const Value callee = evaluate(*node.value->children[0]);
  Arguments arguments = evaluate_arguments(node.value->arguments);
  arguments.named.emplace_back("caller", Value::object(own<Macro>(node, scope_)));
  write(to_text(call(callee, arguments), budget_));
}

Value Interpreter::call_macro(const Statement& macro,
                              Scope* defined_in,
                              const Arguments& arguments) {
  const Inner inner(*this, defined_in);
  const auto& [names, defaults] = macro.parameters;
  std::vector<Value> more;
  std::vector<std::pair<Value, Value>> more_named;
  std::vector<bool> given(names.size(), false);
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < names.size()) {
      scope_->set(names[i], arguments.positional[i]);
      given[i] = true;
    } else {
      more.push_back(arguments.positional[i]);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      if (name == "caller") {
        scope_->set(name, value);
      } else {
        more_named.emplace_back(text(name), value);
      }
      continue;
    }
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (given[at]) fail("macro '" + macro.text + "' was given '" + name + "' twice");
    scope_->set(name, value);
    given[at] = true;
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (given[i]) continue;
    const std::size_t first = names.size() - defaults.size();
    scope_->set(names[i],
                i >= first ? evaluate(*defaults[i - first])
                           : Value::undefined("parameter '" + names[i] + "' was not provided"));
  }
  scope_->set("varargs", list(std::move(more), true));
  scope_->set("kwargs", Value::dict(std::move(more_named), budget_));
  return text(captured(macro.body));
}

void Interpreter::assign(const Expression& target, const Value& value) {
  budget_.step();
  if (target.kind == Expression::Kind::Name) {
    scope_->set(target.text, value);
    return;
  }
  if (target.kind == Expression::Kind::Attribute) {
    auto* const names = evaluate(*target.children[0]).object_as<Namespace>();
    if (names == nullptr) fail("only attributes of a namespace() can be set");
    for (auto& [key, old] : names->names) {
      if (key == target.text) {
        old = value;
        return;
      }
    }
    names->names.emplace_back(target.text, value);
    return;
  }
  const std::vector<Value> values = iterate(value, budget_);
  if (values.size() != target.children.size())
    fail("expected " + std::to_string(target.children.size()) + " values to unpack, got " +
         std::to_string(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i)
    assign(*target.children[i], values[i]);
}

}  // namespace tessera::text::chat
