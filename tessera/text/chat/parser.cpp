// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/parser.h"

#include <algorithm>

namespace tessera::text::chat {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepest = 100;

bool is_compare(const Token& token) {
  static constexpr std::string_view kAll[] = {"==", "!=", ">", ">=", "<", "<="};
  return token.kind == Token::Kind::Operator &&
         std::find(std::begin(kAll), std::end(kAll), token.text) != std::end(kAll);
}

}  // namespace

ExpressionParser::Deeper::Deeper(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kDeepest)
    syntax_error(parser_.current().line, "nested deeper than " + std::to_string(kDeepest));
}

Token ExpressionParser::take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}
bool ExpressionParser::is_operator(std::string_view text) const {
  return current().kind == Token::Kind::Operator && current().text == text;
}
bool ExpressionParser::is_name(std::string_view text) const {
  return current().kind == Token::Kind::Name && current().text == text;
}
bool ExpressionParser::skip_operator(std::string_view text) {
  const bool found = is_operator(text);
  if (found) take();
  return found;
}
bool ExpressionParser::skip_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) take();
  return found;
}
void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected("'" + std::string(text) + "'");
}
void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) unexpected("'" + std::string(text) + "'");
}
std::string ExpressionParser::expect_any_name() {
  if (current().kind != Token::Kind::Name) unexpected("a name");
  return take().text;
}
void ExpressionParser::unexpected(const std::string& expected) const {
  const Token& token = current();
  std::string found = "'" + token.text + "'";
  if (token.kind == Token::Kind::End) found = "the end of the template";
  if (token.kind == Token::Kind::BlockEnd || token.kind == Token::Kind::VariableEnd)
    found = "the end of the tag";
  if (token.kind == Token::Kind::Integer || token.kind == Token::Kind::Real) found = "a number";
  syntax_error(token.line, "expected " + expected + " and found " + found);
}

void ExpressionParser::measure(Expression& node) {
  const auto add = [&](const ExpressionPtr& child) {
    if (child) node.depth = std::max(node.depth, child->depth + 1);
  };
  for (const auto& child : node.children)
    add(child);
  for (const auto& child : node.arguments.positional)
    add(child);
  for (const auto& [name, child] : node.arguments.named)
    add(child);
  add(node.arguments.more_positional);
  add(node.arguments.more_named);
  if (node.depth > kDeepest)
    syntax_error(node.line, "an expression nested deeper than " + std::to_string(kDeepest));
}

ExpressionPtr ExpressionParser::make(Kind kind, std::vector<ExpressionPtr> children) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = current().line;
  node->children = std::move(children);
  measure(*node);
  return node;
}

namespace {
template <class... Nodes>
std::vector<ExpressionPtr> nodes(Nodes&&... each) {
  std::vector<ExpressionPtr> out;
  (out.push_back(std::forward<Nodes>(each)), ...);
  return out;
}
}  // namespace

ExpressionPtr ExpressionParser::expression(bool with_condition) {
  const Deeper deeper(*this);
  return with_condition ? condition() : either();
}

ExpressionPtr ExpressionParser::condition() {
  ExpressionPtr value = either();
  while (skip_name("if")) {
    ExpressionPtr when = either();
    ExpressionPtr otherwise;
    if (skip_name("else")) otherwise = expression();
    value = make(Kind::Condition, nodes(std::move(value), std::move(when), std::move(otherwise)));
  }
  return value;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr value = both();
  while (skip_name("or"))
    value = make(Kind::Or, nodes(std::move(value), both()));
  return value;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr value = negation();
  while (skip_name("and"))
    value = make(Kind::And, nodes(std::move(value), negation()));
  return value;
}

ExpressionPtr ExpressionParser::negation() {
  if (!skip_name("not")) return comparison();
  const Deeper deeper(*this);
  return make(Kind::Not, nodes(negation()));
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  std::vector<std::string> operators;
  std::vector<ExpressionPtr> children;
  children.push_back(std::move(first));
  while (true) {
    if (is_compare(current())) {
      operators.push_back(take().text);
    } else if (skip_name("in")) {
      operators.emplace_back("in");
    } else if (is_name("not") && ahead().kind == Token::Kind::Name && ahead().text == "in") {
      take();
      take();
      operators.emplace_back("not in");
    } else {
      break;
    }
    children.push_back(sum());
  }
  if (operators.empty()) return std::move(children.front());
  ExpressionPtr node = make(Kind::Compare, std::move(children));
  node->operators = std::move(operators);
  return node;
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr value = concatenation();
  while (is_operator("+") || is_operator("-")) {
    std::string name = take().text;
    value = make(Kind::Arithmetic, nodes(std::move(value), concatenation()));
    value->text = std::move(name);
  }
  return value;
}

