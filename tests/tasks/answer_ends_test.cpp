// SPDX-License-Identifier: Apache-2.0
// Where an answer ends, by the tokenizer's files and by templates of published models.
#include "tessera/tasks/answer_ends.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/special_tokens.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/tasks/conversation.h"

namespace tessera::tasks {
namespace {

using tessera::test::SpecialTokens;
using testing::ElementsAre;
using testing::IsEmpty;

// Each ends turns with another token, as the templates of these models do.
const char* const kEndsOfGemma =
    "{{ bos_token }}{% for m in messages %}<start>{{ m.role }}\n{{ m.content | trim }}<turn_end>\n"
    "{% endfor %}";
const char* const kEndsOfLlama2 =
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
    "{{ m.content }} {{ eos_token }}{% endif %}{% endfor %}";
const char* const kEndsOfPhi3 =
    "{% for m in messages %}<start>{{ m.content }}<turn_end>\n{% endfor %}{{ eos_token }}";
const char* const kEndsOfThinking =
    "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}<start>think<start>"
    "{{ m.content.split('x')[-1] }}<turn_end>{% else %}{{ m.content }}<start>{% endif %}{% endfor "
    "%}";
const char* const kNoEnds = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
// Cohere's: one token ends the text of an answer, the next one the turn.
const char* const kTwoEnds =
    "{% for m in messages %}<start>{{ m.content }}<bos><turn_end><eos>{% endfor %}";
const char* const kEndsOfWords = "{% for m in messages %}{{ m.content }}###\n{% endfor %}";
const char* const kEndsWithSystem =
    "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}<turn_end>{% endfor %}";

TEST(AnswerEnds, AreWhatTheTokenizersFilesAndTheTemplateSay) {
  const SpecialTokens folder({"<eos>", "<bos>", "<start>", "<turn_end>"});
  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>", "bos_token": "<bos>"})");
  const auto tokenizer = folder.tokenizer();
  const std::int32_t eos = folder.id("<eos>"), end = folder.id("<turn_end>");
  for (const auto& [source, with_end] :
       std::vector<std::pair<const char*, bool>>{{kEndsOfGemma, true},
                                                 {kEndsOfLlama2, false},
                                                 {kEndsOfPhi3, true},
                                                 {kEndsOfThinking, true},
                                                 {kNoEnds, false},
                                                 {kTwoEnds, false},
                                                 {kEndsWithSystem, true}}) {
    const text::chat::ChatTemplate chat(source, text::chat::special_tokens_in(folder.path()));

    const AnswerEnds ends = answer_ends(*tokenizer, &chat);

    EXPECT_EQ(ends.ids,
              with_end ? (std::vector<std::int32_t>{eos, end}) : std::vector<std::int32_t>{eos})
        << source;
    EXPECT_THAT(ends.texts, IsEmpty()) << source;
  }
  EXPECT_THAT(answer_ends(*tokenizer, nullptr).ids, ElementsAre(eos));

  const text::chat::ChatTemplate two(kTwoEnds);
  EXPECT_EQ(end_of_turn(*tokenizer, two), "<bos><turn_end><eos>");
  const text::chat::ChatTemplate words(kEndsOfWords);
  EXPECT_THAT(answer_ends(*tokenizer, &words).texts, ElementsAre("###"));
}

TEST(AnswerEnds, OfATokenizerAreThoseOfTheModelsFilesNextToIt) {
  const SpecialTokens folder({"<eos>", "<turn_end>", "<call_end>"});
  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>"})");
  const std::int32_t eos = folder.id("<eos>");
  folder.write(
      "generation_config.json",
      R"({"eos_token_id": [)" + std::to_string(eos + 1) + ", " + std::to_string(eos) + "]}");
  folder.write("config.json", R"({"eos_token_id": )" + std::to_string(eos + 2) + "}");

  EXPECT_THAT(folder.tokenizer()->ends(), ElementsAre(eos, eos + 1, eos + 2));
  EXPECT_EQ(folder.tokenizer()->end_of_text(), eos);
}

TEST(ChatTemplates, OfAFileHaveTheSpecialTokensOfAFolderWithOrWithoutATemplate) {
  const char* const source =
      "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
  const files::TempDir other;
  const std::filesystem::path file = other.path() / "t.jinja";
  files::write_atomic(file, source);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    for (const bool has_template : {true, false}) {
      const SpecialTokens folder({"<eos>", "<bos>"});
      folder.write(name, R"({"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"})");
      if (has_template) folder.write("chat_template.jinja", "other");

      const auto chat = open_chat_template(file.string(), {folder.path()}, *folder.tokenizer());

      const json::Value messages = json::parse(R"([{"role": "user", "content": "a"}])", "test");
      EXPECT_EQ(chat->render(messages).text, "<bos>a<eos>") << name << has_template;
    }
  }
}

}  // namespace
}  // namespace tessera::tasks
