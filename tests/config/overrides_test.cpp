// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/overrides.h"

#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"

namespace tessera::config {
namespace {

json::Value parsed(const std::string& text) {
  return json::parse(text, "c.json");
}

TEST(Overrides, ReadJsonOrAString) {
  json::Value source = parsed("{\"a\": {\"b\": 1}}");

  apply_override(source, "a.b=5e8");
  apply_override(source, "a.c=[1, 2]");
  apply_override(source, "run.dir=runs/x y");
  apply_override(source, "n=null");
  apply_override(source, "s=a=b");

  EXPECT_EQ(
      source,
      parsed(
          R"({"a": {"b": 5e8, "c": [1, 2]}, "run": {"dir": "runs/x y"}, "n": null, "s": "a=b"})"));
}

TEST(Overrides, KnowShortNamesOfParameters) {
  json::Value source = parsed("{}");

  apply_override(source, "optimizer.lr=3e-4");
  apply_override(source, "optimizer.type=AdamW");
  apply_override(source, "scheduler.warmup_num_steps=5");
  apply_override(source, "optimizer.params.eps=1");

  EXPECT_EQ(source, parsed(R"({"optimizer": {"params": {"lr": 3e-4, "eps": 1}, "type": "AdamW"},
                                  "scheduler": {"params": {"warmup_num_steps": 5}}})"));
}

TEST(Overrides, RefuseWhatIsNotAnAssignment) {
  json::Value source = parsed("{\"a\": 1}");

  EXPECT_THROW(apply_override(source, "a"), Error);
  EXPECT_THROW(apply_override(source, "=1"), Error);
  EXPECT_THROW(apply_override(source, "a.b=1"), Error);
  EXPECT_THROW(apply_override(source, "x..y=1"), Error);
}

TEST(Overrides, ReachEveryKeyOfTheOptimizer) {
  json::Value source = json::Value::object();

  apply_override(source, "optimizer.lr=1e-3");
  apply_override(source, R"(optimizer.groups=[{"pattern": "wte"}])");
  apply_override(source, R"(optimizer.weight_decay_schedule={"end": 0.2})");

  EXPECT_EQ(source.dump(),
            R"({"optimizer":{"params":{"lr":1e-3},"groups":[{"pattern":"wte"}],)"
            R"("weight_decay_schedule":{"end":0.2}}})");
}

TEST(Overrides, OfANumberOfRanksMayStandBeforeOrAfterWhatElseIsSaid) {
  for (const bool first : {true, false}) {
    json::Value source = json::Value::object();
    if (first) apply_override(source, "parallel.pipeline=2");
    apply_override(source, "parallel.pipeline.schedule=gpipe");
    if (!first) apply_override(source, "parallel.pipeline=2");

    const json::Value* const pipeline = source.find("parallel")->find("pipeline");
    EXPECT_EQ(pipeline->find("size")->dump(), "2");
    EXPECT_EQ(pipeline->find("schedule")->dump(), "\"gpipe\"");
  }
}

// The fixes of messages name task.params.KEY, in whatever form the file names the task.
TEST(Overrides, ReachTheParametersOfATaskInEachOfItsForms) {
  for (const char* form :
       {R"("task": "classify")",
        R"("task": {"type": "classify"})",
        R"("task": "classify", "classify": {"label_field": "mood"})",
        R"("task": {"type": "classify", "params": {"label_field": "mood"}})",
        R"("task": {"type": "classify"}, "classify": {"label_field": "mood"})"}) {
    for (const bool first : {true, false}) {
      json::Value source = parsed("{" + std::string(form) + "}");
      if (first) apply_override(source, R"(classify.multi_label=true)");
      apply_override(source, R"(task.params.labels=["a","b"])");
      if (!first) apply_override(source, R"(classify.multi_label=true)");

      const json::Value& params = *source.find("task")->find("params");
      EXPECT_EQ(params.find("labels")->dump(), R"(["a","b"])") << form;
      EXPECT_TRUE(params.find("multi_label")->as_bool()) << form;
      const bool has_field = std::string(form).find("mood") != std::string::npos;
      EXPECT_EQ(params.find("label_field") != nullptr, has_field) << form;
      EXPECT_EQ(source.members().size(), 1U) << form;
    }
  }
}

}  // namespace
}  // namespace tessera::config
