// SPDX-License-Identifier: Apache-2.0
// Records of preferences as samples of two texts.
#include "tessera/tasks/preference_pairs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tasks/tasks_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/data_survey.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

class Preferences : public test::RecordTest {
 protected:
  data::Datasets opened(const std::string& task,
                        std::string_view records,
                        std::int64_t length,
                        const std::string& params = "{}") {
    return open(*task_of(task, params), options(records), length);
  }
  Error refused(std::string_view records, const std::string& params = "{}") {
    return refusal_of("prefer", records, 64, params);
  }
};

/// The tokens of the first sample, which are bytes.
std::string first_text(const data::Dataset& data) {
  std::string out;
  for (const std::int64_t id : values(data, 0, "input_ids"))
    out += static_cast<char>(id);
  return out;
}

const char* const kPair = R"({"prompt": "1+", "chosen": "2", "rejected": "33"})";

TEST_F(Preferences, AreRowsOfTwoTextsThatDoNotSeeEachOther) {
  const data::Datasets data = opened("prefer", kPair, 11);

  EXPECT_EQ(values(*data.train, 0, "input_ids"),
            (Ids{'1', '+', '2', 0, '1', '+', '3', '3', 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "labels"),
            (Ids{'+', '2', 0, -100, '+', '3', '3', 0, -100, -100, -100}));
  EXPECT_EQ(values(*data.train, 0, "completion"), (Ids{0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "document_starts"), (Ids{0, 0, 0, 0, 4, 4, 4, 4, 4, 9, 10}));
  EXPECT_EQ(values(*data.train, 0, "attention_mask"), (Ids{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "second_text"), Ids{4});
  EXPECT_EQ(data.train_tokens, 9);
  ASSERT_TRUE(data.train->made_by_model().has_value());
  EXPECT_EQ(data.train->made_by_model()->name, "reference");
}

TEST_F(Preferences, AreShownWithTheirCompletionsAsLearned) {
  const auto task = task_of("prefer");
  const data::DataOptions data = options(kPair);
  const data::TokenizeOptions how;
  const DataRequest request = {.options = data,
                               .tokenizer = test::byte(),
                               .vocab_size = 256,
                               .sequence_length = 11,
                               .how = how};
  const data::Datasets opened = task->open(request);
  DataSurveyor surveyor(*task, request, opened, {});

  const SampleView view = surveyor.view(0);
  EXPECT_EQ(view.ids, (Ids{'1', '+', '2', 0, '1', '+', '3', '3', 0}));
  EXPECT_EQ(view.labels, (Ids{-100, -100, '2', 0, -100, -100, '3', '3', 0}));
  EXPECT_TRUE(view.others.empty()) << view.others.front();
  EXPECT_EQ(surveyor.survey().learned, 5);
}

TEST_F(Preferences, TakeWhatBothTextsBeginWithForThePrompt) {
  const data::Datasets implicit =
      opened("prefer", R"({"chosen": "ask: good", "rejected": "ask: bad"})", 24);
  const data::Datasets named =
      opened("prefer", R"({"prompt": "ask:", "chosen": " good", "rejected": " bad"})", 24);

  for (const char* name : {"input_ids", "completion"})
    EXPECT_EQ(values(*implicit.train, 0, name), values(*named.train, 0, name)) << name;
}

// Two letters of two bytes each that share their first byte.
// Tokens of GPT-2 reach over the end of a prompt: " $" follows "A:", and " " follows "A: ".
TEST_F(Preferences, ThatAreComparedShareTheirContext) {
  const text::TokenizerPtr gpt2 = text::make_tokenizer({.type = "gpt2"});
  const ConversationTokenizer tokenizer(*gpt2, nullptr);
  for (const char* record : {R"({"prompt": "A: ", "chosen": "$5", "rejected": " five"})",
                             R"({"prompt": "A: ", "chosen": " five", "rejected": "$5"})",
                             R"({"prompt": "The un", "chosen": "believable end", "rejected": "!"})",
                             R"({"prompt": "x\n", "chosen": "\ny", "rejected": "z"})",
                             R"({"prompt": "a b", "chosen": " c", "rejected": " d"})"}) {
    const TokenPair pair = pair_of({json::parse(record, "test"), "file.jsonl:1"}, tokenizer);

    const auto& [chosen, rejected] = pair;
    const auto begin = std::ranges::find(chosen.learned, 1) - chosen.learned.begin();
    EXPECT_EQ(std::ranges::find(rejected.learned, 1) - rejected.learned.begin(), begin) << record;
    EXPECT_TRUE(std::equal(chosen.ids.begin(), chosen.ids.begin() + begin, rejected.ids.begin()))
        << record;
    for (const LearnedTokens* text : {&chosen, &rejected})
      EXPECT_EQ(std::count(text->learned.begin() + begin, text->learned.end(), 0), 0) << record;
  }
}

TEST_F(Preferences, OfAlpacaKeepTheirInstruction) {
  const char* const record =
      R"({"instruction": "add", "input": "1+1", "chosen": "2", "rejected": "3"})";
  const data::Datasets alone = opened("prefer", record, 32);
  const data::Datasets chatml = opened("prefer", record, 200, R"({"chat_template": "chatml"})");

  EXPECT_EQ(first_text(*alone.train).substr(0, 9), "add\n1+1\n2");
  EXPECT_THAT(
      first_text(*chatml.train),
      HasSubstr("<|im_start|>user\nadd\n1+1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"));
}

TEST_F(Preferences, AreReadFromWebGptsComparisonsAndStanfordsChoices) {
  const std::string expected =
      R"({"prompt": " Human: why Assistant:", "chosen": " so", "rejected": " no"})";
  const data::Datasets named = opened("prefer", expected, 64);
  for (const char* record :
       {R"({"question": {"full_text": "why", "id": "1"}, "answer_0": "so", "score_0": 0.5,
            "answer_1": "no", "score_1": -0.5})",
        R"({"question": {"full_text": "why"}, "answer_0": "no", "score_0": -1, "answer_1": "so",
            "score_1": 1})",
        R"({"history": "why", "human_ref_A": "so", "human_ref_B": "no", "labels": 1})",
        R"({"history": "why", "human_ref_A": "no", "human_ref_B": "so", "labels": 0})"}) {
    std::string line = record;
    std::erase(line, '\n');
    const data::Datasets found = opened("prefer", line, 64);
    for (const char* tensor : {"input_ids", "labels", "completion"})
      EXPECT_EQ(values(*found.train, 0, tensor), values(*named.train, 0, tensor)) << record;
  }
  EXPECT_THAT(refused(R"({"history": "why", "human_ref_A": "a", "human_ref_B": "b"})").text(),
              HasSubstr("labels"));
}

