// SPDX-License-Identifier: Apache-2.0
// The program as a user sees it: arguments in, text and exit codes out.
#include "tessera/cli/app.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/cli/command.h"
#include "tessera/models/family.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

TEST(Program, WithoutWordsShowsTheOverviewAsAnError) {
  const Outcome o = run_program({});

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, AllOf(HasSubstr("usage: tessera"), HasSubstr("train"), HasSubstr("init")));
}

TEST(Program, HelpIsNotAnError) {
  const Outcome o = run_program({"--help"});

  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("usage: tessera"),
                    HasSubstr("TESSERA_ISA"),
                    HasSubstr("TESSERA_LOG"),
                    HasSubstr("TESSERA_CACHE"),
                    Not(HasSubstr("TESSERA_GOLDEN"))));
  EXPECT_EQ(o.err, "");
}

TEST(Program, EveryCommandHasHelpWithExamples) {
  for (const std::string& name : commands().names()) {
    const Outcome o = run_program({name, "--help"});

    EXPECT_EQ(o.code, 0) << name;
    EXPECT_THAT(o.out,
                AllOf(HasSubstr("Examples:"),
                      HasSubstr("tessera " + name),
                      HasSubstr("--quiet"),
                      HasSubstr("--verbose")))
        << name;
  }
}

TEST(Program, UnknownWordsComeWithTheNearest) {
  EXPECT_THAT(run_program({"trian"}).err,
              AllOf(HasSubstr("error: unknown command \"trian\""), HasSubstr("\"train\"")));
  EXPECT_THAT(run_program({"train", "x.json", "--resum", "never"}).err,
              HasSubstr("did you mean --resume?"));
  EXPECT_THAT(run_program({"bench", "steps", "m.json"}).err,
              AllOf(HasSubstr("unknown: tessera bench steps"), HasSubstr("\"step\"")));
  EXPECT_EQ(run_program({"train", "x.json", "y.json"}).code, 2);
  EXPECT_EQ(run_program({"train", "--set"}).code, 2);
}

TEST(Program, WarnsOfMisspeltVariables) {
  setenv("TESSERA_CASHE", "/x", 1);

  const Outcome o = run_program({"--version"});

  unsetenv("TESSERA_CASHE");
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, AllOf(HasSubstr("TESSERA_CASHE"), HasSubstr("TESSERA_CACHE")));
}

TEST(Program, PrintsErrorsOnlyWhereItIsToBeQuiet) {
  setenv("TESSERA_CASHE", "/x", 1);
  // Warnings come before the words of the command are read, and afterwards.
  for (const char* const quiet : {"-q", "--quiet"}) {
    const Outcome o = run_program({"init", "nano", quiet});
    testing::internal::CaptureStderr();
    log::warn("a warning of the command");
    log::error("an error of the command");

    EXPECT_EQ(o.err, "");
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("an error of the command"), Not(HasSubstr("a warning"))));
  }
  EXPECT_THAT(run_program({"init", "nano"}).err, HasSubstr("TESSERA_CASHE"))
      << "the next one is not";
  EXPECT_THAT(run_program({"init", "nanoo", "-q"}).err, HasSubstr("error: "));
  unsetenv("TESSERA_CASHE");
}

TEST(Program, ShowsControlCharactersOfWhatItIsGiven) {
  const std::string hostile = "a\x1b]0;x\x07";
  const files::TempDir folder;
  const auto file = [&](const std::string& text) {
    files::write_atomic(folder.path() / "c.json", text);
    return (folder.path() / "c.json").string();
  };
  const std::vector<std::vector<std::string>> lines = {
      {hostile},
      {"train", hostile + ".json"},
      {"train", "c.json", "--" + hostile},
      {"train", file("{}"), "--set", hostile + "=1"},
      {"inspect", hostile},
      {"report", hostile},
      {"generate", hostile},
      {"config", "explain", hostile},
      {"config", "explain", file(R"({"a\u001b]0;x\u0007": 1, "train_batch_size": 1})")},
      {"train", file(R"({"model": {"family": "a\u001b]0;x\u0007"}})")}};
  for (const std::vector<std::string>& words : lines) {
    const Outcome o = run_program(words);

    SCOPED_TRACE(testing::PrintToString(words));
    EXPECT_EQ((o.out + o.err).find('\x1b'), std::string::npos) << o.out << o.err;
    EXPECT_THAT(o.out + o.err, AnyOf(HasSubstr("\\x1b]0;x\\x07"), HasSubstr("\\u001b]0;x\\u0007")));
  }
}

TEST(Init, WritesWhatTrainAccepts) {
  for (const std::string& preset : models::names_of(models::families().get("gpt2").presets)) {
    const Outcome o = run_program({"init", preset, "--data", "my \"text\".txt"});

    ASSERT_EQ(o.code, 0) << preset;
    const planner::Plan plan = planner::make_plan(json::parse(o.out, preset), 2, "my.json");
    EXPECT_EQ(plan.model().options->preset, preset);
    EXPECT_EQ(plan.data().options.train.front(), "my \"text\".txt");
    EXPECT_THAT(o.out, HasSubstr("//"));
  }
}

TEST(Init, RefusesUnknownPresets) {
  const Outcome o = run_program({"init", "nanoo"});

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("\"nano\""));
  EXPECT_THAT(run_program({"init", "gpt2"}).err, HasSubstr("\"gpt2-small\""));
}

TEST(Config, ExplainsKeysAndSections) {
  EXPECT_THAT(run_program({"config", "explain", "trainer.seed"}).out,
              AllOf(HasSubstr("trainer.seed"), HasSubstr("1234")));
  EXPECT_THAT(run_program({"config", "explain", "trainer"}).out,
              AllOf(HasSubstr("trainer.epochs"), Not(HasSubstr("optimizer.type"))));
  EXPECT_THAT(run_program({"config", "explain", "trainer.sed"}).err, HasSubstr("\"trainer.seed\""));
}

TEST(Config, ThePageOfTheKeysIsUpToDate) {
  const std::string page = files::read(tessera::test::source_dir().string() + "/docs/config.md");

  // If this fails: build/release/bin/tessera config docs > docs/config.md
  EXPECT_EQ(run_program({"config", "docs"}).out, page);
}

TEST(Tokenize, WritesAPairThatCanBeCounted) {
  const files::TempDir folder;
  files::write_atomic(folder.path() / "a.txt", "hello");

  const Outcome o = run_program({"tokenize",
                                 (folder.path() / "a.txt").string(),
                                 "--out",
                                 (folder.path() / "a").string(),
                                 "--json"});

  EXPECT_EQ(o.code, 0) << o.err;
  const json::Value stats = json::parse_strict(o.out, "stdout");
  EXPECT_EQ(stats.find("documents")->as_integer(), 1);
  EXPECT_EQ(stats.find("tokens")->as_integer(),
            5);  // one token per byte; end of text between documents
  EXPECT_TRUE(files::fs::exists(folder.path() / "a.bin") &&
              files::fs::exists(folder.path() / "a.idx"));
}

TEST(Tokenize, NeedsAPlaceToWriteTo) {
  EXPECT_THAT(run_program({"tokenize", "a.txt"}).err, HasSubstr("--out"));
}

}  // namespace
}  // namespace tessera::cli
