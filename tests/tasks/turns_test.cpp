// SPDX-License-Identifier: Apache-2.0
// The assistant's turns in texts of templates that do not mark them, in the manner of published
// ones.
#include "tessera/tasks/turns.h"

#include <string>
#include <vector>

#include "support/special_tokens.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// ChatML with a system text of its own.
const char* const kTurnsOfChatMl =
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// Qwen3: thoughts are written in the last turn alone.
const char* const kTurnsWithThoughts =
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% set thoughts = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') "
    "if '</think>' in m.content else '' %}<|im_start|>assistant\n"
    "{% if loop.last %}<think>\n{{ thoughts }}\n</think>\n\n{% endif %}{{ answer }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// Phi-3: the end of text follows the last turn.
const char* const kTurnsOfPhi3 =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}";
// Llama 2: nothing begins an answer, and its text follows a space.
const char* const kTurnsOfLlama2 =
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} </s>{% else %}"
    "<<SYS>>{{ m.content }}<</SYS>>{% endif %}{% endfor %}";
// gpt-oss: the last answer ends with another token than the others.
const char* const kTurnsOfHarmony =
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";
// DeepSeek-R1: the beginning of an answer opens its thoughts.
const char* const kOpensThoughts =
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>"
    "{{ m.content.split('</think>')[-1] | trim }}</s>{% else %}<|user|>{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}";
// No token ends the turns between.
const char* const kTurnsOfWords =
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}</s>"
    "{% if add_generation_prompt %}Assistant: {% endif %}";
// The system's text is written into the last question.
const char* const kMovedSystem =
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]"
    "{% if loop.index0 >= messages | length - 2 %}{{ system }} {% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}";

class TurnsOfTemplates : public testing::Test {
 protected:
  TurnsOfTemplates() { folder_.write("tokenizer_config.json", R"({"eos_token": "</s>"})"); }

  /// The parts of the rendered text that are the assistant's turns.
  [[nodiscard]] std::vector<std::string> turns(const char* source,
                                               const std::string& messages) const {
    const text::chat::ChatTemplate chat(source);
    const text::TokenizerPtr tokenizer = folder_.tokenizer();
    const json::Value list = json::parse(messages, "test");
    const auto render = [&](const json::Value& some, bool add_generation_prompt) {
      text::chat::RenderOptions options;
      options.add_generation_prompt = add_generation_prompt;
      return chat.render(some, options).text;
    };
    const std::string whole = render(list, false);
    const auto found = Turns(chat, *tokenizer).find(list, whole, render);
    if (!found) return {"not found"};
    std::vector<std::string> out;
    for (const auto& [begin, end] : *found)
      out.push_back(whole.substr(begin, end - begin));
    return out;
  }

 private:
  tessera::test::SpecialTokens folder_{{"</s>",
                                        "<s>",
                                        "<|im_start|>",
                                        "<|im_end|>",
                                        "<|user|>",
                                        "<|assistant|>",
                                        "<|system|>",
                                        "<|end|>",
                                        "<|endoftext|>",
                                        "<|start|>",
                                        "<|message|>",
                                        "<|return|>"}};
};

/// What a template writes around an answer, where it is followed by others and where it is the
/// last.
struct TurnsRow {
  const char* name;
  const char* source;
  std::string before, after, before_last, after_last;
};

std::vector<TurnsRow> turns_rows() {
  return {
      {"chatml", kTurnsOfChatMl, "", "<|im_end|>", "", "<|im_end|>"},
      {"thinking", kTurnsWithThoughts, "", "<|im_end|>", "<think>\n\n</think>\n\n", "<|im_end|>"},
      {"phi3", kTurnsOfPhi3, "", "<|end|>", "", "<|end|>"},
      {"inst", kTurnsOfLlama2, " ", " </s>", " ", " </s>"},
      {"harmony", kTurnsOfHarmony, "<|message|>", "<|end|>", "<|message|>", "<|return|>"},
      {"opens thoughts", kOpensThoughts, "", "</s>", "", "</s>"},
      {"words", kTurnsOfWords, "", "", "", "\n</s>"},
      {"moved", kMovedSystem, "", "</s>", "", "</s>"}};
}

