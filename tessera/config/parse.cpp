// SPDX-License-Identifier: Apache-2.0
// A recursive-descent JSON parser. The depth limit bounds the recursion, so that 200,000 brackets
// give an error message instead of a stack overflow.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/config/json.h"

namespace tessera::json {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
         c == '+' || c == '.' || static_cast<unsigned char>(c) >= 0x80;
}

// Returns whether an unquoted word may contain `c`; file paths are allowed.
bool is_plain(char c) {
  return is_word(c) || c == '/';
}
bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
bool ends_line(char c) {
  return c == '\n' || c == '\r';
}

}  // namespace

class Parser {
 public:
  Parser(std::string_view text,
         const std::string& source,
         const ParseOptions& options,
         Error::Kind kind)
      : text_(text), source_(source), options_(options), kind_(kind) {}

  Value document() {
    if (text_.substr(0, 2) == "\xFF\xFE" || text_.substr(0, 2) == "\xFE\xFF")
      fail(0, "this is UTF-16, expected UTF-8", "save the file as UTF-8");
    refuse_what_is_no_text();
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") text_.remove_prefix(3);
    if (const auto bad = text::find_invalid_utf8(text_)) {
      fail(*bad, "byte " + hex_byte(text_[*bad]) + " is not valid UTF-8", "save the file as UTF-8");
    }
    skip_blank();
    if (at_end())
      fail(at_, "the file is empty, expected " + std::string(kExpected), "write at least {}");
    const bool bracket = peek() == '{' || peek() == '[';
    Value out = options_.hjson && !bracket ? object_without_braces() : value(0);
    skip_blank();
    if (!at_end())
      fail(at_,
           "expected the end of the file after the closing bracket, found " + found(),
           "remove everything after it");
    return out;
  }

