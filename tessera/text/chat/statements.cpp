// SPDX-License-Identifier: Apache-2.0
// Parses the tags of a template to statements.
#include <utility>

#include "tessera/text/chat/parser.h"

namespace tessera::text::chat {
namespace {

using Kind = Statement::Kind;

class TemplateParser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body out = body({});
    if (current().kind != Token::Kind::End) unexpected("the end of the template");
    return out;
  }

 private:
  /// Parses up to a tag that begins with one of `ends`, whose name is left as the next token; or to
  /// the end of the template, if `ends` is empty.
  Body body(const std::vector<std::string>& ends) {
    const Deeper deeper(*this);
    Body out;
    while (current().kind != Token::Kind::End) {
      if (current().kind == Token::Kind::Data) {
        auto node = make_statement(Kind::Data);
        node->text = take().text;
        out.push_back(std::move(node));
      } else if (current().kind == Token::Kind::VariableBegin) {
        take();
        auto node = make_statement(Kind::Output);
        node->value = tuple();
        if (current().kind != Token::Kind::VariableEnd) unexpected("'}}'");
        take();
        out.push_back(std::move(node));
      } else {
        if (current().kind != Token::Kind::BlockBegin) unexpected("a tag");
        take();
        for (const std::string& end : ends) {
          if (is_name(end)) return out;
        }
        out.push_back(statement());
      }
    }
    if (!ends.empty()) unexpected("{% " + ends.front() + " %}");
    return out;
  }

  std::unique_ptr<Statement> make_statement(Kind kind) const {
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->line = current().line;
    return node;
  }
  void end_tag() {
    if (current().kind != Token::Kind::BlockEnd) unexpected("'%}'");
    take();
  }
  /// Parses the body of a statement and its closing tag.
  Body body_to(const std::string& end) {
    end_tag();
    Body out = body({end});
    take();
    end_tag();
    return out;
  }

  std::unique_ptr<Statement> statement() {
    auto node = make_statement(Kind::Data);
    if (current().kind != Token::Kind::Name) unexpected("the name of a tag");
    const std::string name = take().text;
    if (name == "for") {
      parse_for(*node);
    } else if (name == "if") {
      parse_if(*node);
    } else if (name == "set") {
      parse_set(*node);
    } else if (name == "macro") {
      node->kind = Kind::Macro;
      node->text = expect_any_name();
      node->parameters = parameters();
      const int loops = std::exchange(loops_, 0);
      node->body = body_to("endmacro");
      loops_ = loops;
    } else if (name == "call") {
      node->kind = Kind::CallBlock;
      if (is_operator("(")) node->parameters = parameters();
      node->value = expression();
      if (node->value->kind != Expression::Kind::Call) unexpected("a call");
      const int loops = std::exchange(loops_, 0);
      node->body = body_to("endcall");
      loops_ = loops;
    } else if (name == "filter") {
      node->kind = Kind::FilterBlock;
      node->value = filters(nullptr, true);
      node->body = body_to("endfilter");
    } else if (name == "with") {
      parse_with(*node);
    } else if (name == "generation") {
      node->kind = Kind::Generation;
      node->body = body_to("endgeneration");
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) syntax_error(node->line, "'" + name + "' outside of a loop");
      node->kind = name == "break" ? Kind::Break : Kind::Continue;
      end_tag();
    } else {
      syntax_error(node->line, "the tag '" + name + "' is not one of chat templates");
    }
    return node;
  }

  void parse_for(Statement& node) {
    node.kind = Kind::For;
    node.target = target("in", false);
    expect_name("in");
    node.value = tuple(false, "recursive");
    if (skip_name("if")) node.test = expression();
    node.recursive = skip_name("recursive");
    end_tag();
    ++loops_;
    node.body = body({"endfor", "else"});
    --loops_;
    const bool has_else = is_name("else");
    take();
    if (has_else) {
      node.otherwise = body_to("endfor");
    } else {
      end_tag();
    }
  }

  /// A chain of elif becomes nested statements.
  void parse_if(Statement& node) {
    const Deeper deeper(*this);
    node.kind = Kind::If;
    node.value = tuple(false);
    end_tag();
    node.body = body({"elif", "else", "endif"});
    const bool more = is_name("elif"), last = is_name("else");
    take();
    if (more) {
      auto inner = make_statement(Kind::If);
      parse_if(*inner);
      node.otherwise.push_back(std::move(inner));
    } else if (last) {
      node.otherwise = body_to("endif");
    } else {
      end_tag();
    }
  }

  void parse_set(Statement& node) {
    node.target = target({}, true);
    if (skip_operator("=")) {
      node.kind = Kind::Set;
      node.value = tuple();
      end_tag();
      return;
    }
    node.kind = Kind::SetBlock;
    if (is_operator("|")) node.value = filters(nullptr, false);
    node.body = body_to("endset");
  }

  void parse_with(Statement& node) {
    node.kind = Kind::With;
    while (current().kind != Token::Kind::BlockEnd) {
      if (!node.assignments.empty()) expect_operator(",");
      ExpressionPtr name = make(Expression::Kind::Name);
      name->text = expect_any_name();
      expect_operator("=");
      node.assignments.emplace_back(std::move(name), expression());
    }
    node.body = body_to("endwith");
  }

  Parameters parameters() {
    Parameters out;
    expect_operator("(");
    while (!is_operator(")")) {
      if (!out.names.empty()) expect_operator(",");
      if (is_operator(")")) break;
      out.names.push_back(expect_any_name());
      if (skip_operator("=")) {
        out.defaults.push_back(expression());
      } else if (!out.defaults.empty()) {
        unexpected("a default, because the parameter before has one");
      }
    }
    expect_operator(")");
    return out;
  }

  int loops_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) {
  return TemplateParser(lex(source)).run();
}

}  // namespace tessera::text::chat