TEST_F(Preferences, DoNotCutACharacterIntoPromptAndCompletion) {
  const data::Datasets data =
      opened("prefer", "{\"chosen\": \"a\xC3\xA4\", \"rejected\": \"a\xC3\xB6\"}", 8);

  EXPECT_EQ(values(*data.train, 0, "completion"), (Ids{1, 1, 1, 0, 1, 1, 1, 0}));
}

TEST_F(Preferences, OfMessagesGoThroughTheChatTemplate) {
  const std::string chatml = R"({"chat_template": "chatml"})";
  const data::Datasets implicit = opened(
      "prefer",
      R"({"chosen": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], )"
      R"("rejected": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]})",
      200,
      chatml);
  const data::Datasets named = opened("prefer",
                                      R"({"prompt": [{"role": "user", "content": "hi"}], )"
                                      R"("chosen": [{"role": "assistant", "content": "yes"}], )"
                                      R"("rejected": {"role": "assistant", "content": "no"}})",
                                      200,
                                      chatml);
  const data::Datasets turns = opened(
      "prefer",
      R"({"conversations": [{"from": "human", "value": "hi"}], )"
      R"("chosen": {"from": "gpt", "value": "yes"}, "rejected": {"from": "gpt", "value": "no"}})",
      200,
      chatml);

  const Ids completion = values(*implicit.train, 0, "completion");
  EXPECT_GT(std::count(completion.begin(), completion.end(), 1), 4);
  for (const data::Datasets* other : {&named, &turns}) {
    for (const char* name : {"input_ids", "completion", "labels"})
      EXPECT_EQ(values(*implicit.train, 0, name), values(*other->train, 0, name)) << name;
  }
}

TEST_F(Preferences, ThatAreTooLongLoseTheEndsOfBothTexts) {
  const data::Datasets both =
      opened("prefer", R"({"prompt": "1", "chosen": "abcdef", "rejected": "ghijkl"})", 8);
  const data::Datasets one =
      opened("prefer", R"({"prompt": "1", "chosen": "abcdef", "rejected": "g"})", 8);

  EXPECT_EQ(values(*both.train, 0, "input_ids"), (Ids{'1', 'a', 'b', 'c', '1', 'g', 'h', 'i'}));
  EXPECT_EQ(values(*one.train, 0, "input_ids"), (Ids{'1', 'a', 'b', 'c', 'd', '1', 'g', 0}));
}

TEST_F(Preferences, WithoutRoomForACompletionAreLeftOut) {
  const std::string records =
      std::string(kPair) + "\n" + R"({"prompt": "a long prompt", "chosen": "2", "rejected": "3"})";

  EXPECT_EQ(opened("prefer", records, 11).train->size(), 1);
}

