// SPDX-License-Identifier: Apache-2.0
// The configurations of a training in three steps follow from one another.
#include "tessera/rlhf/three_steps.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::rlhf {
namespace {

using ::testing::HasSubstr;

json::Value source(const std::string& more = "") {
  return json::parse(R"({"dir": "runs/chat", "common": {"trainer": {"seed": 7, "epochs": 1}},
    "sft": {"model": {"from": "base"}}, "reward": {"trainer": {"epochs": 2}}, "rl": {})" +
                         more + "}",
                     "chat.json");
}
std::string text_at(const json::Value& config, std::initializer_list<const char*> path) {
  const json::Value* const found = find_in(config, path);
  return found == nullptr ? "nothing" : found->dump();
}
std::string refusal(const json::Value& config) {
  try {
    check_steps(config, "chat.json");
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(ThreeSteps, HaveTheCommonKeysUnderTheirOwn) {
  const json::Value sft = config_of_step(source(), 0), reward = config_of_step(source(), 1);

  EXPECT_EQ(text_at(sft, {"trainer", "epochs"}), "1");
  EXPECT_EQ(text_at(reward, {"trainer", "epochs"}), "2");
  EXPECT_EQ(text_at(reward, {"trainer", "seed"}), "7");
  EXPECT_EQ(text_at(sft, {"run", "dir"}), "\"runs/chat/1-sft\"");
}

TEST(ThreeSteps, BeginWithTheModelsOfTheEarlierOnes) {
  EXPECT_EQ(text_at(config_of_step(source(), 0), {"model", "from"}), "\"base\"");
  EXPECT_EQ(text_at(config_of_step(source(), 1), {"model", "from"}), "\"runs/chat/1-sft\"");
  const json::Value rl = config_of_step(source(), 2);
  EXPECT_EQ(text_at(rl, {"model", "from"}), "\"runs/chat/1-sft\"");
  EXPECT_EQ(text_at(rl, {"rl", "rewards"}), R"([{"type":"model","from":"runs/chat/2-reward"}])");
  EXPECT_EQ(text_at(rl, {"rl", "critic", "from"}), "\"runs/chat/2-reward\"");
}

TEST(ThreeSteps, KeepWhatAStepSays) {
  json::Value own = source();
  own["rl"] = json::parse(R"({"model": {"from": "mine"}, "rl": {"algorithm": "grpo"}})", "rl");

  const json::Value rl = config_of_step(own, 2);

  EXPECT_EQ(text_at(rl, {"model", "from"}), "\"mine\"");
  EXPECT_EQ(text_at(rl, {"rl", "preset"}), "nothing");
  EXPECT_EQ(text_at(rl, {"rl", "critic"}), "nothing");
}

TEST(ThreeSteps, AreRefusedWithOtherKeysOrWithoutOneOfThem) {
  EXPECT_EQ(refusal(source()), "");
  EXPECT_THAT(refusal(source(R"(, "trainer": {})")), HasSubstr("unknown key \"trainer\""));
  EXPECT_THAT(refusal(source(R"(, "split": 2)")), HasSubstr("\"split\" is"));
  EXPECT_THAT(refusal(json::parse(R"({"dir": "a", "sft": {}, "rl": {}})", "chat.json")),
              HasSubstr("the step \"reward\" is missing"));
}

TEST(ThreeSteps, AreDividedOnlyWithAProportionForEach) {
  for (const char* const split : {"[1, 2]", "[1, -1, 1]", "[0, 0, 0]", R"([1, "a", 1])"}) {
    json::Value config = source(std::string(", \"split\": ") + split);
    EXPECT_THROW(divide_records(config, "nowhere"), Error) << split;
  }
  json::Value without = source(R"(, "split": [1, 1, 1])");
  EXPECT_THROW(divide_records(without, "nowhere"), Error);
}

}  // namespace
}  // namespace tessera::rlhf