 private:
  // ---- position ----
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }

  // Returns line and column of `position`. Positions must not decrease: the file is counted only
  // once.
  Place locate(std::size_t position) {
    for (; located_ < position && located_ < text_.size(); ++located_) {
      if (text_[located_] == '\n') {
        ++line_;
        column_ = 1;
      } else if ((static_cast<unsigned char>(text_[located_]) & 0xC0) != 0x80) {
        ++column_;
      }
    }
    return {source_, line_, column_};
  }

  [[nodiscard]] static std::string hex_byte(char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    return std::string("0x") + kDigits[byte >> 4] + kDigits[byte & 15];
  }

  // Describes what stands at the current position, for a message.
  [[nodiscard]] std::string found() const {
    if (at_end()) return "the end of the file";
    const char c = text_[at_];
    if (c == '\n' || c == '\r') return "the end of the line";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "byte " + hex_byte(c);
    std::size_t end = at_;
    while (end < text_.size() && is_word(text_[end]) && end - at_ < 24)
      ++end;
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80)
      ++end;
    if (end == at_) ++end;
    const std::string_view token = text_.substr(at_, end - at_);
    return token == "\"" ? "a string" : fmt::format("\"{}\"", token);
  }

  // A path of 200 brackets would not help the reader.
  [[nodiscard]] std::string brief_path() const {
    constexpr std::size_t kMost = 120;
    if (path_.size() <= kMost) return path_;
    std::string brief = path_.substr(0, kMost);
    brief.resize(kMost - text::incomplete_utf8_tail(brief));
    return brief + "...";
  }

  [[noreturn]] void fail_at(const Place& place,
                            const std::string& what,
                            const std::string& fix) const {
    const std::string where = path_.empty() ? "" : " (at " + brief_path() + ")";
    throw Error(kind_, place.text() + ": " + what + where, fix);
  }
  [[noreturn]] void fail(std::size_t position,
                         const std::string& what,
                         const std::string& fix = "") {
    fail_at(locate(position), what, fix);
  }

  void refuse_what_is_no_text() const {
    const std::size_t nul = text_.find('\0');
    if (nul == std::string_view::npos) return;
    throw Error(kind_,
                source_ + ": this is a binary file (byte 0x00 at offset " + std::to_string(nul) +
                    "), expected " + std::string(kExpected),
                "name a JSON file");
  }

  // ---- white space and comments ----
  // Returns whether a line ended in the skipped text.
  bool skip_blank() {
    bool new_line = false;
    for (;;) {
      const char c = peek();
      if (!at_end() && (is_blank(c) || ends_line(c))) {
        new_line = new_line || c == '\n';
        ++at_;
      } else if (begins_comment(at_)) {
        skip_comment();
      } else {
        return new_line;
      }
    }
  }
  [[nodiscard]] bool begins_comment(std::size_t at) const {
    const std::string_view two = text_.substr(std::min(at, text_.size()), 2);
    return two.substr(0, 1) == "#" || two == "//" || two == "/*";
  }
  [[nodiscard]] bool next_is(char c) const { return at_ + 1 < text_.size() && text_[at_ + 1] == c; }

  void skip_comment() {
    if (!options_.relaxed) fail(at_, "comments are not allowed here", "remove it");
    if (peek() == '/' && next_is('*')) {
      const std::size_t end = text_.find("*/", at_ + 2);
      if (end == std::string_view::npos) fail(at_, "this comment is never closed", "add */");
      at_ = end + 2;
    } else {
      at_ = std::min(text_.find('\n', at_), text_.size());
    }
  }

  // ---- values ----
  Value value(int depth) {
    Place place = locate(at_);
    Value out = bare_value(depth);
    out.place = std::move(place);
    out.strict_ = kind_ == Error::Kind::Format;
    return out;
  }

  Value bare_value(int depth) {
    const char c = peek();
    if (c == '{' || c == '[') {
      if (depth >= options_.max_depth) {
        fail(at_,
             "nested deeper than " + std::to_string(options_.max_depth) + " levels",
             "close brackets earlier");
      }
      return c == '{' ? object(depth) : array(depth);
    }
    if (c == '"') return Value::string(string('"'));
    if (c == '\'' && options_.relaxed) return Value::string(single_quoted());
    if (options_.hjson && !at_end() && std::string_view(",:]}\n").find(c) == std::string_view::npos)
      return without_quotes();
    if (is_digit(c) || c == '-') return number();
    if (at_end() || !(is_word(c) || (c == '/' && options_.relaxed))) {
      fail(at_, "expected a value, found " + found(), c == '\'' ? "use double quotes" : "");
    }
    return word();
  }

  // Hjson: a number or word is one only if a separator follows; anything else is a string that
  // extends to the end of the line.
  Value without_quotes() {
    std::size_t end = at_;
    while (end < text_.size() && is_word(text_[end]))
      ++end;
    const std::string_view token = text_.substr(at_, end - at_);
    while (end < text_.size() && is_blank(text_[end]))
      ++end;
    const char next = end < text_.size() ? text_[end] : '\n';
    const bool alone =
        ends_line(next) || next == ',' || next == '}' || next == ']' || begins_comment(end);
    if (alone && !token.empty() && (is_digit(token[0]) || token[0] == '-') && is_json_number(token))
      return number();
    if (alone && (token == "true" || token == "false" || token == "null" || is_foreign(token)))
      return word();
    const std::size_t line_end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = text::trim(text_.substr(at_, line_end - at_));
    at_ = line_end;
    return Value::string(std::string(line));
  }
  // Words of Python and C that are never meant as a string.
  static bool is_foreign(std::string_view word) {
    const std::string lower = text::lower(word);
    return word == "True" || word == "False" || word == "None" || lower == "nan" ||
           lower == "infinity" || lower == "-infinity";
  }

  Value word() {
    const std::size_t begin = at_;
    while (!at_end() && is_plain(peek()) && !begins_comment(at_))
      ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (name == "true") return Value::boolean(true);
    if (name == "false") return Value::boolean(false);
    if (name == "null") return Value();
    const bool last = ends_its_line(at_);
    at_ = begin;
    const std::string lower = text::lower(name);
    if (lower == "nan" || lower == "inf" || lower == "infinity" || lower == "+inf" ||
        lower == "+infinity") {
      fail(begin, std::string(name) + " is not a valid JSON number", "write a finite number");
    }
    std::string fix = kQuotes;
    if (lower == "true" || lower == "yes" || lower == "on") fix = "write true";
    if (lower == "false" || lower == "no" || lower == "off") fix = "write false";
    if (lower == "none" || lower == "nil") fix = "write null, or the word in double quotes";
    if (name.front() == '+' || name.front() == '.') fix = "numbers begin with a digit or \"-\"";
    if (options_.relaxed && last && fix == kQuotes) {
      at_ = begin + name.size();
      return Value::string(std::string(name));
    }
    fail(begin, "expected a value, found " + found(), fix);
  }
  // Returns whether nothing else is on the line: in Hjson, a comma or comment would belong to the
  // string.
  [[nodiscard]] bool ends_its_line(std::size_t at) const {
    while (at < text_.size() && is_blank(text_[at]))
      ++at;
    return at >= text_.size() || ends_line(text_[at]);
  }

  Value number() {
    const std::size_t begin = at_;
    while (!at_end() && is_word(peek()))
      ++at_;
    const std::string_view token = text_.substr(begin, at_ - begin);
    if (!is_json_number(token)) {
      at_ = begin;
      const bool no_number = token.size() > 1 && !is_digit(token[1]) && token[0] == '-';
      fail(begin,
           "\"" + std::string(token.substr(0, 40)) + "\" is not a number",
           no_number ? "write a finite number" : "numbers look like 12, -3, 0.5 or 5e8");
    }
    double as_double = 0.0;
    const auto result = std::from_chars(token.data(), token.data() + token.size(), as_double);
    // Too small a number becomes 0 (as everywhere); too large a number has no double. The sign of
    // the exponent tells them apart.
    if (result.ec == std::errc::result_out_of_range && token.find("e-") == std::string_view::npos &&
        token.find("E-") == std::string_view::npos) {
      fail(begin,
           std::string(token.substr(0, 40)) + " is too large for a number",
           "write a smaller number");
    }
    Value out;
    out.type_ = Value::Type::Number;
    out.text_ = std::string(token);
    return out;
  }

  // RFC 8259: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
  static bool is_json_number(std::string_view token) {
    std::size_t i = 0;
    const auto digits = [&] {
      const std::size_t begin = i;
      while (i < token.size() && is_digit(token[i]))
        ++i;
      return i - begin;
    };
    if (token[i] == '-') ++i;
    const std::size_t whole_begin = i, whole = digits();
    if (whole == 0 || (whole > 1 && token[whole_begin] == '0')) return false;
    if (i < token.size() && token[i] == '.') {
      ++i;
      if (digits() == 0) return false;
    }
    if (i < token.size() && (token[i] == 'e' || token[i] == 'E')) {
      ++i;
      if (i < token.size() && (token[i] == '+' || token[i] == '-')) ++i;
      if (digits() == 0) return false;
    }
    return i == token.size();
  }

  std::string string(char quote) {
    const std::size_t open = at_++;
    const std::array<char, 5> stops = {quote, '\\', '\n', '\r', '\0'};
    std::string out;
    for (;;) {
      const std::size_t run = text_.find_first_of(stops.data(), at_);
      if (run == std::string_view::npos || ends_line(text_[run])) {
        fail(open,
             "this string is never closed",
             fmt::format("add a {} quote before the end of the line",
                         quote == '"' ? "double" : "single"));
      }
      append_run(out, run);
      if (text_[run] == quote) {
        at_ = run + 1;
        return out;
      }
      at_ = run;
      append_escape(out);
    }
  }

  std::string single_quoted() {
    return text_.substr(at_, 3) == "'''" ? several_lines() : string('\'');
  }

  // '''...''': the indentation of the opening quotes is removed from each line, and the first and
  // the last line break are dropped.
  std::string several_lines() {
    const std::size_t open = at_;
    const auto indent = static_cast<std::size_t>(locate(open).column - 1);
    const std::size_t end = text_.find("'''", open + 3);
    if (end == std::string_view::npos) fail(open, "this string is never closed", "add '''");
    at_ = end + 3;
    std::vector<std::string> lines = text::split(text_.substr(open + 3, end - open - 3), '\n');
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::string& line = lines[i];
      if (!line.empty() && line.back() == '\r') line.pop_back();
      const std::size_t blank = std::min(line.find_first_not_of(" \t"), line.size());
      line.erase(0, i == 0 ? blank : std::min(blank, indent));
    }
    if (lines.size() > 1 && lines.front().empty()) lines.erase(lines.begin());
    if (lines.size() > 1 && lines.back().empty()) lines.pop_back();
    return text::join(lines, "\n");
  }

  void append_run(std::string& out, std::size_t end) {
    for (std::size_t i = at_; i < end; ++i) {
      if (static_cast<unsigned char>(text_[i]) < 0x20 && (text_[i] != '\t' || !options_.relaxed)) {
        fail(i,
             "control byte " + hex_byte(text_[i]) + " inside a string",
             "write it as an escape, such as \\t");
      }
    }
    out += text_.substr(at_, end - at_);
  }

  void append_escape(std::string& out) {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (c == '\'' && options_.relaxed) {
      out += c;
      at_ += 2;
      return;
    }
    const text::JsonEscape found = text::read_json_escape(text_, at_);
    switch (found.kind) {
      case text::JsonEscape::Kind::Character:
        break;
      case text::JsonEscape::Kind::LoneSurrogate:
        fail(at_, "half of a surrogate pair", "write both halves");
      case text::JsonEscape::Kind::BadDigits:
        fail(at_, "\\u needs four hexadecimal digits", "write a backslash as \\\\");
      case text::JsonEscape::Kind::Unknown:
        fail(at_,
             "unknown escape \\" + std::string(c == '\0' ? 0 : 1, c),
             "write \\\\ for a backslash");
    }
    text::append_utf8(out, found.code);
    at_ = found.end;
  }

  // ---- containers ----
  // After an element: returns true if another one follows, false at the closing bracket.
  bool another(char close, const Place& open) {
    const bool new_line = skip_blank();
    if (peek() == ',') {
      const std::size_t comma = at_++;
      skip_blank();
      if (peek() != close) return true;
      if (!options_.relaxed)
        fail(comma, "a comma before the closing bracket is not allowed here", "remove it");
    }
    if (peek() == close && !at_end()) {
      ++at_;
      return false;
    }
    if (at_end()) never_closed(close, open);
    const bool element = std::string_view("}]:").find(peek()) == std::string_view::npos;
    if (new_line && element && options_.relaxed)
      return true;  // the end of a line is a separator too
    const bool bracket = std::string_view("}]").find(peek()) != std::string_view::npos;
    fail(at_,
         std::string("expected \",\" or \"") + close + "\", found " + found(),
         bracket ? std::string("close with ") + close : "put a comma before it");
  }

  [[noreturn]] void never_closed(char close, const Place& open) {
    const char bracket = close == '}' ? '{' : '[';
    fail_at(locate(at_),
            std::string("expected \"") + close + "\", found the end of the file; the \"" + bracket +
                "\" at line " + std::to_string(open.line) + ", column " +
                std::to_string(open.column) + " is never closed",
            std::string("add \"") + close + "\"");
  }

  Value array(int depth) {
    const Place open = locate(at_++);
    Value out = Value::array();
    skip_blank();
    if (peek() == ']') {
      ++at_;
      return out;
    }
    const std::size_t outer = path_.size();
    do {
      if (at_end()) never_closed(']', open);
      path_ += fmt::format("[{}]", out.items_.size());
      out.items_.push_back(value(depth + 1));
      path_.resize(outer);
    } while (another(']', open));
    return out;
  }

  Value object(int depth) {
    const Place open = locate(at_++);
    Value out = Value::object();
    skip_blank();
    if (peek() == '}') {
      ++at_;
      return out;
    }
    std::unordered_set<std::string> seen;
    do {
      if (at_end()) never_closed('}', open);
      member(out, seen, depth);
    } while (another('}', open));
    return out;
  }

  Value object_without_braces() {
    Value out = Value::object();
    out.place = locate(at_);
    std::unordered_set<std::string> seen;
    while (!at_end()) {
      member(out, seen, 0);
      const bool new_line = skip_blank();
      const bool comma = peek() == ',';
      if (comma) ++at_;
      if (!new_line && !comma && !at_end())
        fail(at_,
             "expected \",\" or the end of the line, found " + found(),
             "put a comma before it");
      skip_blank();
    }
    return out;
  }

  std::string key() {
    const char c = peek();
    if (c == '"') return string('"');
    if (c == '\'' && options_.relaxed) return string('\'');
    if (at_end() || !options_.relaxed || !is_word(c)) {
      fail(at_,
           "expected a key in double quotes, found " + found(),
           c == ',' ? "remove one comma" : "");
    }
    const std::size_t begin = at_;
    while (!at_end() && is_plain(peek()) && !begins_comment(at_))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  void member(Value& out, std::unordered_set<std::string>& seen, int depth) {
    const std::size_t outer = path_.size();
    Place key_place = locate(at_);
    std::string key = this->key();
    path_ = join_path(path_, key);
    if (!seen.insert(key).second) {
      const Value* first = out.find(key);
      fail_at(key_place,
              "the key \"" + key + "\" appears twice, first at line " +
                  std::to_string(first->key_place.line),
              "remove one of them");
    }
    skip_blank();
    if (peek() != ':') {
      fail(at_,
           "expected \":\" after the key \"" + key + "\", found " + found(),
           "put a colon between the key and its value");
    }
    ++at_;
    skip_blank();
    Value item = value(depth + 1);
    item.key_place = std::move(key_place);
    out.members_.emplace_back(std::move(key), std::move(item));
    path_.resize(outer);
  }

  static constexpr const char* kQuotes = "write strings in double quotes";
  static constexpr std::string_view kExpected = "one JSON object";
  std::string_view text_;
  const std::string& source_;
  ParseOptions options_;
  Error::Kind kind_;
  std::size_t at_ = 0;
  std::size_t located_ = 0;
  int line_ = 1, column_ = 1;
  std::string path_;
};

Value parse(std::string_view text, const std::string& source, ParseOptions options) {
  return Parser(text, source, options, Error::Kind::Config).document();
}

Value parse_strict(std::string_view text, const std::string& source, int max_depth) {
  return Parser(text, source, {.relaxed = false, .max_depth = max_depth}, Error::Kind::Format)
      .document();
}

}  // namespace tessera::json
