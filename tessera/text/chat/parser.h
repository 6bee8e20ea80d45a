// SPDX-License-Identifier: Apache-2.0
// Parses tokens to expressions; the parser of statements derives from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/chat/lexer.h"
#include "tessera/text/chat/syntax.h"

namespace tessera::text::chat {

/// Grammar: Jinja 3.1. The nesting depth is bounded.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  class Deeper;
  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
  }
  Token take();
  [[nodiscard]] bool is_operator(std::string_view text) const;
  [[nodiscard]] bool is_name(std::string_view text) const;
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name();
  [[noreturn]] void unexpected(const std::string& expected) const;

  ExpressionPtr make(Expression::Kind kind, std::vector<ExpressionPtr> children = {}) const;
  ExpressionPtr expression(bool with_condition = true);
  /// Parses one expression, or a tuple without parentheses. `end`: a name that ends it.
  ExpressionPtr tuple(bool with_condition = true,
                      std::string_view end = {},
                      bool explicit_parentheses = false);
  ExpressionPtr target(std::string_view end, bool with_attribute);
  ExpressionPtr filters(ExpressionPtr value, bool start_inline);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr value);

  int depth_ = 0;

 private:
  ExpressionPtr condition();
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr filter_expression(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr list();
  ExpressionPtr dict();
  CallArguments arguments();
  [[nodiscard]] bool tuple_ends(std::string_view end) const;
  static void measure(Expression& node);
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

/// Counts the nesting depth during parsing.
class ExpressionParser::Deeper {
 public:
  explicit Deeper(ExpressionParser& parser);
  ~Deeper() { --parser_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  ExpressionParser& parser_;
};

}  // namespace tessera::text::chat
