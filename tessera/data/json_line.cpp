// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/json_line.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera::data {
namespace {

constexpr std::size_t kDeepest = 200;

/// Parses from left to right; every method returns false after an error, which problem_ describes.
class LineReader {
 public:
  LineReader(std::string_view line,
             std::string_view field,
             bool replace,
             std::string& out,
             std::int64_t& replaced)
      : line_(line), field_(field), replace_(replace), out_(out), replaced_(replaced) {}

  std::optional<LineProblem> read() {
    if (members() && end_of_line() && found_ == 0) missing();
    return std::move(problem_);
  }

 private:
  bool wrong(std::size_t at, std::string what, std::string fix = "") {
    if (!problem_) problem_ = LineProblem{at, std::move(what), std::move(fix)};
    return false;
  }
  bool expected(const char* what) {
    const std::string found =
        at_ < line_.size() ? fmt::format("\"{}\"", character()) : "the end of the line";
    return wrong(at_, fmt::format("not valid JSON: expected {}, found {}", what, found));
  }
  // The whole character, so that the message is valid UTF-8.
  [[nodiscard]] std::string_view character() const {
    std::size_t n = 1;
    while (at_ + n < line_.size() && (static_cast<unsigned char>(line_[at_ + n]) & 0xC0U) == 0x80U)
      ++n;
    return line_.substr(at_, n);
  }
  void skip_space() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n'))
      ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  [[nodiscard]] char peek() {
    skip_space();
    return at_ < line_.size() ? line_[at_] : '\0';
  }

  // The object of the line.
  bool members() {
    if (!take('{')) return expected("an object {...}");
    if (take('}')) return true;
    do {
      if (peek() != '"') return expected("a key in double quotes");
      const std::size_t key_at = at_;
      key_.clear();
      if (!string(&key_)) return false;
      keys_.push_back(key_);
      if (!take(':')) return expected("\":\"");
      if (key_ == field_ ? !text(key_at) : !value()) return false;
    } while (take(','));
    return take('}') || expected("\",\" or \"}\"");
  }
  bool end_of_line() {
    skip_space();
    return at_ == line_.size() || expected("the end of the line");
  }
  [[nodiscard]] std::string fix_of_missing() const {
    const auto has = [&](std::string_view key) {
      return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
    };
    const std::string fix = "set data.text_field to the field that holds the text";
    if (has("messages") || has("conversations"))
      return "these are conversations: set \"task\": \"sft\" to train on them";
    if (has("chosen") && has("rejected"))
      return "these are preferences: set \"task\": \"prefer\" to train on them";
    if (has("completion") || has("response") || has("instruction"))
      return fix + ", or \"task\": \"sft\" to train on prompts and answers";
    return fix;
  }
  void missing() {
    std::vector<std::string> keys(
        keys_.begin(),
        keys_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(keys_.size(), 8)));
    wrong(0,
          fmt::format("has no field \"{}\"{}",
                      field_,
                      keys.empty() ? "" : "; it has: " + text::join(keys, ", ")),
          fix_of_missing());
  }
  bool text(std::size_t key_at) {
    if (++found_ > 1) return wrong(key_at, fmt::format("the field \"{}\" is there twice", field_));
    const char c = peek();
    if (c == '"') return string(&out_);
    const std::size_t at = at_;
    if (!value()) return false;
    const char* kind = c == '{'               ? "an object"
                       : c == '['             ? "an array"
                       : c == 'n'             ? "null"
                       : c == 't' || c == 'f' ? "a boolean"
                                              : "a number";
    return wrong(at,
                 fmt::format("the field \"{}\" is {}, expected a string", field_, kind),
                 "set data.text_field to the field that holds the text");
  }

