// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A run with three steps, an evaluation and an incomplete line.
class RunFacts : public testing::Test {
 protected:
  RunFacts() {
    write(
        "metrics.jsonl",
        R"({"step": 1, "epoch": 0.1, "loss": 4.0, "tokens": 100, "tokens_per_s": 100, "step_ms": 1000, "comm_ms": 100, "data_ms": 0, "mem_peak_bytes": 5})"
        "\n"
        R"({"step": 2, "epoch": 0.2, "loss": 2.5, "tokens": 200, "tokens_per_s": 200, "step_ms": 500, "comm_ms": 100, "data_ms": 0, "mem_peak_bytes": 9})"
        "\n"
        R"({"step": 2, "eval_loss": 3.25})"
        "\n"
        R"({"step": 3, "epoch": 0.3, "loss": 3.0, "tokens": 300, "tokens_per_s": 200, "step_ms": 500, "comm_ms": 200, "data_ms": 0, "mem_peak_bytes": 7})"
        "\n"
        R"({"step": 4, "lo)");
    write("status.json",
          R"({"state": "failed", "step": 3, "exit_code": 7, "message": "the loss is nan"})");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
  }
  files::TempDir folder_;
};

double number(const json::Value& facts, const char* key) {
  const json::Value* const value = facts.find(key);
  return value == nullptr ? -1.0 : value->as_double();
}

TEST_F(RunFacts, SumUpItsMetrics) {
  const json::Value facts = as_json(run_facts(folder_.path()));

  EXPECT_EQ(number(facts, "steps"), 3);
  EXPECT_EQ(number(facts, "tokens"), 300);
  EXPECT_EQ(number(facts, "first_loss"), 4.0);
  EXPECT_EQ(number(facts, "last_loss"), 3.0);
  EXPECT_EQ(number(facts, "best_loss"), 2.5);
  EXPECT_EQ(number(facts, "best_loss_step"), 2);
  EXPECT_EQ(number(facts, "last_eval_loss"), 3.25);
  EXPECT_DOUBLE_EQ(number(facts, "train_s"), 2.0);
  EXPECT_DOUBLE_EQ(number(facts, "tokens_per_s"), 150.0)
      << "300 tokens in 2 s, not the mean of rates";
  EXPECT_DOUBLE_EQ(number(facts, "comm_share"), 0.2);
  EXPECT_EQ(number(facts, "mem_peak_bytes"), 9);
  EXPECT_EQ(number(facts, "exit_code"), 7);
  EXPECT_EQ(number(facts, "checkpoints"), 0);
}

TEST_F(RunFacts, OfValuesOnADiskHaveTheirTravelAndTheWaitForIt) {
  EXPECT_EQ(as_json(run_facts(folder_.path())).find("disk_share"), nullptr);
  write(
      "metrics.jsonl",
      R"({"step": 1, "loss": 4.0, "step_ms": 1500, "disk_ms": 500, "disk_read_bytes": 3000, "disk_written_bytes": 1000})"
      "\n"
      R"({"step": 2, "loss": 2.5, "step_ms": 500, "disk_ms": 0, "disk_read_bytes": 2000, "disk_written_bytes": 1000})"
      "\n");

  const json::Value facts = as_json(run_facts(folder_.path()));

  EXPECT_DOUBLE_EQ(number(facts, "disk_share"), 0.25);
  EXPECT_DOUBLE_EQ(number(facts, "disk_bytes_per_step"), 3500);
}

TEST_F(RunFacts, ReadAsATable) {
  const std::string table = as_table(run_facts(folder_.path()));

  EXPECT_THAT(table, HasSubstr("failed, exit code 7"));
  EXPECT_THAT(table, HasSubstr("the loss is nan"));
  EXPECT_THAT(table, HasSubstr("2.5000 at step 2"));
}

TEST_F(RunFacts, OfAProcessThatIsGoneSayHowToContinue) {
  write("status.json", R"({"state": "running", "step": 0, "exit_code": 0, "message": ""})");
  const std::string command = "tessera train " + (folder_.path() / "config.json").string();

  const json::Value facts = as_json(run_facts(folder_.path()));

  EXPECT_EQ(facts.find("state")->as_string(), "killed");
  EXPECT_EQ(facts.find("exit_code"), nullptr);
  EXPECT_THAT(facts.find("go_on")->as_string(), HasSubstr(command));
  EXPECT_THAT(as_table(run_facts(folder_.path())), HasSubstr(command));
  std::filesystem::create_directory(folder_.path() / "logs");
  EXPECT_THAT(run_program({"doctor", folder_.path().string()}).out,
              AllOf(HasSubstr("the run was killed: "), HasSubstr(command)));
  EXPECT_THAT(run_program({"watch", folder_.path().string(), "--text", "--once"}).out,
              HasSubstr("killed"));
}

TEST_F(RunFacts, HaveTheCauseThatTheDoctorBeginsWith) {
  std::filesystem::create_directory(folder_.path() / "logs");

  const Outcome o = run_program({"doctor", folder_.path().string()});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.out.starts_with("the run failed, exit code 7: the loss is nan\n")) << o.out;
}

TEST_F(RunFacts, OfADamagedListOfExpertsAreToldWithTheOtherFindings) {
  std::filesystem::create_directory(folder_.path() / "logs");
  const std::string path = (folder_.path() / "experts.json").string();
  for (const char* const text :
       {"", "{\"step\": 1", "[]", R"({"step": 1, "steps": 1, "layers": [3]})"}) {
    write("experts.json", text);

    const Outcome o = run_program({"doctor", folder_.path().string()});

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.out, HasSubstr("exit code 7: the loss is nan")) << text;
    EXPECT_THAT(o.out, AllOf(HasSubstr("the loads of experts are not known: "), HasSubstr(path)))
        << text;
    const Outcome json = run_program({"doctor", folder_.path().string(), "--json"});
    EXPECT_EQ(json.code, 0) << json.err;
    EXPECT_THAT(json.out, HasSubstr("the loads of experts are not known"));
  }
  write("experts.json",
        R"({"step": 9, "steps": 9, "layers": [{"name": "h.1", "chosen": [90, 0, 90, 90],
            "dropped": 0}]})");
  EXPECT_THAT(run_program({"doctor", folder_.path().string()}).out, HasSubstr("h.1"));
}

TEST(RunFactsErrors, NameAFolderThatIsNotARun) {
  const files::TempDir folder;

  for (const auto& path : {folder.path(), folder.path() / "absent"}) {
    try {
      run_facts(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Io);
      EXPECT_THAT(error.text(), HasSubstr(path.string()));
    }
  }
}

TEST(MachineFacts, ReportWhatRanksWouldGet) {
  const json::Value facts = as_json(machine_facts());

  EXPECT_GE(number(facts, "usable_cores"), 1);
  EXPECT_GT(number(facts, "usable_memory_bytes"), 0);
  EXPECT_GT(number(facts, "memory_bytes_per_s"), 0);
  EXPECT_GT(number(facts, "fp32_flops_per_s"), 0);
  EXPECT_EQ(facts.find("libtorch")->as_string().substr(0, 4), "2.11");
}

}  // namespace
}  // namespace tessera::cli
