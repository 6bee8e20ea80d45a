// SPDX-License-Identifier: Apache-2.0
// The task of a record is told by its fields.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/tasks/data_survey.h"

namespace tessera::tasks {
namespace {

TaskOptions task_of_record(const std::string& record, const std::string& chat_template = "") {
  return task_for({json::parse(record, "test"), "file:1", false}, chat_template);
}

TEST(TaskFor, FollowsFromTheFieldsOfARecord) {
  for (const auto& [record, task] : {
           std::pair{R"({"source": "a", "target": "b"})", "seq2seq"},
           {R"({"tokens": ["a"], "tags": ["X"]})", "tag"},
           {R"({"id": "0", "tokens": ["a"], "pos_tags": [3], "ner_tags": [0]})", "tag"},
           {R"({"words": ["a"], "ner": [0]})", "tag"},
           {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "prefer"},
           {R"({"chosen": [{"role": "user", "content": "b"}], "rejected": []})", "prefer"},
           {R"({"prompt": "a", "completion": "b", "label": true})", "prefer"},
           {R"({"question": {}, "answer_0": "a", "score_0": 1, "answer_1": "b", "score_1": 0})",
            "prefer"},
           {R"({"history": "a", "human_ref_A": "b", "human_ref_B": "c", "labels": 1})", "prefer"},
           {R"({"prompt": "a", "completion": "b"})", "sft"},
           {R"({"messages": []})", "sft"},
           {R"({"text": "a", "label": 1})", "classify"},
           {R"({"text": "a", "label": 0.5})", "regression"},
           {R"({"sentence1": "a", "sentence2": "b", "score": 5.000})", "regression"},
           {R"({"prompt": "a", "response": "b", "chosen": "b"})", "sft"},
           {R"({"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 0})",
            "classify"},
           {R"({"text": "A b", "target": {"span1_text": "A", "span1_index": 0, "span2_text": "b",
                "span2_index": 1}, "label": true})",
            "classify"},
       })
    EXPECT_EQ(task_of_record(record).type, task) << record;
  EXPECT_THROW((void)task_of_record(R"({"nothing": "known"})"), Error);
}

TEST(TaskFor, ReadsLabelledCompletionsWithKto) {
  const TaskOptions labelled =
      task_of_record(R"({"prompt": "a", "completion": "b", "label": false})", "chatml");

  EXPECT_EQ(labelled.params.find("method")->as_string(), "kto");
  EXPECT_EQ(labelled.params.find("chat_template")->as_string(), "chatml");
  EXPECT_EQ(task_of_record(R"({"chosen": "a", "rejected": "b"})").params.find("method"), nullptr);
}

}  // namespace
}  // namespace tessera::tasks