  // Parses any value, with a stack of open brackets instead of recursion.
  bool value() {
    std::string open;
    do {
      if (open.size() >= kDeepest)
        return wrong(at_, fmt::format("nested deeper than {}", kDeepest));
      const char c = peek();
      if (c == '{' || c == '[') {
        ++at_;
        open.push_back(c == '{' ? '}' : ']');
        if (!take(open.back())) {
          if (c == '{' && !key()) return false;
          continue;
        }
        open.pop_back();
      } else if (!scalar(c)) {
        return false;
      }
      if (!close(open)) return false;
    } while (!open.empty());
    return true;
  }
  // After a value: closes brackets that end here, or moves on to the next item.
  bool close(std::string& open) {
    while (!open.empty()) {
      if (take(',')) return open.back() == ']' || key();
      if (!take(open.back()))
        return expected(open.back() == '}' ? "\",\" or \"}\"" : "\",\" or \"]\"");
      open.pop_back();
    }
    return true;
  }
  bool key() {
    if (peek() != '"') return expected("a key in double quotes");
    return string(nullptr) && (take(':') || expected("\":\""));
  }
  bool scalar(char c) {
    if (c == '"') return string(nullptr);
    if (c == 't') return word("true");
    if (c == 'f') return word("false");
    if (c == 'n') return word("null");
    if (c == '-' || (c >= '0' && c <= '9')) return number();
    return expected("a value");
  }
  bool word(std::string_view expected_word) {
    if (line_.substr(at_, expected_word.size()) != expected_word) return expected("a value");
    at_ += expected_word.size();
    return true;
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < line_.size() && line_[at_] >= '0' && line_[at_] <= '9')
      ++at_;
    return at_ > begin || expected("a digit");
  }
  [[nodiscard]] bool at(char a, char b) const {
    return at_ < line_.size() && (line_[at_] == a || line_[at_] == b);
  }
  bool number() {
    if (at('-', '-')) ++at_;
    if (at('0', '0')) {
      ++at_;
    } else if (!digits()) {
      return false;
    }
    if (at('.', '.')) {
      ++at_;
      if (!digits()) return false;
    }
    if (at('e', 'E')) {
      ++at_;
      if (at('+', '-')) ++at_;
      if (!digits()) return false;
    }
    return true;
  }

  bool string(std::string* out) {
    ++at_;  // the opening quote
    for (;;) {
      const std::size_t begin = at_;
      while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
             static_cast<unsigned char>(line_[at_]) >= 0x20)
        ++at_;
      if (out != nullptr) out->append(line_, begin, at_ - begin);
      if (at_ >= line_.size()) return expected("the end of a string");
      if (line_[at_] == '"') {
        ++at_;
        return true;
      }
      if (line_[at_] != '\\') {
        return wrong(at_,
                     fmt::format("not valid JSON: control character 0x{:02X} in a string",
                                 static_cast<unsigned>(line_[at_])),
                     "write it as an escape");
      }
      if (!escape(out)) return false;
    }
  }
  bool escape(std::string* out) {
    const text::JsonEscape found = text::read_json_escape(line_, at_);
    const std::size_t begin = std::exchange(at_, std::min(found.end, line_.size()));
    switch (found.kind) {
      case text::JsonEscape::Kind::Unknown:
        return wrong(begin, "not valid JSON: unknown escape");
      case text::JsonEscape::Kind::BadDigits:
        return expected("four hexadecimal digits");
      case text::JsonEscape::Kind::LoneSurrogate:
        return lone(begin, found.code, out);
      case text::JsonEscape::Kind::Character:
        if (out != nullptr) text::append_utf8(*out, found.code);
        return true;
    }
    return true;
  }
  bool lone(std::size_t begin, char32_t code, std::string* out) {
    if (!replace_) {
      return wrong(begin,
                   fmt::format("lone surrogate \\u{:04x}, which is not a character",
                               static_cast<unsigned>(code)),
                   "set data.invalid_utf8 to \"replace\" to read it as U+FFFD");
    }
    if (out == &out_) ++replaced_;
    if (out != nullptr) text::append_utf8(*out, 0xFFFD);
    return true;
  }

  std::string_view line_, field_;
  bool replace_;
  std::string& out_;
  std::int64_t& replaced_;
  std::size_t at_ = 0;
  int found_ = 0;
  std::string key_;
  std::vector<std::string> keys_;
  std::optional<LineProblem> problem_;
};

}  // namespace

std::optional<LineProblem> read_text_field(std::string_view line,
                                           std::string_view field,
                                           bool replace,
                                           std::string& out,
                                           std::int64_t& replaced) {
  out.clear();
  return LineReader(line, field, replace, out, replaced).read();
}

}  // namespace tessera::data