TEST_F(Preferences, OfLabelsCompareACompletionWithAnotherOne) {
  const data::Datasets data = opened("prefer",
                                     R"({"prompt": "a", "completion": "1", "label": true}
{"prompt": "b", "completion": "22", "label": false})",
                                     8,
                                     R"({"method": "kto"})");

  EXPECT_EQ(values(*data.train, 0, "input_ids"), (Ids{'a', '1', 0, 'a', '2', '2', 0, 0}));
  EXPECT_EQ(values(*data.train, 1, "input_ids"), (Ids{'b', '2', '2', 0, 'b', '1', 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "wanted"), Ids{1});
  EXPECT_EQ(values(*data.train, 1, "wanted"), Ids{0});
  EXPECT_THAT(
      refused(R"({"prompt": "a", "completion": "1", "label": true})", R"({"method": "kto"})")
          .what(),
      HasSubstr("compared with another"));
}

TEST_F(Preferences, OfLabelsMayBeConversationsWhoseLastMessageIsTheCompletion) {
  const std::string method = R"({"method": "kto", "chat_template": "chatml"})";
  const auto read = [&](const std::string& first, const std::string& second) {
    const data::Datasets data = opened("prefer", first + "\n" + second, 256, method);
    return std::pair(values(*data.train, 0, "input_ids"), values(*data.train, 0, "labels"));
  };
  const std::string
      messages =
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}], "label": true})",
      turns =
          R"({"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "2"}], "label": false})",
      prompt_1 =
          R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "1"}], "label": true})",
      prompt_2 =
          R"({"prompt": [{"role": "user", "content": "b"}], "completion": [{"role": "assistant", "content": "2"}], "label": false})";

  EXPECT_EQ(read(messages, turns), read(prompt_1, prompt_2));
  EXPECT_THAT(
      refused(R"({"messages": [{"role": "user", "content": "a"}], "label": true})", method).what(),
      HasSubstr("does not end with an answer"));
}

// The mismatched pairs of TRL's KTOTrainer: within each batch of the file, completions move on by
// one, and the last one goes to the first prompt.
TEST(LabelledPairs, AreThoseOfTrl) {
  const auto seconds = [](std::int64_t group) {
    const files::TempDir dir;
    std::string records;
    for (char c = 'a'; c <= 'e'; ++c)
      records += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\", \"label\": true}}\n",
                             c,
                             static_cast<char>(c - 'a' + '1'));
    files::write_atomic(dir.path() / "a.jsonl", records);
    const auto tokenizer = text::make_tokenizer({.type = "byte"});
    PreferenceSamples samples({.length = 8, .kind = PreferenceKind::Labelled, .group = group});
    samples.read_files(
        {dir.path() / "a.jsonl"}, {}, ConversationTokenizer(*tokenizer, nullptr), {});
    samples.arrange();
    std::string out;
    for (std::int64_t i = 0; i < samples.size(); ++i) {
      for (const std::int32_t id : samples.texts(i).second.ids)
        if (id > 0) out += static_cast<char>(id);
      out += ' ';
    }
    return out;
  };

  EXPECT_EQ(seconds(2), "a2 b1 c4 d3 e5 ");
  EXPECT_EQ(seconds(3), "a3 b1 c2 d5 e4 ");
  EXPECT_EQ(seconds(8), "a5 b1 c2 d3 e4 ");
  EXPECT_EQ(seconds(0), seconds(5));
  EXPECT_EQ(seconds(1), seconds(5));
}

