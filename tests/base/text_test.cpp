// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/text.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::text {
namespace {

const std::vector<std::string> kKeys = {"optimizer", "scheduler", "zero_optimization", "lr"};

TEST(Nearest, FindsTypingMistakes) {
  EXPECT_EQ(nearest("optimzer", kKeys), "optimizer");
  EXPECT_EQ(nearest("OPTIMIZER", kKeys), "optimizer");
  EXPECT_EQ(nearest("zero_optimisation", kKeys), "zero_optimization");
  EXPECT_EQ(nearest("rl", kKeys), "lr");  // a transposition of two letters is one mistake
}

TEST(Nearest, PrefersTheNameThatTheWordBegins) {
  const std::vector<std::string> presets = {"nano", "gpt2-small", "gpt2-medium", "gpt2-xl", "gpt3"};

  EXPECT_EQ(nearest("gpt2", presets), "gpt2-small");  // gpt3 is one letter away
  EXPECT_EQ(nearest("GPT2", presets), "gpt2-small");
  EXPECT_EQ(nearest("medium", presets), "gpt2-medium");
  EXPECT_EQ(nearest("nan", presets), "nano");
  EXPECT_EQ(nearest("max_step", std::vector<std::string>{"max_steps_of_all", "max_steps"}),
            "max_steps");
}

TEST(Nearest, PrefersTheNameThatHasAllWords) {
  const std::vector<std::string> flags = {"--per_device_train_batch_size",
                                          "--per_device_eval_batch_size"};

  // The flag for evaluation is one letter shorter and would be nearer by spelling.
  EXPECT_EQ(nearest("--per_device_batch_size", flags), "--per_device_train_batch_size");
  EXPECT_EQ(nearest("\xC3\xA9.txt", std::vector<std::string>{"other.txt"}), std::nullopt);
}

TEST(Nearest, GivesNothingForSomethingElse) {
  EXPECT_EQ(nearest("colour", kKeys), std::nullopt);
  EXPECT_EQ(nearest("", kKeys), std::nullopt);
  EXPECT_EQ(nearest("optimizer", {}), std::nullopt);
}

TEST(Suggestion, ListsNamesWhenNoneIsNear) {
  EXPECT_EQ(suggestion("optimzer", kKeys), "did you mean \"optimizer\"?");
  EXPECT_EQ(suggestion("colour", kKeys),
            "expected one of: optimizer, scheduler, zero_optimization, lr");
}

TEST(Suggestion, ListsAtMostTwelve) {
  const std::vector<std::string> many(20, "a_long_name");

  const std::string text = suggestion("zzz", many);

  EXPECT_EQ(text.substr(text.size() - 5), ", ...");
  EXPECT_EQ(split(text, ',').size(), 13U);
}

TEST(Sizes, AreRoundedToOneDigit) {
  EXPECT_EQ(bytes(0), "0 B");
  EXPECT_EQ(bytes(1023), "1023 B");
  EXPECT_EQ(bytes(1024), "1.0 KiB");
  EXPECT_EQ(bytes(1536), "1.5 KiB");
  EXPECT_EQ(bytes((1U << 20) - 1), "1.0 MiB");
  EXPECT_EQ(bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(Counts, AreShort) {
  EXPECT_EQ(count(87), "87");
  EXPECT_EQ(count(1234), "1.2k");
  EXPECT_EQ(count(124'439'808), "124.4M");
  EXPECT_EQ(count(999'999), "1.0M");
  EXPECT_EQ(count(-1500), "-1.5k");
}

TEST(Durations, HaveTwoUnits) {
  EXPECT_EQ(duration(0.25), "250ms");
  EXPECT_EQ(duration(48), "48s");
  EXPECT_EQ(duration(185), "3m05s");
  EXPECT_EQ(duration(7980), "2h13m");
  EXPECT_EQ(duration(3 * 86400.0), "3d00h");
  EXPECT_EQ(duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(Numbers, ReadBackAsTheSameDouble) {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, 5e-324, 123456789.125, -2.5e-8}) {
    EXPECT_EQ(std::strtod(number(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(number(0.1), "0.1");
  EXPECT_EQ(number(3), "3");
}

TEST(Numbers, HaveCommasEveryThreeDigits) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1'115'394), "1,115,394");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(-999), "-999");
}

TEST(Parts, SplitAndJoinAreInverse) {
  const std::vector<std::string> parts = {"a", "", "b"};

  EXPECT_EQ(split("a,,b", ','), parts);
  EXPECT_EQ(join(parts, ","), "a,,b");
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim("  "), "");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8("plain ascii, longer than eight bytes"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("\u00e9\u20ac\U0001F600"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("12345678\xFF"), 8U);
  EXPECT_EQ(find_invalid_utf8("a\xC0\xAF"), 1U);          // an overlong slash
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1U);      // a surrogate
  EXPECT_EQ(find_invalid_utf8("a\xF4\x90\x80\x80"), 1U);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("ab\xE2\x82"), 2U);         // truncated
  EXPECT_EQ(find_invalid_utf8("\x80"), 0U);
}

TEST(Utf8, EveryCutOfACharacterHasAnIncompleteTail) {
  const std::string text = "x\U0001F600";

  EXPECT_EQ(incomplete_utf8_tail(text), 0U);
  EXPECT_EQ(incomplete_utf8_tail(text.substr(0, 4)), 3U);
  EXPECT_EQ(incomplete_utf8_tail(text.substr(0, 3)), 2U);
  EXPECT_EQ(incomplete_utf8_tail(text.substr(0, 2)), 1U);
  EXPECT_EQ(incomplete_utf8_tail(text.substr(0, 1)), 0U);
  EXPECT_EQ(incomplete_utf8_tail("a\xFF"), 0U);
  EXPECT_EQ(incomplete_utf8_tail(""), 0U);
}

TEST(Utf8, ReplacementIsAlwaysValid) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {'a', static_cast<char>(first), static_cast<char>(second), 'b'};

      EXPECT_EQ(find_invalid_utf8(replace_invalid_utf8(text)), std::nullopt);
    }
  }
  EXPECT_EQ(replace_invalid_utf8("ok \u00e9"), "ok \u00e9");
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a\uFFFDz");
}

TEST(Printable, ShowsControlCharactersAsEscapes) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable("two\nlines\tand a tab"), "two\nlines\tand a tab");
  EXPECT_EQ(printable("\r\b\x7f"), "\\x0d\\x08\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\x9b31m")
      << "a C1 control begins a sequence like an escape";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\xEF\xBF\xBD"
            "31m")
      << "and so does its byte alone";
  EXPECT_EQ(printable("Größe 表"), "Größe 表");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
}

}  // namespace
}  // namespace tessera::text
