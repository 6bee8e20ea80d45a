// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/chat_template.h"

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::text::chat {
namespace {

json::Value parsed(const std::string& text) {
  return json::parse_strict(text, "test");
}

std::string rendered(const std::string& source,
                     const std::string& messages = "[]",
                     const RenderOptions& options = {}) {
  return ChatTemplate(source).render(parsed(messages), options).text;
}

std::string refusal(const std::string& source, const RenderOptions& options = {}) {
  try {
    rendered(source, "[]", options);
  } catch (const Error& error) {
    return error.what();
  }
  return "rendered";
}

// The texts of the file are what jinja2 itself gives for these templates.
TEST(ChatTemplate, RendersAsJinjaDoes) {
  std::ifstream in(tessera::test::source_dir().string() + "/tests/text/reference_jinja.json");
  std::ostringstream text;
  text << in.rdbuf();
  const json::Value reference = parsed(text.str());
  RenderOptions options;
  options.variables = *reference.find("variables");

  for (const json::Value& one : reference.find("cases")->items()) {
    const std::string& source = one.find("template")->as_string();
    SCOPED_TRACE(source);
    EXPECT_EQ(rendered(source, "[]", options), one.find("rendered")->as_string());
  }
}

TEST(ChatTemplate, ReportsTheLineOfWhatIsNotWellFormed) {
  EXPECT_NE(refusal("a\nb {% if %}").find("line 2"), std::string::npos);
  EXPECT_NE(refusal("{% include 'x' %}").find("'include'"), std::string::npos);
  EXPECT_NE(refusal("{{ 'open }}").find("not closed"), std::string::npos);
  EXPECT_NE(refusal("{% for x in y %}").find("endfor"), std::string::npos);
}

TEST(ChatTemplate, RefusesWhatPythonRefuses) {
  EXPECT_NE(refusal("{{ x.y }}").find("'x' is undefined"), std::string::npos);
  EXPECT_NE(refusal("{{ 'a' + 1 }}").find("concatenate"), std::string::npos);
  EXPECT_NE(refusal("{{ 1 // 0 }}").find("zero"), std::string::npos);
  EXPECT_NE(refusal("{{ [].append(1) }}").find("may not change"), std::string::npos);
  EXPECT_NE(refusal("{{ 9223372036854775807 + 1 }}").find("64 bits"), std::string::npos);
}

TEST(ChatTemplate, BoundsWhatAHostileTemplateUses) {
  RenderOptions small;
  small.limits.steps = 100'000;
  small.limits.bytes = 1 << 20;

  EXPECT_NE(refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("deeper"),
            std::string::npos);
  EXPECT_NE(refusal("{{ 'x' * 9999999999999 }}", small).find("bytes"), std::string::npos);
  EXPECT_NE(refusal("{{ range(10 ** 12) }}").find("range"), std::string::npos);
  EXPECT_NE(
      refusal("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", small)
          .find("more than"),
      std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] "
                    "%}{% endfor %}")
                .find("nests values"),
            std::string::npos);
  EXPECT_NE(refusal("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}")
                .find("nested deeper"),
            std::string::npos);
  EXPECT_NE(refusal("{{ 1" + std::string(500, '+') + "1 }}").find("nested deeper"),
            std::string::npos);
}

TEST(ChatTemplate, ReportsThePinnedDate) {
  RenderOptions options;
  std::tm day{};
  day.tm_year = 124;
  day.tm_mon = 6;
  day.tm_mday = 26;
  day.tm_hour = 12;
  options.now = std::mktime(&day);

  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y') }}", "[]", options), "26 Jul 2024");
}

TEST(ChatTemplate, MarksTheBytesOfTheAssistant) {
  const ChatTemplate chat(
      "{% for m in messages %}[{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "
      "endgeneration %}{% else %}{{ m.content }}{% endif %}]{% endfor %}");

  const Conversation made = chat.render(parsed(
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"né"},{"role":"assistant","content":"c"}])"));

  EXPECT_EQ(made.text, "[a][né][c]");
  const std::vector<std::pair<std::size_t, std::size_t>> expected = {{4, 7}, {9, 10}};
  EXPECT_EQ(made.assistant, expected);
  EXPECT_EQ(assistant_mask(made, {{0, 3}, {3, 5}, {5, 7}, {7, 9}, {9, 11}}),
            (std::vector<int>{0, 1, 1, 0, 1}));
}

}  // namespace
}  // namespace tessera::text::chat