std::string turn_message(const std::string& role, const std::string& content) {
  return R"({"role": ")" + role + R"(", "content": )" + json::Value::string(content).dump() + "}";
}

// Words that are also parts of the templates, repeated, and in the questions too.
TEST_F(TurnsOfTemplates, AreFoundWhateverTheirWordsAre) {
  for (const TurnsRow& row : turns_rows()) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"q", "a", "r", "b"},
             {"a", "a", "a", "a"},
             {"assistant", "user", "system", "assistant"},
             {"x ||| y", "\xc3\xa4 \"b\"\nc", "<b>", "{{ m }}"}}) {
      const std::string messages =
          "[" + turn_message("user", words[0]) + "," + turn_message("assistant", words[1]) + "," +
          turn_message("user", words[2]) + "," + turn_message("assistant", words[3]) + "]";
      EXPECT_THAT(turns(row.source, messages),
                  ElementsAre(row.before + words[1] + row.after,
                              row.before_last + words[3] + row.after_last))
          << row.name << messages;
    }
  }
}

TEST_F(TurnsOfTemplates, AreFoundInConversationsOfAnyShape) {
  const std::string system = turn_message("system", "s"), user = turn_message("user", "u"),
                    answer = turn_message("assistant", "a");
  const std::string end = "<|im_end|>";
  for (const auto& [messages, expected] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {answer + "," + user + "," + answer, {"a" + end, "a" + end}},
           {user + "," + answer + "," + answer, {"a" + end, "a" + end}},
           {user + "," + user + "," + answer, {"a" + end}},
           {system + "," + user + "," + system + "," + answer, {"a" + end}},
           {user + "," + answer + "," + user, {"a" + end}},
           {user + "," + turn_message("assistant", "") + "," + user, {end}},
           {user, {}}}) {
    EXPECT_THAT(turns(kTurnsOfChatMl, "[" + messages + "]"), ElementsAreArray(expected))
        << messages;
  }
}

TEST_F(TurnsOfTemplates, HaveThoughtsWhereTheTemplateKeepsThem) {
  const std::string thought = turn_message("assistant", "<think>\nhm\n</think>\n\nyes");
  const std::string messages = "[" + turn_message("user", "u") + "," + thought + "," +
                               turn_message("user", "v") + "," + thought + "]";

  EXPECT_THAT(turns(kTurnsWithThoughts, messages),
              ElementsAre("yes<|im_end|>", "<think>\nhm\n</think>\n\nyes<|im_end|>"));
  EXPECT_THAT(turns(kOpensThoughts, messages), ElementsAre("yes</s>", "yes</s>"));
}

TEST_F(TurnsOfTemplates, IncludeCallsOfTools) {
  const char* const source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
      "{% for call in m.tool_calls or [] %}[{{ call.name }}]{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const std::string call = R"("tool_calls": [{"name": "f"}, {"name": "g"}]})";
  const std::string messages = "[" + turn_message("user", "u") +
                               R"(,{"role": "assistant", "content": "c", )" + call +
                               R"(,{"role": "assistant", "content": null, )" + call + "]";

  EXPECT_THAT(turns(source, messages), ElementsAre("c[f][g]<|im_end|>", "[f][g]<|im_end|>"));
}

TEST_F(TurnsOfTemplates, AreNotGuessedWhereTheTemplateChangesTheMessages) {
  const std::string messages =
      "[" + turn_message("user", "u") + "," + turn_message("assistant", "abc") + "]";

  EXPECT_THAT(
      turns("{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}", messages),
      ElementsAre("not found"));
}

}  // namespace
}  // namespace tessera::tasks
