// SPDX-License-Identifier: Apache-2.0
// tessera bench, without starting ranks.
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    out.push_back(line);
  return out;
}

TEST(BenchCommand, ExplainsItselfAndItsParts) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"bench"}, {"bench", "step"}, {"bench", "comm"}}) {
    std::vector<std::string> asked = words;
    asked.emplace_back("--help");
    const Outcome o = run_program(asked);

    EXPECT_EQ(o.code, 0);
    EXPECT_THAT(o.out,
                AllOf(HasSubstr("Examples:"), HasSubstr("tessera " + text::join(words, " "))));
  }
}

TEST(BenchCommand, RefusesWhatIsNone) {
  EXPECT_THAT(run_program({"bench", "stpe"}).err,
              AllOf(HasSubstr("unknown: tessera bench stpe"), HasSubstr("step")));
  for (const std::vector<std::string>& words : {
           std::vector<std::string>{"bench"},
           {"bench", "stpe"},
           {"bench", "step"},
           {"bench", "step", "no_such.json"},
           {"bench", "comm", "-n", "1"},
           {"bench", "comm", "--sizes", "one"},
           {"bench", "comm", "--sizes", "1,,2"},
           {"bench", "comm", "--sizes", "-4"},
           {"bench", "comm", "--sizes", ""},
           {"bench", "comm", "--transport", "gloo"},
           {"bench", "comm", "--memory", "disk"},
           {"bench", "comm", "--repetitions", "0"},
       }) {
    EXPECT_EQ(run_program(words).code, 2) << words.back();
  }
  EXPECT_EQ(run_program({"bench", "comm", "--sizes", "65536", "-n", "1000"}).code, 5);
}

TEST(BenchStep, ChecksTheConfigurationBeforeItStarts) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "my.json").string();
  files::write_atomic(path, R"({"data": {"train": "none.txt", "sequence_length": 8},
                                "train_batch_size": 2, "trainer": {"max_steps": 2}})");

  EXPECT_EQ(run_program({"bench", "step", path, "--steps", "0"}).code, 2);
  EXPECT_THAT(run_program({"bench", "step", path, "--set", "model.num_layer=2"}).err,
              HasSubstr("num_layers"));
  EXPECT_THAT(run_program({"bench", "step", path}).err,
              AllOf(HasSubstr("2 steps is too short"), HasSubstr("trainer.max_steps=5")));
}

TEST(BenchComm, MeasuresThreadsInATable) {
  const Outcome o = run_program({"bench",
                                 "comm",
                                 "--transport",
                                 "threads",
                                 "-n",
                                 "2",
                                 "--sizes",
                                 "0.0625,0.125",
                                 "--repetitions",
                                 "1"});

  ASSERT_EQ(o.code, 0) << o.err;
  const auto lines = lines_of(o.out);
  ASSERT_EQ(lines.size(), 1U + 2 * 2 * 8);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("algorithm GB/s"), HasSubstr("bus GB/s")));
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr("all-reduce"), HasSubstr("regions"), HasSubstr("64.0 KiB")));
  EXPECT_THAT(lines[32], AllOf(HasSubstr("send/recv"), HasSubstr("ordinary")));
}

TEST(BenchComm, WritesJson) {
  const Outcome o = run_program({"bench",
                                 "comm",
                                 "--transport",
                                 "threads",
                                 "--sizes",
                                 "0.0625",
                                 "--repetitions",
                                 "1",
                                 "--memory",
                                 "regions",
                                 "--json"});

  ASSERT_EQ(o.code, 0) << o.err;
  const auto lines = lines_of(o.out);
  ASSERT_EQ(lines.size(), 8U);
  const json::Value first = json::parse_strict(lines[0], "stdout");
  EXPECT_EQ(first.find("operation")->as_string(), "all-reduce");
  EXPECT_EQ(first.find("memory")->as_string(), "regions");
  EXPECT_EQ(first.find("bytes")->as_integer(), 65536);
  // Between two ranks an all-reduce moves the bytes of a vector, a reduce-scatter half of them.
  EXPECT_DOUBLE_EQ(first.find("bus_bytes_per_s")->as_double(),
                   first.find("algorithm_bytes_per_s")->as_double());
  const json::Value second = json::parse_strict(lines[1], "stdout");
  EXPECT_DOUBLE_EQ(2 * second.find("bus_bytes_per_s")->as_double(),
                   second.find("algorithm_bytes_per_s")->as_double());
}

}  // namespace
}  // namespace tessera::cli
