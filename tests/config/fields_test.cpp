// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/fields.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/document.h"

namespace tessera::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Inner {
  double rate = 0.5;
  std::string mode = "fast";
  void describe(Fields& f) {
    f.field("rate", rate, {.text = "A rate.", .min = 0, .max = 1, .above_min = true});
    f.field("mode", mode, {.text = "A mode.", .choices = {"fast", "slow"}});
  }
};

struct Outer {
  std::int64_t steps = 10;
  std::optional<std::int64_t> limit;
  bool on = false;
  std::vector<std::string> files;
  std::vector<double> betas = {0.9, 0.999};
  json::Value params;
  Inner inner;
  void describe(Fields& f) {
    f.field("steps", steps, {.text = "How many.", .unit = "steps", .min = 1});
    f.field("limit", limit, {.text = "At most.", .default_text = "none"});
    f.field("on", on, {.text = "Whether."});
    f.field("files", files, {.text = "Which."});
    f.field("betas", betas, {.text = "Decays."});
    f.field("params", params, {.text = "Others."});
    f.section("inner", inner, "More of it.");
  }
};

struct Result {
  Outer options;
  Problems problems;
  Origins origins;
};

Result read_text(const std::string& text) {
  Result out;
  read(json::parse(text, "c.json"), out.options, out.problems, out.origins);
  return out;
}

