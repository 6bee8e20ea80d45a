// SPDX-License-Identifier: Apache-2.0
// What of a dialogue is read in front of its last turn.
#include "tessera/tasks/history.h"

#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

class History : public test::RecordTest {
 protected:
  /// The text of the first sample of a record, whose tokens are bytes.
  std::string read(const std::string& record, const std::string& params, std::int64_t length = 40) {
    const std::string files = record + "\n" + R"({"text": "z", "label": "other"})" + "\n";
    const data::Datasets opened = open(*task_of("classify", params), options(files), length);
    std::string out;
    for (const std::int64_t id : values(*opened.train, 0, "input_ids")) {
      if (id > 0) out += static_cast<char>(id);
    }
    return out;
  }
};

constexpr const char* kPairs =
    R"({"text": "now?", "label": "a", "history": [["one", "yes"], ["two", "no"]]})";

TEST_F(History, PrecedesTheText) {
  EXPECT_EQ(read(kPairs, "{}"), "one\nyes\ntwo\nno\nnow?");
  EXPECT_EQ(read(kPairs, R"({"history": "questions"})"), "one\ntwo\nnow?");
  EXPECT_EQ(read(kPairs, R"({"history": "none"})"), "now?");
  EXPECT_EQ(read(kPairs, R"({"history_turns": 3})"), "yes\ntwo\nno\nnow?");
  EXPECT_EQ(read(kPairs, R"({"history_turns": 1, "history": "questions"})"), "two\nnow?");
}

TEST_F(History, KeepsTheNearestTurnsThatFit) {
  EXPECT_EQ(read(kPairs, "{}", 15), "yes\ntwo\nno\nnow?");
  EXPECT_EQ(read(kPairs, "{}", 14), "two\nno\nnow?");
  EXPECT_EQ(read(kPairs, R"({"history": "questions"})", 11), "two\nnow?");
  EXPECT_EQ(read(kPairs, "{}", 3), "now") << "of a text that is too long itself";
}

TEST_F(History, MayBeWrittenInAnyOfItsForms) {
  const std::string after = "one\nyes\nnow?";
  for (const char* history :
       {R"(["one", "yes"])",
        R"([{"role": "user", "content": "one"},
                                  {"role": "assistant", "content": "yes"}])",
        R"([{"from": "human", "value": "one"}, {"from": "gpt", "value": "yes"}])",
        R"("one\nyes\n")",
        R"("[\"one\", \"yes\"]")"}) {
    std::string record = std::string(R"({"text": "now?", "label": "a", "talk": )") + history + "}";
    std::erase(record, '\n');
    EXPECT_EQ(read(record, R"({"history_field": "talk"})"), after) << history;
    EXPECT_EQ(read(record, R"({"history_field": "talk", "history": "questions"})"), "one\nnow?");
  }
  for (const char* empty : {"null", "\"\"", "[]", "\" \""}) {
    EXPECT_EQ(
        read(std::string(R"({"text": "now?", "label": "a", "history": )") + empty + "}", "{}"),
        "now?");
  }
}

TEST_F(History, TakesItsNameFromDataMap) {
  data::DataOptions data = options(R"({"question": "q", "label_id": 1, "context_info": ["p", "o"]})"
                                   "\n"
                                   R"({"question": "r", "label_id": 0, "context_info": []})"
                                   "\n");
  data.map = json::parse(
      R"({"prompt": "question", "label": "label_id", "history": "context_info"})", "map");

  const data::Datasets opened = open(*task_of("classify"), data, 8);

  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'p', '\n', 'o', '\n', 'q', 0, 0, 0}));
  EXPECT_EQ(values(*opened.train, 1, "input_ids").front(), 'r');
}

TEST_F(History, IsRefusedIfItIsInvalid) {
  const Error error =
      refusal_of("classify", R"({"text": "a", "label": "b", "history": [1, 2]})", 4, "{}");
  EXPECT_THAT(error.what(), HasSubstr("history"));
  EXPECT_THAT(error.what(), HasSubstr(":1"));
}

}  // namespace
}  // namespace tessera::tasks
