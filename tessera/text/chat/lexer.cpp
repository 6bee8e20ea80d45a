// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

constexpr std::size_t kMostSourceBytes = 4UL << 20;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}

/// Newlines become "\n", and the last one is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size())
      outside();
    add(Token::Kind::End);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool here(std::string_view text) const {
    return std::string_view(source_).substr(at_, text.size()) == text;
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  void add(Token::Kind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }
  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count),
                                         '\n'));
    at_ += count;
  }
  void skip_space() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    advance(rest.size() - strip_left(rest).size());
  }
  /// The text before a tag: "-" strips white space; if the line before a block or a comment is
  /// blank, its white space is stripped.
  [[nodiscard]] std::string_view before_tag(std::string_view data, char sign, bool block) const {
    if (sign == '-') return strip_right(data);
    if (sign == '+' || !block) return data;
    const std::size_t newline = data.rfind('\n');
    const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    const bool own_line = newline != std::string_view::npos || line_starting_;
    if (own_line && strip_left(data.substr(begin)).empty()) return data.substr(0, begin);
    return data;
  }
  /// The sign of the tag that opens here; the opening is two bytes long.
  [[nodiscard]] char sign() const { return peek(2) == '-' || peek(2) == '+' ? peek(2) : '\0'; }
  void after_block(char sign) {
    const std::size_t begin = at_;
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && peek() == '\n') {
      advance(1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void outside() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tag = source_.size();
        break;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    if (tag == source_.size()) {
      if (!data.empty()) add(Token::Kind::Data, std::string(data));
      advance(data.size());
      return;
    }
    const bool block = source_[tag + 1] != '{';
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const std::string_view kept = before_tag(data, mark, block);
    if (!kept.empty()) add(Token::Kind::Data, std::string(kept));
    advance(data.size());
    if (here("{#")) {
      comment();
    } else if (here("{{")) {
      inside(Token::Kind::VariableBegin, Token::Kind::VariableEnd, "}}");
    } else if (const std::size_t length = raw_tag(at_, "raw"); length > 0) {
      raw(length);
    } else {
      inside(Token::Kind::BlockBegin, Token::Kind::BlockEnd, "%}");
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) syntax_error(line_, "a comment {# is not closed");
    const char last = source_[end - 1];
    const bool signed_end = end > at_ + 2 && (last == '-' || last == '+');
    advance(end + 2 - at_);
    after_block(signed_end ? last : '\0');
  }

  /// The length of a tag {% word %} at `at`, without the white space that its signs strip; 0 if
  /// there is none.
  [[nodiscard]] std::size_t raw_tag(std::size_t at, std::string_view word) const {
    std::size_t i = at + 2;
    const auto spaces = [&] {
      while (i < source_.size() && is_space(static_cast<unsigned char>(source_[i])))
        ++i;
    };
    if (source_.compare(at, 2, "{%") != 0) return 0;
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
    spaces();
    if (source_.compare(i, word.size(), word) != 0) return 0;
    i += word.size();
    spaces();
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
    return i + 1 < source_.size() && source_.compare(i, 2, "%}") == 0 ? i + 2 - at : 0;
  }

  void raw(std::size_t length) {
    const int begin_line = line_;
    advance(length);
    if (source_[at_ - 3] == '-') skip_space();
    line_starting_ = source_[at_ - 1] == '\n';
    for (std::size_t end = source_.find("{%", at_); end != std::string::npos;
         end = source_.find("{%", end + 2)) {
      const std::size_t close = raw_tag(end, "endraw");
      if (close == 0) continue;
      const std::string_view data = std::string_view(source_).substr(at_, end - at_);
      const std::string_view kept = before_tag(data, source_[end + 2], true);
      if (!kept.empty()) add(Token::Kind::Data, std::string(kept));
      advance(end + close - at_);
      const char last = source_[at_ - 3];
      after_block(last == '-' || last == '+' ? last : '\0');
      return;
    }
    syntax_error(begin_line, "{% raw %} without {% endraw %}");
  }

  void inside(Token::Kind begin, Token::Kind end, std::string_view close) {
    add(begin);
    const int begin_line = line_;
    // "+" is a sign in blocks; before a variable it is an operator.
    const char mark = sign();
    advance(mark == '-' || (mark == '+' && close == "%}") ? 3 : 2);
    std::string open;  // open brackets
    while (true) {
      skip_space();
      if (at_ >= source_.size()) syntax_error(begin_line, "a tag is not closed");
      if (open.empty()) {
        const char sign = peek();
        const bool is_sign = (sign == '-' || (sign == '+' && close == "%}")) &&
                             std::string_view(source_).substr(at_ + 1, 2) == close;
        if (is_sign || here(close)) {
          add(end);
          advance(is_sign ? 3 : 2);
          if (close == "%}") {
            after_block(is_sign ? sign : '\0');
          } else {
            if (is_sign) skip_space();
            line_starting_ = source_[at_ - 1] == '\n';
          }
          return;
        }
      }
      word(open);
    }
  }

  void word(std::string& open) {
    const char c = peek();
    if (is_name_start(c)) {
      std::size_t length = 1;
      while (at_ + length < source_.size() && is_name(source_[at_ + length]))
        ++length;
      add(Token::Kind::Name, source_.substr(at_, length));
      advance(length);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      literal(c);
    } else {
      sign_or_bracket(open);
    }
  }

  void sign_or_bracket(std::string& open) {
    static constexpr std::array<std::string_view, 28> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "&"};
    for (const std::string_view candidate : kOperators) {
      if (!here(candidate) || candidate == "!" || candidate == "&") continue;
      const char c = candidate.front();
      if (candidate.size() == 1 && (c == '(' || c == '[' || c == '{')) {
        open += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (candidate.size() == 1 && (c == ')' || c == ']' || c == '}')) {
        if (open.empty() || open.back() != c)
          syntax_error(line_, std::string("unexpected '") + c + "'");
        open.pop_back();
      }
      add(Token::Kind::Operator, std::string(candidate));
      advance(candidate.size());
      return;
    }
    syntax_error(line_, std::string("unexpected character '") + peek() + "'");
  }

  std::string digits(bool (*accepts)(char)) {
    std::string out;
    while (accepts(peek()) || (peek() == '_' && accepts(peek(1)))) {
      if (peek() != '_') out += peek();
      advance(1);
    }
    return out;
  }

  void number() {
    int base = 10;
    const char kind = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (kind == 'x' || kind == 'o' || kind == 'b')) {
      base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
      advance(2);
    }
    std::string text = digits(
        base == 16 ? +[](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
                   : is_digit);
    bool real = false;
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == Token::Kind::Operator &&
                           tokens_.back().text == ".";
    if (base == 10 && !after_dot && peek() == '.' && is_digit(peek(1))) {
      advance(1);
      text += '.' + digits(is_digit);
      real = true;
    }
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 2 : 1;
    if (base == 10 && !after_dot && (peek() | 0x20) == 'e' && is_digit(peek(sign))) {
      text += 'e';
      if (sign == 2) text += peek(1);
      advance(sign);
      text += digits(is_digit);
      real = true;
    }
    Token token;
    token.line = line_;
    token.kind = real ? Token::Kind::Real : Token::Kind::Integer;
    const char *begin = text.data(), *end = text.data() + text.size();
    const auto read = real ? std::from_chars(begin, end, token.real)
                           : std::from_chars(begin, end, token.integer, base);
    if (text.empty() || read.ec != std::errc() || read.ptr != end)
      syntax_error(line_, "the number " + text + " is not one of 64 bits");
    tokens_.push_back(std::move(token));
  }

  void literal(char quote) {
    const int line = line_;
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote)
      end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) syntax_error(line, "a text in quotes is not closed");
    Token token;
    token.kind = Token::Kind::Text;
    token.line = line;
    token.text = unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    advance(end + 1 - at_);
    tokens_.push_back(std::move(token));
  }

  /// Escapes of Python's literals; an unknown one is left unchanged.
  [[nodiscard]] std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
        out += kCodes[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        out += escaped_code(text, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
        i += c == 'x' ? 2 : c == 'u' ? 4 : 8;
      } else if (c >= '0' && c <= '7') {
        std::size_t length = 1;
        while (length < 3 && i + length < text.size() && text[i + length] >= '0' &&
               text[i + length] <= '7')
          ++length;
        out += escaped_code(text, i, length, 8);
        i += length - 1;
      } else if (c == 'N') {
        syntax_error(line_, "an escape \\N{...} is not supported; write the character itself");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  [[nodiscard]] std::string escaped_code(std::string_view text,
                                         std::size_t begin,
                                         std::size_t length,
                                         int base) const {
    std::uint32_t code = 0;
    const std::string_view digits = text.substr(std::min(begin, text.size()), length);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const bool whole = digits.size() == length && read.ptr == digits.data() + digits.size();
    if (!whole || read.ec != std::errc() || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      syntax_error(line_, "an escape in a text names no character");
    return encode_utf8(static_cast<std::int32_t>(code));
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void syntax_error(int line, const std::string& what) {
  throw Error(Error::Kind::Format,
              "chat template, line " + std::to_string(line) + ": " + what,
              "correct the template in chat_template.jinja or tokenizer_config.json");
}

std::vector<Token> lex(std::string_view source) {
  TESSERA_REQUIRE(source.size() <= kMostSourceBytes,
                  Format,
                  "a chat template of " + std::to_string(source.size()) + " bytes",
                  "templates have at most 4 MiB");
  TESSERA_REQUIRE(!text::find_invalid_utf8(source),
                  Format,
                  "a chat template that is not valid UTF-8",
                  "save the template in UTF-8");
  return Lexer(normalize(source)).run();
}

}  // namespace tessera::text::chat
