// SPDX-License-Identifier: Apache-2.0
// Tokens of a Jinja template, with the settings of published chat templates: trim_blocks and
// lstrip_blocks are on, and a final newline is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::chat {

struct Token {
  enum class Kind : std::uint8_t {
    Data,  ///< text outside of tags
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name,
    Text,  ///< a string literal, without quotes and escapes
    Integer,
    Real,
    Operator,
    End
  };
  Kind kind = Kind::End;
  std::string text;  ///< only for Data, Name, Text and Operator
  std::int64_t integer = 0;
  double real = 0.0;
  int line = 1;
};

/// The result ends with Kind::End. Throws Error{Format} with the line. Cost: linear.
std::vector<Token> lex(std::string_view source);
/// Throws Error{Format} for a malformed template.
[[noreturn]] void syntax_error(int line, const std::string& what);

}  // namespace tessera::text::chat