TEST_F(Preferences, HaveAReferenceWhereTheMethodReadsOne) {
  const auto made = [&](const std::string& params) {
    return opened("prefer", kPair, 11, params).train->made_by_model().has_value();
  };
  EXPECT_FALSE(made(R"({"reference_free": true})"));
  for (const char* method : {"cpo", "simpo", "orpo"})
    EXPECT_FALSE(made(std::string(R"({"method": ")") + method + R"("})")) << method;
  EXPECT_FALSE(opened("reward", kPair, 11).train->made_by_model().has_value());
}

TEST_F(Preferences, OfRewardModelsMayHaveMargins) {
  const std::string record = R"({"prompt": "1+", "chosen": "2", "rejected": "3", "margin": 1.5})";
  const data::Datasets data = opened("reward", record, 11, R"({"margin": true})");

  data::Sample sample(*data.train, 0);
  EXPECT_EQ(sample.values<float>("margin").front(), 1.5F);
  for (const char* other : {"\"3\"", "1e39", "null"}) {
    std::string wrong = record;
    wrong.replace(wrong.find("1.5"), 3, other);
    EXPECT_THAT(error_of([&] { opened("reward", wrong, 11, R"({"margin": true})"); }).what(),
                HasSubstr("margin"))
        << other;
  }
  const Error error = error_of([&] { opened("reward", kPair, 11, R"({"margin": true})"); });
  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_THAT(error.what(), HasSubstr("margin"));
}

TEST_F(Preferences, WhoseTokensAreComparedTakeEquallyManyPlaces) {
  const data::Datasets data = opened("reward", kPair, 13, R"({"compare": "tokens"})");

  // "1+2" and "1+33", each with its end, 0; padding is 0 too.
  EXPECT_EQ(values(*data.train, 0, "input_ids"),
            (Ids{'1', '+', '2', 0, 0, '1', '+', '3', '3', 0, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "document_starts"),
            (Ids{0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 11, 12}));
  EXPECT_EQ(values(*data.train, 0, "attention_mask"), (Ids{1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "second_text"), Ids{5});
  EXPECT_EQ(values(*data.train, 0, "ends"), (Ids{4, 5}));
  EXPECT_EQ(values(*data.train, 0, "compared"), (Ids{2, 5}));
  // A row without room for both is shared equally.
  const data::Datasets cut = opened("reward", kPair, 7, R"({"compare": "tokens"})");
  EXPECT_EQ(values(*cut.train, 0, "input_ids"), (Ids{'1', '+', '2', '1', '+', '3', 0}));
  EXPECT_EQ(values(*cut.train, 0, "compared"), (Ids{2, 3}));
}

TEST_F(Preferences, WhoseTokensAreComparedHaveNoMargins) {
  config::Problems problems;
  (void)make_task(
      {"reward", json::parse(R"({"compare": "tokens", "margin": true, "centering": 0.1})", "a")},
      problems);
  ASSERT_EQ(problems.list().size(), 2U);
  EXPECT_EQ(problems.list()[0].path, "task.params.centering");
  EXPECT_EQ(problems.list()[1].path, "task.params.margin");
}

TEST_F(Preferences, ThatCannotBeReadAreRefusedWithTheirPlace) {
  const auto names_place = HasSubstr("train.jsonl:1");
  for (
      const auto& [record, what] : std::vector<std::pair<std::string, std::string>>{
          {R"({"prompt": "a", "chosen": "b"})", "rejected"},
          {R"({"prompt": "a", "chosen": "b", "rejected": "b"})", "equal"},
          {R"({"prompt": "a", "chosen": 3, "rejected": "b"})", "chosen"},
          {R"({"prompt": "a", "chosen": "", "rejected": "b"})", "chosen"},
          {R"({"chosen": [{"role": "user", "content": "x"}], "rejected": [{"role": "user", "content": "y"}]})",
           "begin with different"},
          {R"({"prompt": [{"role": "user", "content": "x"}], "chosen": [], "rejected": []})",
           "chosen"}}) {
    const Error error = refused(record);
    EXPECT_EQ(error.kind(), Error::Kind::Data) << record;
    EXPECT_THAT(error.what(), names_place) << record;
    EXPECT_THAT(error.what(), HasSubstr(what)) << record;
    EXPECT_FALSE(error.fix().empty()) << record;
  }
  EXPECT_THAT(
      refused(R"({"prompt": "a", "completion": "1", "label": "perhaps"})", R"({"method": "kto"})")
          .what(),
      HasSubstr("perhaps"));
}

TEST_F(Preferences, RefuseOptionsThatContradictEachOther) {
  const auto refusal = [](const std::string& params) {
    const Error error = error_of([&] { task_of("prefer", params); });
    EXPECT_EQ(error.kind(), Error::Kind::Config) << params;
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(R"({"method": "ppo"})"), HasSubstr("method"));
  EXPECT_THAT(refusal(R"({"method": "orpo", "reference_free": true})"), HasSubstr("dpo alone"));
  EXPECT_THAT(refusal(R"({"method": "simpo", "loss": {"type": "ipo"}})"), HasSubstr("one loss"));
  EXPECT_THAT(refusal(R"({"loss": "sigmoid"})"), HasSubstr("loss"));
}

TEST_F(Preferences, HaveTheFingerprintOfTheirTokens) {
  const std::string one = opened("prefer", kPair, 11).fingerprint;

  EXPECT_EQ(opened("prefer", kPair, 11).fingerprint, one);
  EXPECT_NE(
      opened("prefer", R"({"prompt": "1+", "chosen": "2", "rejected": "34"})", 11).fingerprint,
      one);
}

}  // namespace
}  // namespace tessera::tasks
