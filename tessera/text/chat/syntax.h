// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::text::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// The arguments of a call, a filter or a test.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  ///< arguments after * and **
};

struct Expression {
  enum class Kind : std::uint8_t {
    None,
    Boolean,
    Integer,
    Real,
    Text,
    Name,
    Tuple,
    List,
    Dict,       ///< children: key, value, key, value, ...
    Condition,  ///< children: value, condition, alternative (may be absent)
    And,
    Or,
    Not,
    Negative,
    Positive,
    Arithmetic,  ///< `text` is the operator
    Concat,
    Compare,    ///< `operators` between the children
    Attribute,  ///< child.text
    Item,       ///< child[child]
    Slice,      ///< child[child:child:child]; each of the last three may be absent
    Call,
    Filter,  ///< the child is absent in a {% filter %} block and in {% set x | filter %}
    Test,
  };
  Kind kind = Kind::None;
  int line = 1;
  std::string text;
  std::int64_t integer = 0;
  double real = 0.0;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  CallArguments arguments;
  int depth = 1;  ///< depth of the tree below this node
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

/// Parameters of a macro or of a call block.
struct Parameters {
  std::vector<std::string> names;
  std::vector<ExpressionPtr> defaults;  ///< defaults of the last parameters
};

struct Statement {
  enum class Kind : std::uint8_t {
    Data,
    Output,
    For,
    If,
    Set,       ///< target = value
    SetBlock,  ///< target = rendered body, passed through the filters of `value` if present
    Macro,
    CallBlock,    ///< value: the call
    FilterBlock,  ///< value: the chain of filters
    With,         ///< targets and values in pairs
    Generation,
    Break,
    Continue,
  };
  Kind kind = Kind::Data;
  int line = 1;
  std::string text;      ///< Data; the name of a macro
  ExpressionPtr target;  ///< a name, a tuple of targets, or an attribute of a namespace
  ExpressionPtr value;   ///< Output, Set, If's condition, For's iterable
  ExpressionPtr test;    ///< condition of a For
  bool recursive = false;
  Body body, otherwise;
  Parameters parameters;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
};

/// Parses a template. Throws Error{Format} if it is malformed, nested too deeply, or contains a
/// statement that chat templates do not have (include, import, extends, block).
Body parse_template(std::string_view source);

}  // namespace tessera::text::chat
