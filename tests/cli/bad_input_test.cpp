// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong in a configuration or on the command line: exit code, place, remedy,
// before any rank starts.
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/base/files.h"
#include "tessera/cli/app.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BadInput : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
    return path(name);
  }
  // A configuration that would train, with more members.
  std::string config(const std::string& members,
                     const std::string& model = R"({"preset": "nano"})") const {
    write("text.txt", std::string(4000, 'x'));
    return write("c.json",
                 "{\n \"model\": " + model + ",\n \"data\": {\"train\": \"" + path("text.txt") +
                     "\", \"sequence_length\": 32},\n \"trainer\": {\"max_steps\": 2},\n \"run\": "
                     "{\"dir\": \"" +
                     path("run") + "\"}" + (members.empty() ? "" : ",\n " + members) + "\n}");
  }
  // Runs `tessera train` with these words; what it says on standard error is in err_.
  int train(std::vector<std::string> words) {
    words.insert(words.begin(), {"tessera", "train"});
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const double begin = now_s();
    const int code = tessera_main(static_cast<int>(words.size()), argv.data());
    seconds_ = now_s() - begin;
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }

  files::TempDir folder_;
  std::string out_, err_;
  double seconds_ = 0;
};

TEST_F(BadInput, AMissingFileComesWithTheNearest) {
  write("my_model.json", "{}");

  EXPECT_EQ(train({path("my_modle.json")}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("there is no file"), HasSubstr("my_model.json")));
  EXPECT_EQ(train({}), 2);
  EXPECT_THAT(err_, HasSubstr("CONFIG is missing"));
}

TEST_F(BadInput, AFolderIsNoConfiguration) {
  EXPECT_EQ(train({folder_.path().string()}), 2);
  EXPECT_THAT(err_, HasSubstr("is a folder"));
}

TEST_F(BadInput, BrokenJsonHasLineColumnAndKeyPath) {
  EXPECT_EQ(train({write("c.json", "{\n \"trainer\": {\n  \"max_steps\": 5x\n }\n}")}), 2);
  EXPECT_THAT(err_,
              AllOf(HasSubstr("c.json:3:16"), HasSubstr("trainer.max_steps"), HasSubstr("fix:")));
}

TEST_F(BadInput, EmptyBinaryDeepAndNotANumber) {
  EXPECT_EQ(train({write("c.json", "")}), 2);
  EXPECT_THAT(err_, HasSubstr("empty"));
  EXPECT_EQ(train({write("c.json",
                         std::string("\x7F"
                                     "ELF\0\0",
                                     6))}),
            2);
  EXPECT_THAT(err_, HasSubstr("binary"));
  EXPECT_EQ(train({write("c.json", std::string(200'000, '['))}), 2);
  EXPECT_THAT(err_, HasSubstr("deeper"));
  EXPECT_EQ(train({write("c.json", "{\"gradient_clipping\": NaN}")}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("NaN"), HasSubstr("gradient_clipping")));
  EXPECT_EQ(train({write("c.json", "{\"a\": 1, \"a\": 2}")}), 2);
  EXPECT_THAT(err_, HasSubstr("twice"));
}

TEST_F(BadInput, SeveralMistakesAreAllTold) {
  EXPECT_EQ(train({config(R"("train_batch_size": "many", "optimzer": {}, "steps_per_print": 0)")}),
            2);
  EXPECT_THAT(err_,
              AllOf(HasSubstr("train_batch_size"),
                    HasSubstr("optimzer"),
                    HasSubstr("\"optimizer\""),
                    HasSubstr("steps_per_print")));
}

TEST_F(BadInput, AbsurdNumbersOfRanks) {
  for (const char* ranks : {"0", "-1", "1025", "99999999999"}) {
    EXPECT_EQ(train({config(R"("train_batch_size": 4)"), std::string("--num-gpus=") + ranks}), 2)
        << ranks;
    EXPECT_THAT(err_, HasSubstr("1 to 1024")) << ranks;
  }
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "two"}), 2);
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "8"}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("8 ranks"), HasSubstr("4 sequences")));
}

TEST_F(BadInput, TwoConfigurations) {
  EXPECT_EQ(train({"a.json", "--deepspeed", "b.json"}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("a.json"), HasSubstr("b.json")));
}

TEST_F(BadInput, ALauncherThatDisagrees) {
  setenv("RANK", "0", 1);
  setenv("LOCAL_RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "localhost", 1);
  setenv("MASTER_PORT", "29500", 1);

  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "3"}), 2);

  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
  EXPECT_THAT(err_, AllOf(HasSubstr("-n 3"), HasSubstr("2 ranks")));
}

TEST_F(BadInput, AModelThatDoesNotFitIntoMemory) {
  EXPECT_EQ(
      train({config(R"("train_batch_size": 2)", R"({"preset": "gpt3"})"), "-n", "2", "--dry-run"}),
      5);
  EXPECT_THAT(err_, AllOf(HasSubstr("TiB"), HasSubstr("free"), HasSubstr("model.preset")));
}

TEST_F(BadInput, ADryRunOfAGoodConfigurationStartsNothing) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "2", "--dry-run"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("micro 2 x accumulation 1 x ranks 2"), HasSubstr("free")));
  EXPECT_FALSE(files::fs::exists(folder_.path() / "run" / "metrics.jsonl"));
}

TEST_F(BadInput, ADryRunAsJsonHasThePlan) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "--dry-run", "--json"}), 0) << err_;

  const json::Value plan = json::parse_strict(out_, "stdout");
  EXPECT_EQ(plan.find("config")->find("train_batch_size")->as_integer(), 4);
  EXPECT_GT(plan.find("memory_per_rank")->find("activations")->as_integer(), 0);
}

TEST_F(BadInput, OverridesAreNamedInMessages) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "--set", "trainer.max_step=3"}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("--set trainer.max_step=3"), HasSubstr("\"max_steps\"")));
}

}  // namespace
}  // namespace tessera::cli
