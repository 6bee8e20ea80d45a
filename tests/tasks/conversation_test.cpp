// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/conversation.h"

#include <algorithm>
#include <optional>
#include <string>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/text/chat/chat_template.h"

namespace tessera::tasks {
namespace {

using test::byte;
using test::error_of;
using ::testing::HasSubstr;
using text::chat::ChatTemplate;

// A template that does not mark the assistant's text.
const char* const kPlain =
    "{% for m in messages %}{{ m.role[0] + ':' + m.content + ';\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}";

data::Record record_of(const std::string& text) {
  return {json::parse(text, "test"), "file.jsonl:3"};
}

/// The text that is learned; each byte that is not learned is a dot, the end of text a "$".
std::string learned(const LearnedTokens& tokens) {
  std::string out;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    const char c = tokens.ids[i] == 0 ? '$' : static_cast<char>(tokens.ids[i]);
    out += tokens.learned[i] != 0 ? c : '.';
  }
  return out;
}
std::string learned_of(const std::string& text,
                       LossOn loss_on = LossOn::Auto,
                       const char* chat_template = kPlain) {
  const data::Record record = record_of(text);
  const std::optional<ChatTemplate> chat =
      chat_template == nullptr ? std::nullopt : std::optional<ChatTemplate>(chat_template);
  return learned(ConversationTokenizer(byte(), chat ? &*chat : nullptr)
                     .read(record, form_of(record, "text"), loss_on, "text"));
}
std::string refusal(const std::string& text, const char* chat_template = kPlain) {
  const Error error = error_of([&] { learned_of(text, LossOn::Auto, chat_template); });
  return error.what() + std::string(" / ") + error.fix();
}

const char* const kTwoRounds =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},
                     {"role": "user", "content": "x"}, {"role": "assistant", "content": "zz"}]})";

TEST(Conversations, FindTheAssistantsTurnsOfATemplateThatDoesNotMarkThem) {
  EXPECT_EQ(learned_of(kTwoRounds), "........yo;........zz;.");
  EXPECT_EQ(learned_of(kTwoRounds, LossOn::LastAssistant), "...................zz;.");
  EXPECT_EQ(learned_of(kTwoRounds, LossOn::Completion), "...................zz;.");
  EXPECT_EQ(learned_of(kTwoRounds, LossOn::All), "u:hi;\na:yo;\nu:x;\na:zz;\n");
}

TEST(Conversations, LeaveOutTurnsThatTheRecordTakesOutOfTheLoss) {
  EXPECT_EQ(learned_of(R"({"messages": [{"role": "user", "content": "h"},
                             {"role": "assistant", "content": "a", "train": false},
                             {"role": "user", "content": "h"},
                             {"role": "assistant", "content": "b", "weight": 1},
                             {"role": "assistant", "content": "c", "weight": 0}]})"),
            ".................b;......");
}

TEST(Conversations, MarkChatMlByItsBuiltInTemplate) {
  const std::optional<ChatTemplate> chat = open_chat_template("chatml", {}, byte());
  ASSERT_TRUE(chat);
  const data::Record record = record_of(kTwoRounds);

  const LearnedTokens made =
      ConversationTokenizer(byte(), &*chat).read(record, Form::Messages, LossOn::Auto, "text");

  std::string marked = learned(made);
  marked.erase(std::remove(marked.begin(), marked.end(), '.'), marked.end());
  EXPECT_EQ(marked, "yo<|im_end|>zz<|im_end|>");
}

// The text is that of Qwen2.5's published template for such a turn.
TEST(Conversations, WriteCallsOfToolsInChatMl) {
  const std::optional<ChatTemplate> chat = open_chat_template("chatml", {}, byte());
  ASSERT_TRUE(chat);
  const auto learned_part = [&](const std::string& turn) {
    const data::Record record =
        record_of(R"({"messages": [{"role": "user", "content": "h"}, )" + turn + "]}");
    std::string out = learned(
        ConversationTokenizer(byte(), &*chat).read(record, Form::Messages, LossOn::Auto, "text"));
    return out.substr(out.find_first_not_of('.'),
                      out.find_last_not_of('.') + 1 - out.find_first_not_of('.'));
  };
  const std::string f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string g = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

  EXPECT_EQ(learned_part(R"({"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]})"),
            f + "<|im_end|>");
  EXPECT_EQ(learned_part(R"({"role": "assistant", "content": "so", "tool_calls": [
                {"name": "f", "arguments": {"a": 1}}, {"function": {"name": "g", "arguments": {}}}]})"),
            "so\n" + f + "\n" + g + "<|im_end|>");
  EXPECT_EQ(learned_part(R"({"role": "assistant", "content": "so", "tool_calls": null})"),
            "so<|im_end|>");
  EXPECT_THAT(error_of([&] { learned_part(R"({"role": "assistant", "content": null})"); }).what(),
              HasSubstr("file.jsonl:3"));
}

