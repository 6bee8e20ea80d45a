// SPDX-License-Identifier: Apache-2.0
// tessera bench, without starting ranks.
#include <filesystem>
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
       {std::vector<std::string>{"bench"}, {"bench", "step"}, {"bench", "comm"}, {"bench", "io"}}) {
    std::vector<std::string> asked = words;
    asked.emplace_back("--help");
    const Outcome o = run_program(asked);

    EXPECT_EQ(o.code, 0);
    EXPECT_THAT(o.out,
                AllOf(HasSubstr("Examples:"), HasSubstr("tessera " + text::join(words, " "))));
  }
}

TEST(BenchCommand, RefusesInvalidInput) {
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
           {"bench", "io"},
           {"bench", "io", ".", "--blocks", "0"},
           {"bench", "io", ".", "--depths", "65"},
           {"bench", "io", ".", "--access", "mapped"},
           {"bench", "io", ".", "--size", "0"},
           {"bench", "io", ".", "--seconds", "-1"},
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

TEST(BenchIo, MeasuresADiskAndEndsWithKeysOfAConfiguration) {
  const files::TempDir folder;
  const std::string path = folder.path().string();
  const std::vector<std::string> sweep = {
      "bench", "io", path, "--size", "1", "--blocks", "0.25,0.5", "--depths", "1,3"};
  const Outcome table = run_program(sweep);

  ASSERT_EQ(table.code, 0) << table.err;
  const auto lines = lines_of(table.out);
  ASSERT_EQ(lines.size(), 1U + 2 * 2 + 1);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("write GB/s"), HasSubstr("read while writing GB/s")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("256.0 KiB"), HasSubstr(" 3 direct")));
  std::vector<std::string> in_json = sweep;
  in_json.insert(in_json.end(), {"--json", "--access", "both"});
  const auto rows = lines_of(run_program(in_json).out);
  ASSERT_EQ(rows.size(), 2U * 2 * 2 + 1);
  double best = 0, block = 0, depth = 0;
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    json::Value row = json::parse(rows[i], "row");
    EXPECT_EQ(row["access"].as_string(), i < 4 ? "direct" : "buffered");
    for (const char* key : {"write_bytes_per_s", "read_bytes_per_s"})
      EXPECT_GT(row[key].as_double(), 0);
    const double rate = row["read_beside_write_bytes_per_s"].as_double();
    if (i >= 4 || rate <= best) continue;
    best = rate;
    block = row["block_size"].as_double();
    depth = row["queue_depth"].as_double();
  }
  json::Value keys = json::parse(rows.back(), "keys");
  EXPECT_EQ(keys["aio"]["block_size"].as_double(), block);
  EXPECT_EQ(keys["aio"]["queue_depth"].as_double(), depth);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(BenchIo, RefusesAFolderThatIsMissingOrTooSmall) {
  const files::TempDir folder;
  const Outcome missing = run_program({"bench", "io", (folder.path() / "none").string()});
  EXPECT_EQ(missing.code, 8);
  EXPECT_THAT(missing.err, HasSubstr("not a folder in which files can be made"));
  const Outcome full = run_program({"bench", "io", folder.path().string(), "--size", "1048576"});
  EXPECT_EQ(full.code, 8);
  EXPECT_THAT(full.err, AllOf(HasSubstr("free"), HasSubstr("--size")));
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