ExpressionPtr ExpressionParser::concatenation() {
  std::vector<ExpressionPtr> parts;
  parts.push_back(product());
  while (skip_operator("~"))
    parts.push_back(product());
  return parts.size() == 1 ? std::move(parts.front()) : make(Kind::Concat, std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr value = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    std::string name = take().text;
    value = make(Kind::Arithmetic, nodes(std::move(value), power()));
    value->text = std::move(name);
  }
  return value;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr value = unary(true);
  while (skip_operator("**")) {
    value = make(Kind::Arithmetic, nodes(std::move(value), unary(true)));
    value->text = "**";
  }
  return value;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  ExpressionPtr value;
  if (skip_operator("-")) {
    value = make(Kind::Negative, nodes(unary(false)));
  } else if (skip_operator("+")) {
    value = make(Kind::Positive, nodes(unary(false)));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filter_expression(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case Token::Kind::Name: {
      const std::string name = token.text;
      const bool yes = name == "true" || name == "True";
      const bool none = name == "none" || name == "None";
      ExpressionPtr node = make(yes || name == "false" || name == "False" ? Kind::Boolean
                                : none                                    ? Kind::None
                                                                          : Kind::Name);
      node->integer = yes ? 1 : 0;
      node->text = name;
      take();
      return node;
    }
    case Token::Kind::Text: {
      ExpressionPtr node = make(Kind::Text);
      while (current().kind == Token::Kind::Text)
        node->text += take().text;
      return node;
    }
    case Token::Kind::Integer:
    case Token::Kind::Real: {
      ExpressionPtr node = make(token.kind == Token::Kind::Real ? Kind::Real : Kind::Integer);
      node->integer = token.integer;
      node->real = token.real;
      take();
      return node;
    }
    default:
      break;
  }
  if (skip_operator("(")) {
    ExpressionPtr node = tuple(true, {}, true);
    expect_operator(")");
    return node;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  unexpected("a value");
}

ExpressionPtr ExpressionParser::list() {
  expect_operator("[");
  std::vector<ExpressionPtr> items;
  while (!is_operator("]")) {
    if (!items.empty()) expect_operator(",");
    if (is_operator("]")) break;
    items.push_back(expression());
  }
  expect_operator("]");
  return make(Kind::List, std::move(items));
}

ExpressionPtr ExpressionParser::dict() {
  expect_operator("{");
  std::vector<ExpressionPtr> items;
  while (!is_operator("}")) {
    if (!items.empty()) expect_operator(",");
    if (is_operator("}")) break;
    items.push_back(expression());
    expect_operator(":");
    items.push_back(expression());
  }
  expect_operator("}");
  return make(Kind::Dict, std::move(items));
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return current().kind == Token::Kind::BlockEnd || current().kind == Token::Kind::VariableEnd ||
         is_operator(")") || (!end.empty() && is_name(end));
}

ExpressionPtr ExpressionParser::tuple(bool with_condition,
                                      std::string_view end,
                                      bool explicit_parentheses) {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_operator(",");
    if (tuple_ends(end)) break;
    items.push_back(expression(with_condition));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (items.empty() && !explicit_parentheses) unexpected("an expression");
  return make(Kind::Tuple, std::move(items));
}

ExpressionPtr ExpressionParser::target(std::string_view end, bool with_attribute) {
  const Deeper deeper(*this);
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_operator(",");
    if (tuple_ends(end) || is_operator("=")) break;
    if (skip_operator("(")) {
      items.push_back(target({}, with_attribute));
      expect_operator(")");
    } else {
      ExpressionPtr node = make(Kind::Name);
      node->text = expect_any_name();
      for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
        if (node->text == word) syntax_error(node->line, "a constant cannot be assigned to");
      }
      if (with_attribute && skip_operator(".")) {
        ExpressionPtr attribute = make(Kind::Attribute, nodes(std::move(node)));
        attribute->text = expect_any_name();
        node = std::move(attribute);
      }
      items.push_back(std::move(node));
    }
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (items.empty()) unexpected("a name");
  return is_tuple ? make(Kind::Tuple, std::move(items)) : std::move(items.front());
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (skip_operator(".")) {
      if (current().kind == Token::Kind::Integer) {
        ExpressionPtr index = make(Kind::Integer);
        index->integer = take().integer;
        value = make(Kind::Item, nodes(std::move(value), std::move(index)));
      } else {
        value = make(Kind::Attribute, nodes(std::move(value)));
        value->text = expect_any_name();
      }
    } else if (is_operator("[")) {
      value = subscript(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  expect_operator("[");
  std::vector<ExpressionPtr> parts;
  bool slice = false;
  ExpressionPtr part;
  while (!is_operator("]")) {
    if (skip_operator(":")) {
      slice = true;
      parts.push_back(std::move(part));
    } else {
      if (part) unexpected("']'");
      part = expression();
    }
  }
  parts.push_back(std::move(part));
  expect_operator("]");
  if (parts.size() > 3) syntax_error(current().line, "a slice has at most three parts");
  if (!slice && !parts.front()) syntax_error(current().line, "an empty subscript");
  if (slice) parts.resize(3);
  parts.insert(parts.begin(), std::move(value));
  return make(slice ? Kind::Slice : Kind::Item, std::move(parts));
}

CallArguments ExpressionParser::arguments() {
  CallArguments out;
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (is_operator(")")) break;
    if (skip_operator("*")) {
      if (out.more_positional || out.more_named) unexpected("one argument after *");
      out.more_positional = expression();
    } else if (skip_operator("**")) {
      if (out.more_named) unexpected("one argument after **");
      out.more_named = expression();
    } else if (current().kind == Token::Kind::Name && ahead().kind == Token::Kind::Operator &&
               ahead().text == "=") {
      std::string name = take().text;
      take();
      out.named.emplace_back(std::move(name), expression());
    } else {
      if (out.more_positional || out.more_named || !out.named.empty())
        unexpected("a named argument");
      out.positional.push_back(expression());
    }
  }
  expect_operator(")");
  return out;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr value) {
  ExpressionPtr node = make(Kind::Call, nodes(std::move(value)));
  node->arguments = arguments();
  measure(*node);
  return node;
}

ExpressionPtr ExpressionParser::filter_expression(ExpressionPtr value) {
  while (true) {
    if (is_operator("|")) {
      value = filter(std::move(value));
    } else if (is_name("is")) {
      value = test(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool start_inline) {
  while (start_inline || is_operator("|")) {
    if (start_inline) {
      ExpressionPtr node = make(Kind::Filter, nodes(std::move(value)));
      node->text = expect_any_name();
      if (is_operator("(")) node->arguments = arguments();
      measure(*node);
      value = std::move(node);
    } else {
      value = filter(std::move(value));
    }
    start_inline = false;
  }
  return value;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value) {
  expect_operator("|");
  ExpressionPtr node = make(Kind::Filter, nodes(std::move(value)));
  node->text = expect_any_name();
  if (is_operator("(")) node->arguments = arguments();
  measure(*node);
  return node;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  expect_name("is");
  const bool negated = skip_name("not");
  ExpressionPtr node = make(Kind::Test, nodes(std::move(value)));
  node->text = expect_any_name();
  const bool word =
      current().kind == Token::Kind::Name && !is_name("else") && !is_name("or") && !is_name("and");
  if (is_operator("(")) {
    node->arguments = arguments();
  } else if (word || current().kind == Token::Kind::Text ||
             current().kind == Token::Kind::Integer || current().kind == Token::Kind::Real ||
             is_operator("[") || is_operator("{")) {
    if (is_name("is")) syntax_error(current().line, "several tests with \"is\" in a row");
    const Deeper deeper(*this);
    node->arguments.positional.push_back(postfix(primary()));
  }
  measure(*node);
  return negated ? make(Kind::Not, nodes(std::move(node))) : std::move(node);
}

}  // namespace tessera::text::chat