TEST(Conversations, ReadTheFormsInWhichPeopleKeepThem) {
  EXPECT_EQ(
      learned_of(
          R"({"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}],
                           "system": "be"})"),
      ".............g;.");
  EXPECT_EQ(learned_of(R"({"instruction": "do", "input": "it", "output": "ok",
                           "history": [["p", "q"]]})"),
            ".......q;............ok;.");
  EXPECT_EQ(learned_of(R"({"instruction": "do", "input": "", "output": "ok"})",
                       LossOn::Auto,
                       /*chat_template=*/nullptr),
            "...ok$");
  EXPECT_EQ(learned_of(R"({"prompt": [{"role": "user", "content": "h"}],
                           "completion": [{"role": "assistant", "content": "b"}]})"),
            ".......b;\n");
  EXPECT_EQ(learned_of(R"({"prompt": "1+1=", "completion": "2"})", LossOn::Auto, nullptr),
            "....2$");
  EXPECT_EQ(learned_of(R"({"text": "abc"})", LossOn::Auto, nullptr), "abc$");
}

TEST(Conversations, PassToolsAndVariablesToTheTemplate) {
  EXPECT_EQ(learned_of(R"({"messages": [{"role": "user", "content": "h"}], "tools": [{"name": "t"}],
                           "chat_template_kwargs": {"mood": "x"}})",
                       LossOn::All,
                       "{{ tools[0].name }}{{ mood }}"),
            "tx");
}

// The text is what transformers' apply_chat_template gives for messages without null members.
TEST(Conversations, MayHaveNullsPartsAndArgumentsAsTexts) {
  const char* const source =
      "{% for m in messages %}[{{ m.content + '|' if m.content is defined else 'none|' }}"
      "{{ m.reasoning_content }}{% for call in m.tool_calls or [] %}"
      "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}"
      "{% endfor %}]{% endfor %}";
  EXPECT_EQ(learned_of(R"({"messages": [{"role": "user", "content": "h", "tool_calls": null},
                       {"role": "assistant", "content": null, "thinking": "hm",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                       {"role": "user", "content": [{"type": "text", "text": "x"},
                                                    {"type": "text", "text": "y"}]}]})",
                       LossOn::All,
                       source),
            "[h|][none|hma=1][xy|]");
  EXPECT_EQ(
      learned_of(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})",
                 LossOn::All,
                 "{% for m in messages %}{{ m.content }}{% endfor %}"),
      "x");
}

TEST(Conversations, AreRefusedWithTheirPlace) {
  EXPECT_THAT(refusal(R"({"question": "a"})"), HasSubstr("file.jsonl:3: the record has none of"));
  EXPECT_THAT(refusal(R"({"question": "a"})"), HasSubstr("data.map"));
  EXPECT_THAT(refusal(kTwoRounds, nullptr), HasSubstr("task.params.chat_template"));
  EXPECT_THAT(refusal(R"({"messages": []})"), HasSubstr("\"messages\" is not a list of messages"));
  EXPECT_THAT(refusal(R"({"messages": [{"content": "a"}]})"), HasSubstr("not a list of messages"));
  EXPECT_THAT(refusal(R"({"conversations": [{"from": "nobody", "value": "a"}]})"),
              HasSubstr("nobody is called \"nobody\""));
  EXPECT_THAT(refusal(R"({"instruction": "a", "output": "b", "history": [["x"]]})"),
              HasSubstr("is not a pair of texts"));
  EXPECT_THAT(refusal(kTwoRounds, "{{ raise_exception('never') }}"), HasSubstr("never"));
  EXPECT_THAT(refusal(kTwoRounds, "{% for m in messages %}{{ m.content | length }}{% endfor %}"),
              HasSubstr("turns are not found"));
  EXPECT_THROW(open_chat_template("/no/such/file", {}, byte()), Error);
}

}  // namespace
}  // namespace tessera::tasks
