// SPDX-License-Identifier: Apache-2.0
// The task rl: its options, its prompts, and rewards by rules and programs.
#include "tessera/tasks/rl/rl.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/reward_command.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

const char* const kReward = R"("rewards": [{"type": "exact_match"}])";

std::string params(const std::string& more = "") {
  return std::string("{") + kReward + ", \"max_new_tokens\": 4" + (more.empty() ? "" : ", ") +
         more + "}";
}

const RlOptions& options_of(const Task& task) {
  return as_rl(&task)->options();
}

class RlPrompts : public test::RecordTest {};

TEST_F(RlPrompts, StandForTheirCompletionsAndUpdates) {
  const auto task = task_of("rl", params(R"("samples": 3, "iterations": 2)"));
  const data::Datasets data =
      open(*task, options("{\"prompt\": \"ab\", \"answer\": \"c\"}\n{\"prompt\": \"d\"}\n"), 8);

  EXPECT_EQ(data.train->size(), 2 * 3 * 2);
  EXPECT_EQ(values(*data.train, 5, "input_ids"), (Ids{'a', 'b', 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 6, "input_ids"), (Ids{'d', 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 0, "labels"), Ids(8, -100));
  const auto& prompts = dynamic_cast<const Prompts&>(*data.train);
  EXPECT_EQ(prompts.prompt(0).record.find("answer")->as_string(), "c");
  EXPECT_THAT(prompts.prompt(1).place, HasSubstr(":2"));
}

TEST_F(RlPrompts, OfMessagesAskForAnAnswer) {
  const auto task = task_of("rl", params(R"("chat_template": "chatml")"));
  const data::Datasets data =
      open(*task, options(R"({"messages": [{"role": "user", "content": "hi"}]})"), 200);

  EXPECT_THAT(dynamic_cast<const Prompts&>(*data.train).prompt(0).text,
              testing::EndsWith("<|im_start|>assistant\n"));
  EXPECT_THAT(refusal_of("rl",
                         R"({"messages": [{"role": "assistant", "content": "hi"}]})",
                         200,
                         params(R"("chat_template": "chatml")"))
                  .what(),
              HasSubstr("ends with an answer"));
}

TEST_F(RlPrompts, ThatLeaveNoRoomAreLeftOut) {
  const auto task = task_of("rl", params());
  const data::Datasets data =
      open(*task, options("{\"prompt\": \"abcde\"}\n{\"prompt\": \"abcd\"}\n"), 8);

  EXPECT_EQ(dynamic_cast<const Prompts&>(*data.train).count(), 1);
  EXPECT_EQ(dynamic_cast<const Prompts&>(*data.train).left_out(), 1);
  EXPECT_THAT(refusal_of("rl", R"({"prompt": "a"})", 4, params()).what(),
              HasSubstr("no room for a prompt"));
}

TEST(RlOptionsOf, AnAlgorithmAreItsOwnAndCanBeChanged) {
  const RlOptions grpo = options_of(*task_of("rl", params()));
  EXPECT_EQ(grpo.advantage.estimator, "group");
  EXPECT_EQ(grpo.loss.type, "grpo");

  const RlOptions rloo = options_of(*task_of("rl", params(R"("algorithm": "rloo", "samples": 4)")));
  EXPECT_EQ(rloo.advantage.estimator, "leave_one_out");
  EXPECT_EQ(rloo.loss.ratio, "sum");
  EXPECT_EQ(rloo.kl.place, KlPlace::Reward);
  EXPECT_EQ(rloo.samples, 4);

  const RlOptions chat = options_of(*task_of("rl", params(R"("preset": "dschat:ppo")")));
  EXPECT_EQ(chat.advantage.estimator, "dschat_gae");
  EXPECT_EQ(chat.advantage.clip_reward, 5.0);
  EXPECT_EQ(chat.kl.coefficient, 0.1);
  EXPECT_FALSE(chat.advantage.whiten);
}

// The published defaults: TRL 1.16's GRPOConfig, verl's ppo_trainer.yaml with the GRPO advantage,
// Yu et al. 2025 (DAPO), Zheng et al. 2025 (GSPO).
TEST(RlOptionsOf, APresetAreThoseThatWerePublished) {
  const auto expect_common = [](const RlOptions& made) {
    EXPECT_EQ(made.advantage.estimator, "group");
    EXPECT_EQ(made.advantage.scale, "group");
    EXPECT_FALSE(made.advantage.whiten);
    EXPECT_FALSE(made.advantage.clip_reward.has_value());
    EXPECT_EQ(made.loss.epsilon_low, made.algorithm == "gspo" ? 3e-4 : 0.2);
    EXPECT_EQ(made.temperature, 1.0);
    EXPECT_EQ(made.iterations, 1);
    EXPECT_EQ(made.entropy_coefficient, 0.0);
    EXPECT_EQ(made.truncated, Truncated::Keep);
  };
  const auto preset = [](const char* name) {
    return options_of(*task_of("rl", params(std::string(R"("preset": ")") + name + "\"")));
  };
  const RlOptions trl = preset("trl:grpo");
  expect_common(trl);
  EXPECT_EQ(trl.samples, 8);
  EXPECT_EQ(trl.advantage.epsilon, 1e-4);
  EXPECT_EQ(trl.loss.type, "dapo");
  EXPECT_EQ(trl.loss.ratio, "token");
  EXPECT_EQ(trl.loss.epsilon_high, 0.2);
  EXPECT_FALSE(trl.loss.delta.has_value());
  EXPECT_EQ(trl.kl.coefficient, 0.0);
  EXPECT_EQ(trl.dynamic_rounds, 0);

  const RlOptions verl = preset("verl:grpo");
  expect_common(verl);
  EXPECT_EQ(verl.advantage.epsilon, 1e-6);
  EXPECT_EQ(verl.loss.type, "dapo");
  EXPECT_EQ(verl.loss.ratio, "token");
  EXPECT_EQ(verl.loss.epsilon_high, 0.2);
  EXPECT_EQ(verl.loss.delta, 3.0);
  EXPECT_EQ(verl.kl.coefficient, 0.001);
  EXPECT_EQ(verl.kl.estimator, "k3");
  EXPECT_EQ(verl.kl.place, KlPlace::Loss);
  EXPECT_EQ(verl.dynamic_rounds, 0);

  const RlOptions dapo = preset("dapo");
  expect_common(dapo);
  EXPECT_EQ(dapo.samples, 16);
  EXPECT_EQ(dapo.loss.type, "dapo");
  EXPECT_EQ(dapo.loss.ratio, "token");
  EXPECT_EQ(dapo.loss.epsilon_high, 0.28);
  EXPECT_EQ(dapo.kl.coefficient, 0.0);
  EXPECT_EQ(dapo.dynamic_rounds, 10);

  const RlOptions gspo = options_of(*task_of("rl", params(R"("algorithm": "gspo")")));
  expect_common(gspo);
  EXPECT_EQ(gspo.loss.type, "grpo");
  EXPECT_EQ(gspo.loss.ratio, "mean");
  EXPECT_EQ(gspo.loss.epsilon_high, 4e-4);

  // What the configuration says is stronger than the preset.
  const RlOptions changed =
      options_of(*task_of("rl", params(R"("preset": "dapo", "loss": {"epsilon_high": 0.4})")));
  EXPECT_EQ(changed.loss.epsilon_high, 0.4);
  EXPECT_EQ(changed.loss.type, "dapo");
}

TEST(RlOptionsOf, AreRefusedWhereTheyContradictEachOther) {
  const auto refusal = [](const std::string& more) {
    return std::string(error_of([&] { (void)task_of("rl", params(more)); }).what());
  };
  EXPECT_THAT(refusal(R"("samples": 1)"), HasSubstr("compares the completions of a prompt"));
  EXPECT_THAT(refusal(R"("algorithm": "grpoo")"), HasSubstr("grpo"));
  EXPECT_THAT(refusal(R"("preset": "trl:grpo", "algorithm": "ppo")"), HasSubstr("both given"));
  EXPECT_THAT(refusal(R"("critic": {"lr": 1e-5})"), HasSubstr("has no critic"));
  EXPECT_THAT(refusal(R"("reference": "runs/a")"), HasSubstr("costs nothing"));
  EXPECT_THAT(refusal(R"("parity": "off", "iterations": 2)"), HasSubstr("pass"));
  EXPECT_THAT(refusal(R"("overlap": 1, "dynamic_rounds": 2)"),
              HasSubstr("not built yet: rl.overlap with rl.dynamic_rounds"));
  EXPECT_EQ(rollout_ranks_of(json::parse(R"({"task": "rl", "rl": {"overlap": 1}})", "a")), 1);
  EXPECT_EQ(rollout_ranks_of(json::parse(
                R"({"task": {"type": "rl", "params": {"overlap": 1, "rollout_ranks": 3}}})", "a")),
            3);
  EXPECT_EQ(rollout_ranks_of(json::parse(R"({"task": "rl", "rl": {"rollout_ranks": 3}})", "a")), 0);
  EXPECT_THAT(refusal(R"("models": {"critic": {"ranks": [1]}})"),
              HasSubstr("there is no critic model"));
  for (const char* key : {"\"buffer_count\": 2", "\"nvme_path\": \"/tmp\"", "\"max_in_cpu\": 5"}) {
    for (const char* device : {"", R"("device": "cpu", )"}) {
      EXPECT_THAT(
          refusal(
              std::string(R"("kl": {"coefficient": 0.1}, "models": {"reference": {"offload": {)") +
              device + key + "}}}"),
          HasSubstr("offload.device is not"))
          << device << key;
    }
  }
  EXPECT_EQ(options_of(*task_of("rl", params(R"("parity": "exact")"))).parity, Parity::Exact);
}

TEST(RlRewards, AreReadWithTheirPlaces) {
  const auto refusal = [](const std::string& rewards) {
    return std::string(
        error_of([&] { (void)task_of("rl", "{\"rewards\": " + rewards + "}"); }).text());
  };
  EXPECT_THAT(refusal("[]"), HasSubstr("there is no reward"));
  EXPECT_THAT(refusal(R"([{"type": "exact"}])"), HasSubstr("exact_match"));
  EXPECT_THAT(refusal(R"([{"weight": 2}])"), HasSubstr("type is missing"));
  EXPECT_THAT(refusal(R"([{"type": "regex", "pattern": "("}])"), HasSubstr("rewards[0].pattern"));
  EXPECT_THAT(refusal(R"([{"type": "command", "command": []}])"), HasSubstr("empty"));
  EXPECT_THAT(refusal(R"([{"type": "exact_match"}, {"type": "exact_match"}])"),
              HasSubstr("two rewards"));
}

/// The reward of a completion by the rule that `rule` describes.
double reward(const std::string& rule,
              const std::string& text,
              const std::string& record = "{}",
              std::int64_t tokens = 0,
              bool ended = true) {
  config::Problems problems;
  const std::vector<RlReward> rewards = read_rewards(json::parse(rule, "rule"), problems);
  problems.raise();
  const json::Value value = json::parse(record, "record");
  return rewards.at(0).rule->of({.record = value,
                                 .place = "prompts.jsonl:7",
                                 .prompt = "",
                                 .text = text,
                                 .tokens = tokens,
                                 .ended = ended});
}

TEST(RlRewards, ByRules) {
  EXPECT_EQ(reward(R"({"type": "exact_match"})", " 42\n", R"({"answer": 42})"), 1.0);
  EXPECT_EQ(reward(R"({"type": "exact_match"})", "Yes", R"({"answer": "yes"})"), 0.0);
  EXPECT_EQ(
      reward(R"({"type": "exact_match", "ignore_case": true})", "Yes", R"({"answer": "yes"})"),
      1.0);
  EXPECT_EQ(reward(R"({"type": "prefix_match"})", "12x4", R"({"answer": "1234"})"), 0.5);
  EXPECT_EQ(reward(R"({"type": "prefix_match"})", "1", R"({"answer": "1234"})"), 0.25);

  const char* const number = R"({"type": "number"})";
  EXPECT_EQ(reward(number, "so #### 1 or #### $1,234.", R"({"answer": "it is\n#### 1234"})"), 1.0);
  EXPECT_EQ(reward(number, "1234", R"({"answer": 1234})"), 0.0);
  EXPECT_EQ(reward(number, "#### -5", R"({"answer": -5})"), 1.0);
  EXPECT_EQ(reward(number, "#### 1e5 or five", R"({"answer": 5})"), 0.0);
  EXPECT_EQ(reward(R"({"type": "number", "tolerance": 0.1})", "#### 3.1", R"({"answer": "3.14"})"),
            1.0);

  EXPECT_EQ(reward(R"({"type": "regex", "pattern": "^a+$"})", "aaa"), 1.0);
  EXPECT_EQ(reward(R"({"type": "regex", "pattern": "^a+$"})", "aab"), 0.0);

  EXPECT_EQ(reward(R"({"type": "length", "min": 2, "max": 3})", "", "{}", 3), 1.0);
  EXPECT_EQ(reward(R"({"type": "length", "min": 2, "max": 3})", "", "{}", 4), 0.0);
  EXPECT_EQ(reward(R"({"type": "missing_end"})", "a", "{}", 5, /*ended=*/true), 0.0);
  EXPECT_EQ(reward(R"({"type": "missing_end"})", "a", "{}", 5, /*ended=*/false), -1.0);
  // Yu et al. 2025, eq. 13: 0 up to max - buffer, -1 from max on.
  const char* const overlong = R"({"type": "overlong", "max": 20, "buffer": 4})";
  EXPECT_EQ(reward(overlong, "", "{}", 16), 0.0);
  EXPECT_EQ(reward(overlong, "", "{}", 17), -0.25);
  EXPECT_EQ(reward(overlong, "", "{}", 25), -1.0);

  const char* const format = R"({"type": "format", "parts": ["<a>", "</a>", "<b>"]})";
  EXPECT_EQ(reward(format, "<a>x</a> <b>"), 1.0);
  EXPECT_EQ(reward(format, "<b><a>x</a>"), 0.0);
  EXPECT_EQ(reward(format, "<a>x</a><a><b>"), 0.0);
}

struct Equality {
  const char *completion, *answer;
  double reward = 1.0;
  const char* more = "";
};

// Answers of completions are written in many ways, and are compared as exact rational numbers.
TEST(RlRewards, OfMathsCompareExactNumbers) {
  for (const Equality& row :
       std::initializer_list<Equality>{{"so #### 1 or\n#### $1,234.", "it is 1\n#### 1234"},
                                       {"#### 1,234,567.50", "1234567.5"},
                                       {"#### 12,34", "1234", 0.0},
                                       {"####\n42", "42"},
                                       {"#### **-7**", "-7"},
                                       {"#### \xE2\x88\x92$7", "-7"},
                                       {"#### 7", "-7", 0.0},
                                       {"#### +7 apples.", "7"},
                                       {"#### 7 m/s", "7"},
                                       {"#### 7 m^2", "7"},
                                       {"#### 7 or 8", "7", 0.0},
                                       {"#### 7+1", "7", 0.0},
                                       {"#### 7\xCF\x80", "7", 0.0},
                                       {"#### 7 x", "7", 0.0},
                                       {"#### x = 7", "7"},
                                       {"#### -0", "0"},
                                       {"#### seven", "7", 0.0},
                                       {"####", "7", 0.0},
                                       {R"(It is \boxed{\frac{3}{6}}.)", "1/2"},
                                       {R"(It is $\boxed{-\dfrac12}$.)", "-0.5"},
                                       {R"(\boxed{\frac{-1}{2}})", R"(\boxed{-\frac{1}{2}})"},
                                       {R"(\boxed{2\frac{1}{2}})", "2.5"},
                                       {R"(\boxed{1 1/2})", "1.5"},
                                       {R"(\boxed{\$1{,}234\text{ dollars}})", "1234"},
                                       {R"(\boxed{90^\circ})", "90"},
                                       {R"(\boxed{2\sqrt{3}})", "2", 0.0},
                                       {R"(\boxed{\frac{1}{0}})", "0", 0.0},
                                       {R"(\boxed{1} and then \boxed{2})", "2"},
                                       {R"(\boxed{2} and then \boxed{1})", "2", 0.0},
                                       {R"(\boxed{2)", "2", 0.0},
                                       {R"(#### 1 then \boxed{2})", "2"},
                                       {"the last number is 3, then 0.250.", "1/4"},
                                       {"it falls by 3 to -5.", "-5"},
                                       {"10-5", "5"},
                                       {"in 2/3 of the cases", "0.6666666666666667", 0.0},
                                       {"on 12/05/2024", "2024", 0.0},
                                       {"version 1.2.3", "3", 0.0},
                                       {"see x2", "2", 0.0},
                                       {"see 5", "5", 0.0, R"(, "marked": true)"},
                                       {R"(see \boxed{5})", "5", 1.0, R"(, "marked": true)"},
                                       {"#### 50%", "0.5"},
                                       {R"(\boxed{50\%})", "50 percent"},
                                       {"#### 50%", "50", 0.0},
                                       {"#### 50%", "50", 1.0, R"(, "ignore_percent": true)"},
                                       {"#### 1.5e3", "1500"},
                                       {"#### 1.5e-3", "0.0015"},
                                       {R"(\boxed{1.5 \times 10^{3}})", "1500"},
                                       {R"(\boxed{1.5\cdot10^{-1}})", "3/20"},
                                       {"#### 2.5 million", "2500000"},
                                       {"#### 2.5 millionaires", "2.5"},
                                       // No rounding, and no number where 128 bits end.
                                       {"#### 0.1000000000000000000000001", "0.1", 0.0},
                                       {"#### 9007199254740993", "9007199254740992", 0.0},
                                       {"#### 340282366920938463463374607431768211455",
                                        "340282366920938463463374607431768211455"},
                                       {"#### 340282366920938463463374607431768211456", "0", 0.0},
                                       {"#### 1e999999999999999999999", "1", 0.0},
                                       {"#### 1e38", "1e38"},
                                       {"#### 1e39", "1", 0.0}}) {
    SCOPED_TRACE(std::string(row.completion) + " for " + row.answer);
    json::Value record = json::Value::object();
    record["answer"] = json::Value::string(row.answer);
    EXPECT_EQ(
        reward(std::string(R"({"type": "maths")") + row.more + "}", row.completion, record.dump()),
        row.reward);
  }
  EXPECT_EQ(reward(R"({"type": "maths"})", "so 0.50", R"({"answer": 0.5})"), 1.0);
}

// Completions are bounded in what is read of them, and are linear in time.
TEST(RlRewards, OfMathsAreSafeFromHostileTexts) {
  const auto of = [](const std::string& text) {
    return reward(R"({"type": "maths"})", text, R"({"answer": 1})");
  };
  constexpr std::size_t kMany = 1'000'000;
  for (const char* const part : {"1",
                                 "1/",
                                 "1,",
                                 "1.",
                                 "$",
                                 "-",
                                 "\\frac",
                                 "\\frac{",
                                 "{",
                                 "1e",
                                 "1 ",
                                 "####",
                                 "\\boxed{",
                                 "\xFF"}) {
    std::string text;
    while (text.size() < kMany)
      text += part;
    SCOPED_TRACE(part);
    (void)of(text);
    EXPECT_EQ(of("#### " + text), 0.0);
    EXPECT_EQ(of("\\boxed{" + text + "}"), 0.0);
    EXPECT_EQ(of(text + "\n#### 1"), 1.0);
  }
  EXPECT_EQ(of(std::string("#### 1\0", 7)), 1.0);
  for (const char* const record : {R"({"answer": "about 5"})", R"({"answer": "1e40"})"}) {
    EXPECT_THAT(error_of([&] { (void)reward(R"({"type": "maths"})", "1", record); }).what(),
                HasSubstr("prompts.jsonl:7: \"answer\" is not a single number"));
  }
}

TEST(RlRewards, NameTheRecordThatLacksTheAnswer) {
  EXPECT_THAT(error_of([] { (void)reward(R"({"type": "exact_match"})", "a"); }).what(),
              HasSubstr("prompts.jsonl:7: the record has no text or number \"answer\""));
}

// A text on which a search goes on for ever has no match.
TEST(RlRewards, SearchForALimitedTime) {
  EXPECT_EQ(
      reward(R"({"type": "regex", "pattern": "^(a|aa|aaa)+$"})", std::string(5000, 'a') + "b"),
      0.0);
}

class RlCommand : public ::testing::Test {
 protected:
  /// The rewards of three completions "x", "xx" and "xxx" by a program of Python.
  std::vector<double> rewards(const std::string& program,
                              double timeout = 20,
                              std::int64_t restarts = 0) {
    CommandRewardOptions options;
    options.command = {"python3", folder_.write("judge.py", program), folder_.write("mark", "")};
    options.timeout = timeout;
    options.restarts = restarts;
    RewardCommand command(options);
    const json::Value record = json::parse(R"({"answer": "xx"})", "record");
    std::vector<Answer> answers;
    for (const char* text : {"x", "xx", "xxx"})
      answers.push_back({.record = record, .place = "p.jsonl:3", .prompt = "?", .text = text});
    return command.of(answers);
  }
  test::Folder folder_;
};

TEST_F(RlCommand, RewardsInAnyOrder) {
  const std::vector<double> out = rewards(R"(
import json, sys
lines = [json.loads(sys.stdin.readline()) for _ in range(3)]
for line in reversed(lines):
    equal = line["completion"] == line["record"]["answer"]
    print(json.dumps({"id": line["id"], "reward": 1.5 if equal else None if line["id"] == 2 else 0}), flush=True)
)");
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(out[0], 0.0);
  EXPECT_EQ(out[1], 1.5);
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST_F(RlCommand, IsStartedAgainWithWhatIsOpen) {
  // It dies after its first answer, and the second one begins where it stopped.
  const std::vector<double> out = rewards(R"(
import json, os, sys
mark = sys.argv[1]
first = os.path.getsize(mark) == 0
open(mark, "a").write("x")
for line in sys.stdin:
    value = json.loads(line)
    print(json.dumps({"id": value["id"], "reward": value["id"] + (0 if first else 10)}), flush=True)
    if first: sys.exit(3)
)",
                                          20,
                                          1);
  EXPECT_EQ(out, (std::vector<double>{0, 11, 12}));
}

TEST_F(RlCommand, ThatFailsIsNamedWithTheRecord) {
  const auto failure = [&](const std::string& program, double timeout = 20) {
    const Error error = error_of([&] { (void)rewards(program, timeout); });
    return error;
  };
  const Error dead = failure("import sys; sys.exit(3)");
  EXPECT_EQ(dead.kind(), Error::Kind::Environment);
  EXPECT_THAT(dead.what(), HasSubstr("python3"));
  EXPECT_THAT(dead.what(), HasSubstr("p.jsonl:3"));
  EXPECT_THAT(failure("import time; time.sleep(60)", 0.3).what(), HasSubstr("no answer for"));
  const Error wrong = failure(R"(print('{"id": 7, "reward": 1}', flush=True); input())");
  EXPECT_EQ(wrong.kind(), Error::Kind::Data);
  EXPECT_THAT(failure(R"(print('hello', flush=True); input())").what(), HasSubstr("hello"));

  CommandRewardOptions nothing;
  nothing.command = {"/no/such/program"};
  const json::Value record = json::Value::object();
  const std::vector<Answer> answers = {{.record = record, .place = "p", .prompt = "", .text = ""}};
  EXPECT_THAT(error_of([&] { (void)RewardCommand(nothing).of(answers); }).what(),
              HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace tessera::tasks
