// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "tessera/base/error.h"
#include "tessera/text/gpt2_split.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/oniguruma.h"
#include "tessera/text/unicode_class.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kDepthLimit = 250'000;
constexpr std::uint32_t kHeapLimitKiB = 64U << 10;
constexpr std::size_t kLongestExpression = std::size_t{64} << 10;

class StringPattern final : public Pattern {
 public:
  explicit StringPattern(std::string text) : text_(std::move(text)) {}
  void find(std::string_view text, Ranges& out) const override {
    if (text_.empty()) return;
    for (std::size_t at = text.find(text_); at != std::string_view::npos;
         at = text.find(text_, at + text_.size())) {
      out.emplace_back(at, at + text_.size());
    }
  }

 private:
  std::string text_;
};

/// GPT-2's pattern: the pieces cover the text.
class Gpt2Pattern final : public Pattern {
 public:
  void find(std::string_view text, Ranges& out) const override {
    const Gpt2Splitter splitter(CharClasses::instance());
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    for (const char* p = begin; p < end;) {
      const char* const next = splitter.next(p, end);
      out.emplace_back(p - begin, next - begin);
      p = next;
    }
  }
};

/// The pattern of Llama 3 (at most three digits) and of Qwen2 (one digit). The pieces cover the
/// text.
class Llama3Pattern final : public Pattern {
 public:
  explicit Llama3Pattern(int digits) : digits_(digits) {}
  void find(std::string_view text, Ranges& out) const override {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = piece(text, at);
      out.emplace_back(at, next);
      at = next;
    }
  }

 private:
  struct At {
    CharClass kind;
    std::size_t next;
  };
  [[nodiscard]] At look(std::string_view text, std::size_t at) const {
    const Classified c = classify(classes_, text.data() + at, text.data() + text.size());
    return {c.kind, at + static_cast<std::size_t>(c.length)};
  }
  [[nodiscard]] std::size_t run(std::string_view text, std::size_t at, CharClass kind) const {
    while (at < text.size()) {
      const At c = look(text, at);
      if (c.kind != kind) break;
      at = c.next;
    }
    return at;
  }
  static bool line_end(char c) { return c == '\r' || c == '\n'; }

  // 's 't 'm 'd 're 've 'll in either case; U+017F folds to s.
  static std::size_t contraction(std::string_view text, std::size_t at) {
    if (text.size() - at < 2) return 0;
    const auto lower = [&](std::size_t i) {
      return i < text.size() && text[i] >= 'A' && text[i] <= 'Z'
                 ? static_cast<char>(text[i] + 32)
                 : (i < text.size() ? text[i] : '\0');
    };
    const char a = lower(at + 1), b = lower(at + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (text.substr(at + 1).starts_with("\xC5\xBF")) return 3;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
  }

  [[nodiscard]] std::size_t piece(std::string_view text, std::size_t at) const {
    const char lead = text[at];
    if (lead == '\'') {
      if (const std::size_t length = contraction(text, at); length > 0) return at + length;
    }
    const At first = look(text, at);
    if (first.kind == CharClass::Letter) return run(text, first.next, CharClass::Letter);
    if (first.kind == CharClass::Number) {
      std::size_t end = first.next;
      for (int n = 1; n < digits_ && end < text.size(); ++n) {
        const At c = look(text, end);
        if (c.kind != CharClass::Number) break;
        end = c.next;
      }
      return end;
    }
    if (!line_end(lead) && first.next < text.size() &&
        look(text, first.next).kind == CharClass::Letter) {
      return run(text, first.next, CharClass::Letter);
    }
    std::size_t others = at;
    if (lead == ' ') others = first.next;
    const std::size_t end = run(text, others, CharClass::Other);
    if (end > others) {
      std::size_t lines = end;
      while (lines < text.size() && line_end(text[lines]))
        ++lines;
      return lines;
    }
    return spaces(text, at);
  }

  // \s*[\r\n]+ up to the last line end; else all spaces but the last one before a word.
  [[nodiscard]] std::size_t spaces(std::string_view text, std::size_t at) const {
    std::size_t end = at, last = at, after_line = at;
    while (end < text.size()) {
      const At c = look(text, end);
      if (c.kind != CharClass::Space) break;
      last = end;
      if (line_end(text[end])) after_line = c.next;
      end = c.next;
    }
    if (after_line > at) return after_line;
    if (end == text.size() || last == at) return end;
    return last;
  }

  const CharClasses& classes_ = CharClasses::instance();
  int digits_;
};

class RegexPattern final : public Pattern {
 public:
  explicit RegexPattern(const std::string& expression) : expression_(expression) {
    const std::string translated = to_pcre2(expression);
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                              translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error,
                              &at,
                              nullptr));
    if (!code_) {
      std::string message(256, '\0');
      const int length = pcre2_get_error_message(
          error, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
      message.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
      throw Error(Error::Kind::Unsupported,
                  fmt::format("the regular expression \"{}\" is not read: {}", expression, message),
                  "write it in the dialect of PCRE2");
    }
    // Without just-in-time compilation matching is slower but correct.
    (void)pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    context_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_depth_limit(context_.get(), kDepthLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKiB);
  }

  void find(std::string_view text, Ranges& out) const override {
    const std::unique_ptr<pcre2_match_data, FreeData> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    for (std::size_t at = 0; at <= text.size();) {
      const int found = pcre2_match(code_.get(),
                                    reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(),
                                    at,
                                    PCRE2_NO_UTF_CHECK,
                                    data.get(),
                                    context_.get());
      if (found == PCRE2_ERROR_NOMATCH) return;
      TESSERA_REQUIRE(
          found >= 0,
          Data,
          fmt::format("the regular expression \"{}\" needs too many steps (PCRE2 error {})",
                      expression_,
                      found),
          "use a tokenizer whose pattern does not backtrack, or shorter texts");
      const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data.get());
      const std::size_t begin = bounds[0], end = std::max(bounds[0], bounds[1]);
      const bool follows = !out.empty() && out.back().second == end;
      if (end > begin || !follows) out.emplace_back(begin, end);
      at = end;
      if (end == begin) {
        if (at >= text.size()) return;
        at += character_length(text[at]);
      }
    }
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  };
  struct FreeData {
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  struct FreeContext {
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  };
  std::string expression_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
};

constexpr std::string_view kLlama3Start =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
constexpr std::string_view kLlama3End = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PatternPtr string_pattern(std::string text) {
  return std::make_shared<StringPattern>(std::move(text));
}

PatternPtr regex_pattern(const std::string& expression) {
  if (expression == kGpt2) return std::make_shared<Gpt2Pattern>();
  const std::string start(kLlama3Start), end(kLlama3End);
  if (expression == start + "{1,3}" + end) return std::make_shared<Llama3Pattern>(3);
  if (expression == start + end) return std::make_shared<Llama3Pattern>(1);
  TESSERA_REQUIRE(expression.size() <= kLongestExpression,
                  Format,
                  fmt::format("a regular expression of {} bytes is too long", expression.size()),
                  "use a tokenizer of a shorter one");
  return std::make_shared<RegexPattern>(expression);
}

}  // namespace tessera::text::tokenizers
