// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/colossal/python_literal.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

constexpr int kMostDepth = 200;
constexpr std::size_t kMostBytes = std::size_t{256} << 10;
constexpr double kMostInteger = 0x1p62;

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

class Python {
 public:
  Python(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  json::Value file() {
    names_.place = place(0);
    for (skip(/*lines=*/true); !at_end(); skip(/*lines=*/true))
      statement();
    spread_config();
    return std::move(names_);
  }

 private:
  // ---- position ----
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] json::Place place(std::size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const std::size_t last = before.rfind('\n');
    const std::size_t column = last == std::string_view::npos ? at : at - last - 1;
    return {source_, static_cast<int>(lines) + 1, static_cast<int>(column) + 1};
  }
  [[noreturn]] void fail(std::size_t at,
                         const std::string& what,
                         const std::string& fix = "") const {
    throw Error(Error::Kind::Config, place(at).text() + ": " + what, fix);
  }

  // Skips white space and comments; also line ends if `lines` is set or inside brackets.
  void skip(bool lines) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && (lines || depth_ > 0)) ||
                 (c == ';' && lines)) {
        ++at_;
      } else {
        return;
      }
    }
  }
  [[nodiscard]] bool ahead(std::string_view token) const {
    return text_.substr(std::min(at_, text_.size()), token.size()) == token;
  }
  bool take(std::string_view token) {
    skip(/*lines=*/false);
    if (!ahead(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(char c) {
    if (!take(std::string_view(&c, 1)))
      fail(at_, fmt::format("expected \"{}\", found {}", c, found()));
  }
  [[nodiscard]] std::string found() const {
    if (at_end()) return "the end of the file";
    if (peek() == '\n') return "the end of the line";
    return fmt::format("\"{}\"", peek());
  }

  // ---- statements ----
  void statement() {
    const std::size_t begin = at_;
    if (peek() == '"' || peek() == '\'') {  // a docstring
      expression();
      return;
    }
    if (std::isalpha(static_cast<unsigned char>(peek())) != 0 || peek() == '_') {
      const std::string word = name();
      if (word == "import" || word == "from") return read_import();
      skip(/*lines=*/false);
      if (peek() == '=' && peek(1) != '=') {
        ++at_;
        json::Value value = expression();
        value.key_place = place(begin);
        names_[word] = std::move(value);
        return end_of_statement();
      }
      at_ = begin;
    }
    // A single dictionary is as good as assignments.
    json::Value value = expression();
    if (!value.is_object())
      fail(begin, "expected NAME = VALUE or a dictionary", "write CONFIG = dict(...)");
    for (auto& [key, member] : value.members())
      names_[key] = std::move(member);
    end_of_statement();
  }
  void end_of_statement() {
    skip(/*lines=*/false);
    if (!at_end() && peek() != '\n' && peek() != ';')
      fail(at_, fmt::format("expected the end of the line, found {}", found()));
  }
  /// Keeps the names that the import brings, "A" of "from X import A" or "B" of "A as B", which
  /// stand for the text "A".
  void read_import() {
    int open = 0;
    std::string last;
    bool renamed = false;
    while (!at_end() && (peek() != '\n' || open > 0)) {
      if (peek() == '(') ++open;
      if (peek() == ')') --open;
      if (!is_name_char(peek())) {
        ++at_;
        continue;
      }
      const std::string word = name();
      if (word == "import" || word == "from") continue;
      if (word == "as") {
        renamed = true;
        continue;
      }
      if (!renamed) last = word;
      imported_[word] = last;
      renamed = false;
    }
  }
  std::string name() {
    const std::size_t begin = at_;
    while (is_name_char(peek()))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  void spread_config() {
    const json::Value* const config = names_.find("CONFIG");
    if (config == nullptr || !config->is_object()) return;
    const json::Value inner = *config;
    std::erase_if(names_.members(), [](const auto& member) { return member.first == "CONFIG"; });
    for (const auto& [key, value] : inner.members())
      names_[key] = value;
  }

  // ---- expressions, from loosest to tightest ----
  json::Value expression() {
    skip(/*lines=*/false);
    json::Value left = product();
    for (;;) {
      skip(/*lines=*/false);
      const std::size_t at = at_;
      if (take("+"))
        left = number(left, product(), '+', at);
      else if (take("-"))
        left = number(left, product(), '-', at);
      else
        return left;
    }
  }
  json::Value product() {
    json::Value left = signed_power();
    for (;;) {
      skip(/*lines=*/false);
      const std::size_t at = at_;
      if (ahead("**")) fail(at_, "write this power with parentheses");
      if (take("//"))
        left = number(left, signed_power(), 'q', at);
      else if (take("*"))
        left = number(left, signed_power(), '*', at);
      else if (take("/"))
        left = number(left, signed_power(), '/', at);
      else if (take("%"))
        left = number(left, signed_power(), '%', at);
      else
        return left;
    }
  }
  json::Value signed_power() {
    const Nesting nesting(*this);
    skip(/*lines=*/false);
    const std::size_t at = at_;
    if (take("-")) return number(json::Value::integer(0), signed_power(), '-', at);
    if (take("+")) return signed_power();
    json::Value base = atom();
    skip(/*lines=*/false);
    const std::size_t power = at_;
    return take("**") ? number(base, signed_power(), '^', power) : base;
  }

  json::Value number(const json::Value& a, const json::Value& b, char op, std::size_t at) const {
    if (!a.is_number() || !b.is_number())
      fail(at, "only numbers can be calculated with", "write the value itself");
    const double x = a.as_double(), y = b.as_double();
    const bool whole = a.as_integer() && b.as_integer() && op != '/';
    if ((op == '/' || op == 'q' || op == '%') && y == 0) fail(at, "division by zero");
    double out = 0;
    if (op == '+') out = x + y;
    if (op == '-') out = x - y;
    if (op == '*') out = x * y;
    if (op == '/') out = x / y;
    if (op == 'q') out = std::floor(x / y);
    if (op == '%') out = x - std::floor(x / y) * y;
    if (op == '^') out = std::pow(x, y);
    if (!std::isfinite(out)) fail(at, "the result is too large for a number");
    json::Value value = whole && std::abs(out) < kMostInteger && out == std::floor(out)
                            ? json::Value::integer(static_cast<std::int64_t>(out))
                            : json::Value::number(out);
    value.place = a.place;
    return value;
  }

  json::Value atom() {
    skip(/*lines=*/false);
    const json::Place where = place(at_);
    json::Value out = bare_atom();
    out.place = where;
    return out;
  }
  json::Value bare_atom() {
    const char c = peek();
    if (c == '{') return braces();
    if (c == '[') return sequence(']');
    if (c == '(') return parentheses();
    if (c == '"' || c == '\'') return strings();
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') return literal_number();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') return named();
    fail(at_, fmt::format("expected a value, found {}", found()));
  }

  json::Value named() {
    const std::size_t begin = at_;
    const std::string word = name();
    if (word == "True" || word == "False") return json::Value::boolean(word == "True");
    if (word == "None") return {};
    if (peek() == '.') {
      while (peek() == '.' || is_name_char(peek()))
        ++at_;
      const std::string dotted(text_.substr(begin, at_ - begin));
      skip(/*lines=*/false);
      if (take_empty_call()) return json::Value::string(dotted + "()");
      if (peek() == '(' || peek() == '[') refuse_call(begin, dotted);
      return json::Value::string(dotted);
    }
    skip(/*lines=*/false);
    if (peek() == '(') {
      if (word == "dict") return dict_call();
      if (word == "list" || word == "tuple") return sequence_call();
      // A constructor call without arguments is kept as a word: NAME().
      if (take_empty_call()) return json::Value::string(word + "()");
      refuse_call(begin, word);
    }
    return assigned(word, begin);
  }
  bool take_empty_call() {
    if (peek() != '(') return false;
    std::size_t end = at_ + 1;
    while (end < text_.size() && std::isspace(static_cast<unsigned char>(text_[end])) != 0)
      ++end;
    if (end >= text_.size() || text_[end] != ')') return false;
    at_ = end + 1;
    return true;
  }
  [[noreturn]] void refuse_call(std::size_t at, const std::string& name) const {
    fail(at, fmt::format("{}(...) would have to be executed", name), "write the value itself");
  }
  json::Value assigned(const std::string& word, std::size_t at) const {
    const json::Value* value = names_.find(word);
    const auto imported = imported_.find(word);
    if (value == nullptr && imported != imported_.end())
      return json::Value::string(imported->second);
    if (value == nullptr)
      fail(at, fmt::format("the name {} is not assigned above", word), "write the value itself");
    return *value;
  }

  // Reads elements until `close`; each one is read by `element`.
  template <class Element>
  void elements(char close, const Element& element) {
    ++at_;
    ++depth_;
    for (;;) {
      skip(/*lines=*/true);
      if (peek() == close) break;
      if (at_end()) fail(at_, fmt::format("expected \"{}\", found {}", close, found()));
      element();
      skip(/*lines=*/true);
      if (peek() == ',') {
        ++at_;
      } else if (peek() != close) {
        fail(at_, fmt::format("expected \",\" or \"{}\", found {}", close, found()));
      }
    }
    ++at_;
    --depth_;
  }
  void add_member(json::Value& out, const std::string& key, std::size_t at) {
    if (out.find(key) != nullptr)
      fail(at, fmt::format("the key \"{}\" appears twice", key), "remove one of them");
    json::Value value = expression();
    value.key_place = place(at);
    out[key] = std::move(value);
  }
  json::Value braces() {
    json::Value out = json::Value::object();
    elements('}', [&] {
      const std::size_t at = at_;
      const json::Value key = expression();
      expect(':');
      add_member(out, key.is_string() ? key.as_string() : key.dump(), at);
    });
    return out;
  }
  json::Value dict_call() {
    json::Value out = json::Value::object();
    elements(')', [&] {
      const std::size_t at = at_;
      const std::string key = name();
      if (key.empty()) fail(at, "expected KEY = VALUE");
      expect('=');
      add_member(out, key, at);
    });
    return out;
  }
  json::Value sequence(char close) {
    json::Value out = json::Value::array();
    elements(close, [&] { out.push_back(expression()); });
    return out;
  }
  json::Value sequence_call() {
    json::Value out = sequence(')');
    if (out.items().size() == 1 && out.items().front().is_array()) return out.items().front();
    return out;
  }
  // (x) is x; anything else in parentheses is a tuple.
  json::Value parentheses() {
    const std::size_t begin = at_;
    json::Value out = sequence(')');
    std::size_t before = at_ - 1;
    while (before > begin && std::isspace(static_cast<unsigned char>(text_[before - 1])) != 0)
      --before;
    const bool tuple = out.items().size() != 1 || text_[before - 1] == ',';
    return tuple ? out : json::Value(out.items().front());
  }

  json::Value literal_number() {
    const std::size_t begin = at_;
    std::string digits;
    for (; is_name_char(peek()) || peek() == '.' ||
           ((peek() == '+' || peek() == '-') && (digits.ends_with('e') || digits.ends_with('E')));
         ++at_) {
      if (peek() != '_') digits += peek();
    }
    if (digits.starts_with('.')) digits.insert(0, "0");
    double value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size())
      fail(begin, fmt::format("\"{}\" is not a number", digits));
    const bool whole = digits.find_first_of(".eE") == std::string::npos && value < kMostInteger;
    return whole ? json::Value::integer(static_cast<std::int64_t>(value))
                 : json::Value::number(value);
  }

  json::Value strings() {
    std::string out;
    while (peek() == '"' || peek() == '\'') {
      out += string();
      skip(/*lines=*/false);
    }
    return json::Value::string(std::move(out));
  }
  std::string string() {
    const std::size_t open = at_;
    const std::string one(1, peek()), three(3, peek());
    const std::string& quote = ahead(three) ? three : one;
    at_ += quote.size();
    std::string out;
    for (; !ahead(quote); ++at_) {
      if (at_end() || (peek() == '\n' && quote.size() == 1))
        fail(open, "this string is never closed");
      if (peek() == '\\') {
        ++at_;
        out += peek() == 'n' ? '\n' : peek() == 't' ? '\t' : peek();
      } else {
        out += peek();
      }
    }
    at_ += quote.size();
    return out;
  }

  // Limits the recursion.
  struct Nesting {
    explicit Nesting(Python& python) : python_(python) {
      if (++python_.nesting_ > kMostDepth)
        python_.fail(python_.at_, "nested too deeply", "close brackets earlier");
    }
    ~Nesting() { --python_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Python& python_;
  };

  std::string_view text_;
  const std::string& source_;
  std::size_t at_ = 0;
  int depth_ = 0;    // depth of brackets, inside of which line ends are ignored
  int nesting_ = 0;  // depth of calls
  json::Value names_ = json::Value::object();
  std::map<std::string, std::string> imported_;
};

}  // namespace

json::Value parse_python(std::string_view text, const std::string& source) {
  TESSERA_REQUIRE(text.size() <= kMostBytes,
                  Config,
                  fmt::format("{} has {} bytes, too many for a configuration", source, text.size()),
                  "name a smaller file");
  return Python(text, source).file();
}

}  // namespace tessera::interop