// Returns all problems as one text; "" if there are none.
std::string problems_of(const std::string& text) {
  try {
    read_text(text).problems.raise();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

TEST(FieldReader, FillsWhatIsGivenAndKeepsTheRest) {
  const Result r = read_text(
      R"({"steps": 5e2, "limit": 7, "files": ["a", "b"], "inner": {"rate": 1}, "params": {"x": 1}})");

  EXPECT_TRUE(r.problems.empty());
  EXPECT_EQ(r.options.steps, 500);
  EXPECT_EQ(r.options.limit, 7);
  EXPECT_THAT(r.options.files, ElementsAre("a", "b"));
  EXPECT_EQ(r.options.inner.rate, 1.0);
  EXPECT_EQ(r.options.inner.mode, "fast");
  EXPECT_THAT(r.options.betas, ElementsAre(0.9, 0.999));
  EXPECT_EQ(r.options.params.find("x")->as_integer(), 1);
}

TEST(FieldReader, TakesOneStringForAListAndNullForNothing) {
  const Result r = read_text(R"({"files": "a", "limit": null})");

  EXPECT_TRUE(r.problems.empty());
  EXPECT_THAT(r.options.files, ElementsAre("a"));
  EXPECT_EQ(r.options.limit, std::nullopt);
}

TEST(FieldReader, NamesTheNearestKey) {
  EXPECT_THAT(problems_of("{\n  \"inner\": {\"raet\": 1}\n}"),
              AllOf(HasSubstr("c.json:2:13"),
                    HasSubstr("inner.raet"),
                    HasSubstr("unknown key"),
                    HasSubstr("\"rate\"")));
}

TEST(FieldReader, RefusesWrongTypesWithWhatStandsThere) {
  EXPECT_THAT(problems_of(R"({"steps": "ten"})"),
              AllOf(HasSubstr("c.json:1:11"), HasSubstr("an integer"), HasSubstr("\"ten\"")));
  EXPECT_THAT(problems_of(R"({"steps": 1.5})"), AllOf(HasSubstr("an integer"), HasSubstr("1.5")));
  EXPECT_THAT(problems_of(R"({"on": 1})"),
              AllOf(HasSubstr("true or false"), HasSubstr("a number 1")));
  EXPECT_THAT(problems_of(R"({"inner": 3})"),
              AllOf(HasSubstr("an object"), HasSubstr("a number 3")));
  EXPECT_THAT(problems_of(R"({"betas": [1, "x"]})"),
              AllOf(HasSubstr("betas[1]"), HasSubstr("a number")));
  EXPECT_THAT(problems_of("[]"), HasSubstr("expected an object"));
}

TEST(FieldReader, RefusesWhatIsOutOfRange) {
  EXPECT_THAT(problems_of(R"({"steps": 0})"),
              AllOf(HasSubstr("at least 1 steps"), HasSubstr("found 0")));
  EXPECT_THAT(problems_of(R"({"inner": {"rate": 0}})"), HasSubstr("more than 0"));
  EXPECT_THAT(problems_of(R"({"inner": {"rate": 2}})"), HasSubstr("at most 1"));
  EXPECT_THAT(problems_of(R"({"inner": {"mode": "fats"}})"),
              AllOf(HasSubstr("\"fats\""), HasSubstr("\"fast\"")));
}

TEST(FieldReader, HasARemedyForEveryProblem) {
  EXPECT_THAT(problems_of(R"({"steps": 0})"), HasSubstr("fix: set it to 1"));
  EXPECT_THAT(problems_of(R"({"inner": {"rate": 2}})"), HasSubstr("fix: set it to 1"));
  EXPECT_THAT(problems_of(R"({"inner": {"rate": 0}})"), HasSubstr("fix: choose a number above 0"));
}

// The fix says what to type; the description of a key would not help.
TEST(FieldReader, CuresAWrongTypeByWhatToType) {
  const std::vector<std::pair<std::string, std::string>> cures = {
      {R"({"on": 1})", "write true or false"},
      {R"({"on": "true"})", "write true or false"},
      {R"({"steps": "500"})", "write 500, without quotes"},
      {R"({"steps": "5e2"})", "write 500, without quotes"},
      {R"({"steps": "-5"})", "write an integer, such as 10"},
      {R"({"steps": 1e99})", "write an integer, such as 10"},
      {R"({"steps": "many"})", "write an integer, such as 10"},
      {R"({"steps": "1.5"})", "write an integer, such as 10"},
      {R"({"steps": 7.5})", "write an integer, such as 7"},
      {R"({"steps": 0.5})", "write an integer, such as 1"},
      {R"({"limit": true})", "write an integer, such as 0"},
      {R"({"inner": {"rate": true}})", "write a number, such as 0.5"},
      {R"({"inner": {"rate": " 1e-3"}})", "write 0.001, without quotes"},
      {R"({"inner": {"rate": "nan"}})", "write a number, such as 0.5"},
      {R"({"inner": {"mode": 3}})", R"(choose one of: "fast", "slow")"},
      {R"({"files": 7})", R"(write a list: ["one", "two"])"},
      {R"({"files": ["a", 7]})", R"(write "7", in double quotes)"},
      {R"({"files": ["a", []]})", "write a string in double quotes"},
      {R"({"betas": 0.9})", "write [0.9]"},
      {R"({"betas": "x"})", "write a list, such as [0.9, 0.999]"},
      {R"({"betas": [null]})", "write a number, such as 0"},
      {R"({"inner": 3})", "write {\"key\": value, ...}"},
      {R"({"steps": "auto"})", "\"auto\" is not allowed for this key"}};
  for (const auto& [text, cure] : cures)
    EXPECT_THAT(problems_of(text), HasSubstr("fix: " + cure)) << text;
}

TEST(FieldReader, TakesNullAsNotGiven) {
  const Result r = read_text(R"({"steps": null, "limit": null, "on": null, "files": null,
      "betas": null, "params": null, "inner": {"rate": null, "mode": null}})");

  EXPECT_TRUE(r.problems.empty());
  Outer taken = r.options, standard;
  EXPECT_EQ(write(taken), write(standard));
  EXPECT_FALSE(r.origins.given("steps"));
  EXPECT_THAT(problems_of(R"({"stepz": null})"), HasSubstr("unknown key"));
}

TEST(FieldReader, WritesTheObjectThatALoneValueMeans) {
  struct Switch {
    bool enabled = false;
    std::string type;
    std::int64_t stage = 0;
    void describe(Fields& f) {
      f.field("enabled", enabled, {.text = "Whether."});
      f.field("type", type, {.text = "Which."});
      f.field("stage", stage, {.text = "How far."});
    }
  };
  struct Holder {
    Switch inner;
    void describe(Fields& f) { f.section("inner", inner, "More."); }
  };
  const auto fix = [](const std::string& value) {
    Holder holder;
    Problems problems;
    Origins origins;
    read(json::parse("{\"inner\": " + value + "}", "c.json"), holder, problems, origins);
    return problems.list().size() == 1 ? problems.list()[0].fix : "";
  };

  EXPECT_EQ(fix("true"), "write {\"enabled\": true}");
  EXPECT_EQ(fix("\"AdamW\""), "write {\"type\": \"AdamW\"}");
  EXPECT_EQ(fix("2"), "write {\"stage\": 2}");
  EXPECT_EQ(fix("[]"), "write {\"key\": value, ...}");
}

// Each would be compared with every known key, and named.
TEST(UnknownKeys, AreNamedUpToALimit) {
  std::string text = "{\"k0\": 0";
  for (int i = 1; i < 100'000; ++i)
    text += ", \"k" + std::to_string(i) + "\": 0";

  const std::string problems = problems_of(text + "}");

  EXPECT_THAT(problems, AllOf(HasSubstr("k0: unknown key"), HasSubstr("99900 more unknown keys")));
  EXPECT_LT(problems.size(), 20'000U);
}

TEST(UnknownKeys, AreFoundWhereTheyBelong) {
  const std::vector<std::string> here = {"type", "params", "weight_decay_schedule"};
  const std::vector<std::string> all = {"optimizer.type",
                                        "optimizer.params",
                                        "scheduler.type",
                                        "trainer.max_steps",
                                        "eval.every",
                                        "checkpoint.every",
                                        "model.num_layers"};

  EXPECT_EQ(unknown_key_fix("max_steps", here, all), "did you mean trainer.max_steps?");
  EXPECT_EQ(unknown_key_fix("every", here, all), "did you mean eval.every or checkpoint.every?");
  EXPECT_EQ(unknown_key_fix("lr", here, all), "did you mean optimizer.params.lr?");
  EXPECT_EQ(unknown_key_fix("learning_rate", here, all), "did you mean optimizer.params.lr?");
  EXPECT_EQ(unknown_key_fix("weight_decay", here, all),
            "did you mean optimizer.params.weight_decay?");
  EXPECT_EQ(unknown_key_fix("n_layer", here, all), "did you mean model.num_layers?");
  EXPECT_EQ(unknown_key_fix("rate", {}), "remove it: no key is expected here");
  EXPECT_EQ(unknown_key_fix("tpye", here, all), "did you mean \"type\"?");
  // For keys of the parameters themselves.
  EXPECT_EQ(unknown_key_fix("learning_rate", std::vector<std::string>{"lr", "betas"}),
            "did you mean \"lr\"?");
}

TEST(FieldReader, FindsAKeyThatBelongsElsewhere) {
  EXPECT_THAT(problems_of(R"({"inner": {"steps": 5}})"),
              AllOf(HasSubstr("inner.steps: unknown key"), HasSubstr("did you mean steps?")));
  EXPECT_THAT(problems_of(R"({"mode": "slow"})"), HasSubstr("did you mean inner.mode?"));
  EXPECT_THAT(problems_of(R"({"lr": 1})"),
              Not(HasSubstr("optimizer")));  // the suggestion does not exist here
}

TEST(FieldReader, TakesASectionThatIsNullAsNotGiven) {
  const Result r = read_text(R"({"inner": null})");

  EXPECT_TRUE(r.problems.empty());
  EXPECT_EQ(r.options.inner.rate, 0.5);
  EXPECT_FALSE(r.origins.given("inner"));
}

TEST(FieldReader, ReportsNoConsequencesOfAMistake) {
  struct Needs {
    std::string name;
    void describe(Fields& f) { f.field("name", name, {.text = "A name.", .required = true}); }
  };
  struct Holder {
    Needs inner;
    void describe(Fields& f) { f.section("inner", inner, "More."); }
  };
  for (const char* text : {R"({"inner": 3})", "[1]", "\"x\""}) {
    Holder holder;
    Problems problems;
    Origins origins;
    read(json::parse(text, "c.json"), holder, problems, origins);
    EXPECT_EQ(problems.list().size(), 1U) << text;
    EXPECT_EQ(problems.concern("inner.name"), text[1] == '"') << text;
  }
}

TEST(FieldReader, ReportsEverythingAtOnceInTheOrderOfTheFile) {
  const std::string text = problems_of("{\n\"inner\": {\"rate\": 7},\n\"steps\": 0,\n\"x\": 1\n}");

  EXPECT_THAT(text, HasSubstr("3 problems"));
  EXPECT_LT(text.find("inner.rate"), text.find("steps:"));
  EXPECT_LT(text.find("steps:"), text.find("x: unknown"));
}

TEST(FieldReader, RemembersWhereKeysStood) {
  const Result r = read_text("{\"inner\": {\"mode\": \"slow\"},\n \"params\": {\"lr\": 1}}");

  EXPECT_TRUE(r.origins.given("inner.mode"));
  EXPECT_TRUE(r.origins.given("params.lr"));
  EXPECT_FALSE(r.origins.given("inner.rate"));
  EXPECT_EQ(r.origins.place("params.lr").text(), "c.json:2:19");
  EXPECT_EQ(r.origins.place("inner.rate").text(),
            "c.json:1:11");  // the place of the enclosing object
  EXPECT_EQ(r.origins.place("steps").text(), "c.json:1:1");
}

TEST(FieldReader, ARequiredKeyThatIsMissingIsReportedAtItsObject) {
  struct Needs {
    std::string name;
    void describe(Fields& f) { f.field("name", name, {.text = "A name.", .required = true}); }
  } needs;
  Problems problems;
  Origins origins;

  read(json::parse("{}", "c.json"), needs, problems, origins);

  ASSERT_EQ(problems.list().size(), 1U);
  EXPECT_EQ(problems.list()[0].path, "name");
  EXPECT_EQ(problems.list()[0].place.text(), "c.json:1:1");
}

TEST(FieldWriter, WritesWhatTheReaderReads) {
  Outer options;
  options.steps = 3;
  options.limit = 4;
  options.inner.rate = 0.1;

  const json::Value written = write(options);
  const Result back = read_text(written.dump());

  EXPECT_TRUE(back.problems.empty());
  EXPECT_EQ(back.options.steps, 3);
  EXPECT_EQ(back.options.limit, 4);
  EXPECT_EQ(back.options.inner.rate, 0.1);
}

TEST(FieldWriter, KeepsTheOrderAndLeavesOutWhatHasNoValue) {
  Outer options;

  EXPECT_EQ(
      write(options).dump(),
      R"({"steps":10,"on":false,"files":[],"betas":[0.9,0.999],"params":null,"inner":{"rate":0.5,"mode":"fast"}})");
}

TEST(ProblemLists, AdoptThoseOfAPartUnderItsPath) {
  Problems part, whole;
  part.add({"c.json", 1, 2}, "lr", "is odd", "make it even");

  whole.adopt(part, "optimizer.params");

  EXPECT_EQ(whole.list()[0].path, "optimizer.params.lr");
  EXPECT_THROW(whole.raise(), Error);
  EXPECT_NO_THROW(Problems().raise());
}

TEST(Documents, SayTheTypeOfAFieldThatHasNoneByItself) {
  struct Any {
    json::Value bounds, params;
    void describe(Fields& f) {
      f.field("bounds", bounds, {.text = "Where.", .type = "list of integers"});
      f.field("params", params, {.text = "Others."});
    }
  };

  const std::vector<KeyDoc> keys = document(Any());

  EXPECT_EQ(keys[0].type, "list of integers");
  EXPECT_EQ(keys[1].type, "object");
}

TEST(Documents, SayEverythingThatIsKnownOfAKey) {
  const std::vector<KeyDoc> keys = document(Outer());

  ASSERT_EQ(keys.size(), 9U);
  EXPECT_EQ(keys[0].path, "steps");
  EXPECT_EQ(keys[0].type, "integer");
  EXPECT_EQ(keys[0].initial, "10");
  EXPECT_EQ(keys[0].range, "at least 1 steps");
  EXPECT_EQ(keys[1].initial, "none");
  EXPECT_EQ(keys[6].path, "inner");
  EXPECT_EQ(keys[7].range, "above 0, at most 1");
  EXPECT_EQ(keys[8].range, "fast, slow");
  EXPECT_THAT(markdown(keys),
              AllOf(HasSubstr("## inner\n\nMore of it."),
                    HasSubstr("| `inner.mode` | string | \"fast\" |")));
}

TEST(Fields, RefuseTheCharacterThatEndsAPath) {
  for (const char* text : {R"({"files": "a\u0000b"})",
                           R"({"files": ["a", "\u0000"]})",
                           R"({"inner": {"mode": "fast\u0000"}})"})
    EXPECT_THAT(problems_of(text), HasSubstr("has the character U+0000")) << text;
}

}  // namespace
}  // namespace tessera::config
