// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/oniguruma.h"

#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWords = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";
constexpr int kDeepest = 32;  // nested character classes

/// A union of characters: members in the notation of a class, and expressions for one character.
struct Union {
  std::string members;
  std::vector<std::string> others;

  [[nodiscard]] std::string expression() const {
    if (others.empty()) return fmt::format("[{}]", members);
    std::string out = "(?:";
    if (!members.empty()) out += fmt::format("[{}]|", members);
    return out + fmt::format("{})", fmt::join(others, "|"));
  }
};

/// The characters of a class between brackets: the intersection of `parts`, or all others.
struct CharacterClass {
  bool negated = false;
  std::vector<Union> parts = std::vector<Union>(1);

  [[nodiscard]] bool is_plain_union() const { return parts.size() == 1 && parts[0].others.empty(); }
  [[nodiscard]] std::string expression() const {
    if (is_plain_union()) return fmt::format("[{}{}]", negated ? "^" : "", parts[0].members);
    std::string all;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      all += fmt::format("(?={})", parts[i].expression());
    all += parts.back().expression();
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : fmt::format("(?:{})", all);
  }
};

class Translator {
 public:
  explicit Translator(const std::string& expression) : in_(expression) {}

  std::string translate() {
    std::string out;
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        out += escape(/*in_class=*/false);
      } else if (in_[at_] == '[') {
        out += character_class(1).expression();
      } else {
        out.push_back(in_[at_++]);
      }
    }
    return out;
  }

 private:
  /// Reads a backslash and what belongs to it.
  std::string escape(bool in_class) {
    if (at_ + 1 == in_.size()) return std::string(1, in_[at_++]);
    const char next = in_[at_ + 1];
    at_ += 2;
    if (next == 'u' && at_ + 4 <= in_.size()) {  // U+ and four digits
      at_ += 4;
      return fmt::format("\\x{{{}}}", in_.substr(at_ - 4, 4));
    }
    const std::string_view members = next == 's' || next == 'S'   ? kSpaces
                                     : next == 'w' || next == 'W' ? kWords
                                     : next == 'h' || next == 'H' ? kHex
                                                                  : std::string_view();
    const bool inverted = next == 'S' || next == 'W' || next == 'H';
    if (members.empty() || (inverted && in_class)) return {'\\', next};
    if (in_class) return std::string(members);
    return fmt::format("[{}{}]", inverted ? "^" : "", members);
  }

  /// Reads a class from its opening to its closing bracket.
  CharacterClass character_class(int depth) {
    if (depth > kDeepest) refuse("its character classes are nested too deep");
    CharacterClass out;
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out.negated = true;
      ++at_;
    }
    bool first = true, several = false;  // the last member stands for several characters
    while (at_ < in_.size()) {
      Union& part = out.parts.back();
      const std::string_view rest = std::string_view(in_).substr(at_);
      const bool after_several = std::exchange(several, false),
                 begins = std::exchange(first, false);
      if (rest[0] == '\\') {
        const std::string members = escape(/*in_class=*/true);
        several = members.size() > 2 && members[1] == 'x' ? members == kSpaces : members.size() > 2;
        part.members += members;
      } else if (rest[0] == ']' && !begins) {
        ++at_;
        return out;
      } else if (const std::size_t named = posix_name(rest); named > 0) {
        part.members += rest.substr(0, named);
        at_ += named;
      } else if (rest[0] == '[') {
        add(character_class(depth + 1), part);
        several = true;
      } else if (rest.starts_with("&&")) {
        out.parts.emplace_back();
        at_ += 2;
      } else {
        const bool literal = rest[0] == ']' || (rest[0] == '^' && part.members.empty()) ||
                             (rest[0] == '-' && after_several);
        if (literal) part.members.push_back('\\');
        part.members.push_back(rest[0]);
        ++at_;
      }
    }
    refuse("a character class is not closed");
  }

  /// The length of a named class, as in [[:alpha:]]; 0 if there is none.
  static std::size_t posix_name(std::string_view text) {
    if (!text.starts_with("[:")) return 0;
    const std::size_t end = text.find_first_not_of("^abcdefghijklmnopqrstuvwxyz", 2);
    return end != std::string_view::npos && text.substr(end).starts_with(":]") ? end + 2 : 0;
  }

  static void add(const CharacterClass& inner, Union& to) {
    // After a hyphen the members would become a range.
    if (inner.is_plain_union() && !inner.negated && !to.members.ends_with('-')) {
      to.members += inner.parts[0].members;
    } else {
      to.others.push_back(inner.expression());
    }
  }

  [[noreturn]] void refuse(const char* why) const {
    throw Error(Error::Kind::Unsupported,
                fmt::format("the regular expression \"{}\" is not read: {}", in_, why),
                "mend the expression");
  }

  const std::string& in_;
  std::size_t at_ = 0;
};

}  // namespace

std::string to_pcre2(const std::string& expression) {
  return Translator(expression).translate();
}

}  // namespace tessera::text::tokenizers
