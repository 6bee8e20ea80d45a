// SPDX-License-Identifier: Apache-2.0
// Command lines written for DeepSpeed's launcher: each one works, or the error says what to type.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class LauncherCommandLine : public testing::Test {
 protected:
  void SetUp() override {
    files::write_atomic(folder_.path() / "text.txt", std::string(4000, 'x'));
    files::write_atomic(
        folder_.path() / "ds.json",
        R"({"model": {"preset": "nano"}, "data": {"train": ")" + path("text.txt") +
            R"(", "sequence_length": 32}, "train_batch_size": 4, "run": {"dir": ")" + path("run") +
            R"("}, "trainer": {"max_steps": 1}})");
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  // Returns the fix of a rejected command line.
  static std::string fix_of(const std::vector<std::string>& words) {
    const Outcome o = run_program(words);
    EXPECT_EQ(o.code, 2) << o.out;
    const std::size_t fix = o.err.find("fix: ");
    EXPECT_NE(fix, std::string::npos) << o.err;
    return fix == std::string::npos ? "" : o.err.substr(fix + 5, o.err.find('\n', fix) - fix - 5);
  }
  void expect_understood(std::vector<std::string> words) const {
    words.emplace_back("--dry-run");
    const Outcome o = run_program(words);
    EXPECT_EQ(o.code, 0) << o.err;
  }
  files::TempDir folder_;
};

// Whatever prevents a start is reported by --dry-run, with the same words as by the start.
TEST_F(LauncherCommandLine, ADryRunRefusesHostsThatCannotBeStarted) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=1\nnode-1 slots=1\n");
  for (const auto& [flags, why] :
       {std::pair(std::vector<std::string>{"--launcher", "jsrun"}, "jsrun is not built"),
        std::pair(std::vector<std::string>{"--launcher", "openmpi", "--elastic_training"},
                  "--launcher openmpi cannot"),
        std::pair(std::vector<std::string>{"--node_rank", "0"}, "where the hosts meet"),
        std::pair(
            std::vector<std::string>{
                "--node_rank", "1", "--master_addr", "127.0.0.1", "--elastic_training"},
            "started by hand")}) {
    std::vector<std::string> words = {"train", path("ds.json"), "--hostfile", path("hosts")};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome started = run_program(words);
    words.emplace_back("--dry-run");
    const Outcome dry = run_program(words);

    EXPECT_EQ(dry.code, 2) << why;
    EXPECT_THAT(dry.err, HasSubstr(why));
    EXPECT_EQ(dry.err, started.err);
  }
}

TEST_F(LauncherCommandLine, OfAnElasticTrainingWithoutHostsSaysSo) {
  for (const std::string flag : {"--elastic_training", "--min_elastic_nodes=1"}) {
    const Outcome o = run_program({"train", path("ds.json"), flag, "--dry-run"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.err, HasSubstr(flag.substr(0, flag.find('=')) + " has no effect on hosts"));
  }
  EXPECT_THAT(run_program({"train", path("ds.json"), "--max_elastic_nodes=1", "--dry-run"}).err,
              HasSubstr("no effect without --elastic_training"));
}

TEST_F(LauncherCommandLine, TakesTheAutotuningFlagAtAnyPosition) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"train", path("ds.json"), "--autotuning", "later"},
                                             {"train", "--autotuning=later", path("ds.json")}})
    EXPECT_THAT(fix_of(words), HasSubstr("--autotuning tune writes the best configuration"));
}

TEST_F(LauncherCommandLine, SuggestsTheNameOfAMisspeltFlag) {
  EXPECT_EQ(fix_of({"train", path("ds.json"), "--max_step", "5"}), "did you mean --max_steps?");
  EXPECT_EQ(fix_of({"train", path("ds.json"), "--dry-rum"}), "did you mean --dry-run?");
  EXPECT_EQ(fix_of({"config", "explain", path("ds.json"), "--learning_rat", "5"}),
            "did you mean --learning_rate?");
  EXPECT_EQ(fix_of({"verify", path("ds.json"), "--warmup_step=5"}), "did you mean --warmup_steps?");
}

TEST_F(LauncherCommandLine, SuggestsTheNameOfAnAbbreviatedFlag) {
  EXPECT_EQ(fix_of({"train", path("ds.json"), "--per_device_batch_size", "4"}),
            "did you mean --per_device_train_batch_size?");
}

TEST_F(LauncherCommandLine, RejectsAssignmentsWithoutSetOrWithSpaces) {
  EXPECT_EQ(fix_of({"train", path("ds.json"), "trainer.max_steps=3"}),
            "--set trainer.max_steps=3, without spaces around \"=\"");
  EXPECT_EQ(fix_of({"train", path("ds.json"), "--set", "optimizer.lr", "=", "3e-4"}),
            "--set KEY=VALUE, without spaces around \"=\"");
  EXPECT_THAT(run_program({"train", path("ds.json"), "--set", "optimizer.lr", "=", "3e-4"}).err,
              HasSubstr("unexpected argument: ="));
  EXPECT_THAT(run_program({"train", path("ds.json"), "trainer.max_steps=3"}).err,
              HasSubstr("unexpected argument: trainer.max_steps=3"));
}

TEST_F(LauncherCommandLine, DoesNotTakeAnOptionAsTheValueOfAnother) {
  EXPECT_THAT(run_program({"train", path("ds.json"), "--resume", "-q"}).err,
              HasSubstr("--resume: the value is missing"));
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--resume", "--dry-run"}),
              HasSubstr("--resume=--dry-run"));
  EXPECT_THAT(fix_of({"generate", path("run"), "--prompt", "--max-new-tokens", "5"}),
              HasSubstr("--prompt=--max-new-tokens"));
  // A text that only resembles an option is accepted.
  EXPECT_THAT(run_program({"generate", path("run"), "--prompt", "--- begin ---"}).err,
              Not(HasSubstr("value is missing")));
  EXPECT_THAT(run_program({"generate", path("run"), "--prompt=--max-new-tokens"}).err,
              Not(HasSubstr("value is missing")));
}

TEST_F(LauncherCommandLine, SuggestsTheOrderForFlagsBeforeTheCommand) {
  EXPECT_EQ(fix_of({"--learning_rate", "1e-4", "train", "ds.json"}),
            "type: tessera train --learning_rate 1e-4 ds.json");
  EXPECT_EQ(fix_of({"--deepspeed", "ds.json"}), "type: tessera train --deepspeed ds.json");
  EXPECT_EQ(fix_of({"ds.json", "-n", "2"}), "type: tessera train ds.json -n 2");
}

TEST_F(LauncherCommandLine, SuggestsTheConfigurationInsteadOfAScript) {
  EXPECT_EQ(fix_of({"main.py", "--deepspeed", "ds.json", "--seed", "1"}),
            "type: tessera train --deepspeed ds.json --seed 1");
  EXPECT_EQ(fix_of({"--num_gpus=2", "main.py", "--deepspeed", "ds.json"}),
            "type: tessera train --num_gpus=2 --deepspeed ds.json");
  EXPECT_EQ(fix_of({"train", "main.py", "--learning_rate", "1e-4"}),
            "type: tessera train CONFIG --learning_rate 1e-4");
}

TEST_F(LauncherCommandLine, ReportsAMissingConfiguration) {
  EXPECT_THAT(fix_of({"train", "--learning_rate", "1e-4"}), HasSubstr("tessera train my.json"));
  EXPECT_THAT(fix_of({"train", "--deepspeed"}), HasSubstr("tessera train my.json"));
}

TEST_F(LauncherCommandLine, AcceptsTheConfigurationBeforeOrAfterItsFlag) {
  expect_understood({"train", path("ds.json"), "--deepspeed"});
  expect_understood({"train", "--deepspeed_config", path("ds.json"), "--deepspeed"});
  expect_understood({"train", "--deepspeed", "--deepspeed_config=" + path("ds.json")});
  expect_understood({"train", "--deepspeed", path("ds.json"), "--local_rank=3"});
  EXPECT_THAT(fix_of({"train", "--deepspeed", "a.json", "--deepspeed_config", "b.json"}),
              HasSubstr("name one of them"));
}

TEST_F(LauncherCommandLine, AcceptsTheSameConfigurationTwice) {
  expect_understood({"train", path("ds.json"), "--deepspeed_config", path("ds.json")});
  expect_understood({"train", path("ds.json"), "--deepspeed_config", path("./ds.json")});
  files::write_atomic(folder_.path() / "b.json", R"({"train_batch_size": 8})");
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--deepspeed_config", path("b.json")}),
              HasSubstr("remove the key from one of the two files"));
}

// DeepSpeed's launcher inserts it before its own arguments.
TEST_F(LauncherCommandLine, AcceptsALocalRankBeforeTheCommand) {
  expect_understood({"--local_rank=1", "train", path("ds.json")});
  expect_understood({"--local-rank=0", "train", path("ds.json")});
  EXPECT_EQ(fix_of({"--local_rank=1", "ds.json"}), "type: tessera train ds.json");
  EXPECT_THAT(run_program({"--local_rank=x", "train", path("ds.json")}).err,
              HasSubstr("--local_rank"));
  EXPECT_EQ(run_program({"--local_rank=x", "train", path("ds.json")}).code, 2);
  EXPECT_EQ(run_program({"train", path("ds.json"), "--local_rank=x", "--dry-run"}).code, 2);
}

// Hugging Face passes switches with a value.
TEST_F(LauncherCommandLine, AcceptsASwitchWithAValue) {
  expect_understood({"train", path("ds.json"), "--do_train", "True"});
}

TEST_F(LauncherCommandLine, OverridesOldAndNewNamesOfAKeyByEachOther) {
  const auto micro_batches = [&](const std::string& members, std::vector<std::string> more) {
    files::write_atomic(folder_.path() / "old.json",
                        R"({"model": {"preset": "nano"}, "data": {"train": ")" + path("text.txt") +
                            R"(", "sequence_length": 32}, )" + members + "}");
    more.insert(more.begin(),
                {"train", path("old.json"), "--dry-run", "--json", "--output_dir", path("run")});
    const Outcome o = run_program(more);
    EXPECT_EQ(o.code, 0) << o.err;
    if (o.code != 0) return std::int64_t{0};
    const json::Value out = json::parse_strict(o.out, "stdout");
    return out.find("config")->find("gradient_accumulation_steps")->as_integer().value_or(0);
  };

  const std::string old = R"("train_micro_batch_size_per_gpu": 1, "NUM_MICRO_BATCHES": 4)";
  const std::string today =
      R"("train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4)";
  EXPECT_EQ(micro_batches(old, {"--gradient_accumulation_steps", "8"}), 8);
  EXPECT_EQ(micro_batches(old, {"--set", "NUM_MICRO_BATCHES=8"}), 8);
  EXPECT_EQ(micro_batches(today, {"--set", "NUM_MICRO_BATCHES=8"}), 8);
}

// A configuration as in Colossal-AI's tutorials: assignments, not a script.
TEST_F(LauncherCommandLine, SuggestsToConvertAConfigurationInPython) {
  files::write_atomic(folder_.path() / "config.py", "BATCH_SIZE = 8\nNUM_EPOCHS = 1\n");
  files::write_atomic(folder_.path() / "main.py", "import torch\nprint(1)\n");

  const std::string line = "type: tessera config convert " + path("config.py") + " --to tessera";
  EXPECT_THAT(fix_of({"train", path("config.py")}), HasSubstr(line));
  EXPECT_THAT(fix_of({path("config.py")}), HasSubstr(line));
  EXPECT_THAT(fix_of({"config", "explain", path("config.py")}), HasSubstr(line));
  EXPECT_EQ(fix_of({"train", path("main.py")}), "type: tessera train CONFIG");
}

TEST_F(LauncherCommandLine, NotesThatFlagsOfSshHaveNoEffectOnOneHost) {
  const Outcome o = run_program({"train",
                                 path("ds.json"),
                                 "--launcher=pdsh",
                                 "--launcher_args",
                                 "-w x",
                                 "--ssh_port=2222",
                                 "--no_ssh_check",
                                 "--num_nodes",
                                 "1",
                                 "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("--launcher has no effect here"),
                    HasSubstr("--launcher_args has no effect"),
                    HasSubstr("--ssh_port has no effect"),
                    HasSubstr("--no_ssh_check has no effect")));
}

TEST_F(LauncherCommandLine, TakesSlotsOfThisHostAsRanks) {
  files::write_atomic(folder_.path() / "hosts", "# this one\nlocalhost slots=2\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--hostfile", path("hosts")},
        {"-H", path("hosts"), "--include=localhost:0,1"},
        {"--include", "localhost:0,1"},
        {"-i", "localhost:4,5"},
        {"--hostfile", path("hosts"), "--num_nodes", "1", "--num_gpus", "2"}}) {
    std::vector<std::string> line = {"train", path("ds.json"), "--dry-run"};
    line.insert(line.end(), words.begin(), words.end());

    const Outcome o = run_program(line);

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.out, HasSubstr("layout      2 ranks")) << words[1];
  }
  expect_understood({"train", path("ds.json"), "--include", "localhost:1"});
}

TEST_F(LauncherCommandLine, SaysThatAHostfileDoesNotExist) {
  const Outcome o =
      run_program({"train", path("ds.json"), "--hostfile", path("none"), "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("none does not exist: the ranks run on this host alone"));
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--num_nodes", "2"}), HasSubstr("--hostfile FILE"));
}

TEST_F(LauncherCommandLine, RefusesFiltersThatMeanNothing) {
  files::write_atomic(folder_.path() / "hosts", "localhost slots=2\n");
  const auto refused = [&](const std::vector<std::string>& words) {
    std::vector<std::string> line = {"train", path("ds.json"), "-H", path("hosts")};
    line.insert(line.end(), words.begin(), words.end());
    const Outcome o = run_program(line);
    EXPECT_EQ(o.code, 2) << o.out;
    return o.err;
  };

  EXPECT_THAT(refused({"-i", "localhost", "-e", "localhost:0"}), HasSubstr("exclude each other"));
  EXPECT_THAT(refused({"-i", "worker-0"}), HasSubstr("there is no host worker-0"));
  EXPECT_THAT(refused({"-i", "localhost:2"}), HasSubstr("has no slot 2"));
  EXPECT_THAT(refused({"-n", "3"}), HasSubstr("has 2 slots"));
  EXPECT_THAT(refused({"-i", "localhost:0", "-n", "1"}), HasSubstr("--num_gpus"));
  EXPECT_THAT(refused({"--launcher", "rsh"}), HasSubstr("there is no such launcher"));
  EXPECT_THAT(refused({"--bind_core_list", "1-"}), HasSubstr("--bind_core_list 1-"));
  EXPECT_THAT(refused({"--hostfile", "other"}), HasSubstr("two different values"));
  EXPECT_THAT(refused({"--include"}), HasSubstr("the value is missing"));
}

TEST_F(LauncherCommandLine, SaysWhichRanksRunOnWhichHost) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=2\nnode-1 slots=4\n");

  const Outcome o = run_program(
      {"train", path("ds.json"), "-H", path("hosts"), "-i", "node-0@node-1:1,3", "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("host        node-0: ranks 0-1\n"),
                    HasSubstr("host        node-1: ranks 2-3\n"),
                    HasSubstr("layout      4 ranks")));
}

TEST_F(LauncherCommandLine, RefusesLaunchersThatAreNotBuiltAndHostsWithoutANumber) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=2\nnode-1 slots=2\n");
  const std::vector<std::string> line = {"train", path("ds.json"), "-H", path("hosts")};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.begin(), line.begin(), line.end());
    return words;
  };

  EXPECT_THAT(fix_of({"train", path("ds.json"), "--launcher", "slurm"}), HasSubstr("salloc -N 2"));
  EXPECT_THAT(fix_of(with({"--launcher", "jsrun"})), HasSubstr("jsrun -n 4 tessera train"));
  EXPECT_THAT(fix_of(with({"--launcher=none"})), HasSubstr("--node_rank 0"));
  EXPECT_THAT(fix_of(with({"--no_ssh"})), HasSubstr("--node_rank 0"));
  EXPECT_THAT(fix_of(with({"--node_rank", "2"})), HasSubstr("choose 0 to 1"));
  EXPECT_THAT(fix_of(with({"--node_rank", "1"})), HasSubstr("--master_addr"));
}

TEST_F(LauncherCommandLine, TakesColossalAisFlagsOfASingleRank) {
  // launch_from_torch with the parser of Colossal-AI: one process that is the whole job.
  expect_understood({"train",
                     "--config",
                     path("ds.json"),
                     "--rank",
                     "0",
                     "--world_size",
                     "1",
                     "--host",
                     "127.0.0.1",
                     "--port",
                     "29511",
                     "--local_rank",
                     "0",
                     "--backend",
                     "gloo"});
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--backend", "smoke"}), HasSubstr("gloo, mpi"));
  EXPECT_THAT(run_program({"train", path("ds.json"), "--backend", "nccl", "--dry-run"}).err,
              HasSubstr("--backend nccl has no effect here"));
}

TEST_F(LauncherCommandLine, RefusesAFlagOfARankThatContradictsTheEnvironment) {
  setenv("WORLD_SIZE", "4", 1);
  const Outcome o = run_program({"train", path("ds.json"), "--world_size", "2"});
  unsetenv("WORLD_SIZE");

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("--world_size 2, but WORLD_SIZE=4 in the environment"));
}

TEST_F(LauncherCommandLine, TakesTorchrunsFlags) {
  for (const char* ranks : {"--nproc_per_node", "--nproc-per-node", "--num_accelerators"}) {
    const Outcome o = run_program({"train",
                                   path("ds.json"),
                                   "--nnodes=1",
                                   ranks,
                                   "2",
                                   "--rdzv_id=1",
                                   "--rdzv_backend=c10d",
                                   "--rdzv_conf=timeout=60",
                                   "--monitor_interval=1",
                                   "--rdzv_endpoint=localhost:29500",
                                   "--max_restarts=3",
                                   "--dry-run",
                                   "--json"});

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.err, HasSubstr("--rdzv_endpoint has no effect here"));
    const json::Value out = json::parse_strict(o.out, "stdout");
    EXPECT_EQ(out.find("config")->find("run")->find("restarts")->as_integer(), 3);
  }
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--nnodes=3", "--rdzv_endpoint=node-0:29500"}),
              HasSubstr("--node_rank 0 on the host of --rdzv_endpoint"));
}

TEST_F(LauncherCommandLine, TakesARangeOfHostsAsAnElasticTraining) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=1\nnode-1 slots=1\n");

  const Outcome o = run_program(
      {"train", path("ds.json"), "--nnodes=1:2", "-H", path("hosts"), "--dry-run", "--json"});

  EXPECT_EQ(o.code, 0) << o.err;
  const json::Value out = json::parse_strict(o.out, "stdout");
  const json::Value* const run = out.find("config")->find("run");
  EXPECT_EQ(run->find("min_hosts")->as_integer(), 1);
  EXPECT_EQ(run->find("max_hosts")->as_integer(), 2);
  EXPECT_THAT(fix_of({"train", path("ds.json"), "--nnodes=1:2", "--rdzv_endpoint=node-0:29500"}),
              HasSubstr("--hostfile FILE"));
  EXPECT_EQ(run_program({"train", path("ds.json"), "--nnodes=1:x", "--dry-run"}).code, 2);
}

TEST_F(LauncherCommandLine, TakesTheHostsOfColossalAisLauncher) {
  files::write_atomic(folder_.path() / "hosts", "node-0\nnode-1\nnode-2\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--host", "node-1,node-2"},
        {"--hostfile", path("hosts"), "--include", "node-1,node-2"},
        {"--hostfile", path("hosts"), "--exclude", "node-0"}}) {
    std::vector<std::string> line = {"train", path("ds.json"), "--nproc_per_node", "2"};
    line.insert(line.end(), words.begin(), words.end());
    line.emplace_back("--dry-run");

    const Outcome o = run_program(line);

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.out,
                AllOf(HasSubstr("host        node-1: ranks 0-1\n"),
                      HasSubstr("host        node-2: ranks 2-3\n")))
        << words[0];
  }
  EXPECT_THAT(run_program({"train",
                           path("ds.json"),
                           "--host",
                           "node-1,node-2",
                           "--set",
                           R"(run.hosts=["node-0"])",
                           "--dry-run"})
                  .err,
              HasSubstr("run.hosts has no effect: --host takes precedence"));
}

TEST_F(LauncherCommandLine, RefusesMoreRanksThanThereCanBe) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=1024\nnode-1 slots=1\n");

  const Outcome o = run_program({"train", path("ds.json"), "-H", path("hosts"), "--dry-run"});

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(
      o.err,
      AllOf(HasSubstr("1025 ranks: expected 1 to 1024"), HasSubstr("more threads for each rank")));
}

TEST_F(LauncherCommandLine, TakesTheHostsOfTheConfiguration) {
  files::write_atomic(folder_.path() / "hosts", "node-0 slots=2\nnode-1 slots=2\n");
  const std::string listed = R"(run.hosts=["node-0 slots=2", "node-1:2"])";
  for (const std::string& set : {"run.hosts=" + path("hosts"), listed}) {
    const Outcome o = run_program({"train", path("ds.json"), "--set", set, "--dry-run"});

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.out,
                AllOf(HasSubstr("host        node-1: ranks 2-3\n"),
                      HasSubstr("layout      4 ranks"),
                      HasSubstr("data travels over gloo")))
        << set;
  }
  EXPECT_THAT(
      run_program({"train", path("ds.json"), "--set", listed, "-i", "node-1", "--dry-run"}).out,
      HasSubstr("host        node-1: ranks 0-1\n"));
  files::write_atomic(folder_.path() / "one", "localhost slots=1\n");
  EXPECT_THAT(
      run_program({"train", path("ds.json"), "--set", listed, "-H", path("one"), "--dry-run"}).err,
      HasSubstr("run.hosts has no effect: --hostfile takes precedence"));
  EXPECT_THAT(run_program({"train", path("ds.json"), "--set", "run.hosts=/no/such/file"}).err,
              HasSubstr("/no/such/file does not exist"));
  EXPECT_THAT(run_program({"train", path("ds.json"), "--set", "run.hosts=3"}).err,
              HasSubstr("neither the path of a hostfile nor a list"));
}

TEST_F(LauncherCommandLine, RefusesATransportThatCannotWork) {
  const std::string hosts = R"(run.hosts=["node-0:2", "node-1:2"])";
  EXPECT_THAT(
      fix_of({"train", path("ds.json"), "--set", hosts, "--set", "run.transport=mpi", "--dry-run"}),
      HasSubstr("mpirun -np 4"));
  EXPECT_THAT(
      run_program({"train", path("ds.json"), "--set", hosts, "--set", "run.transport=ucx"}).err,
      HasSubstr("UCX was not faster than gloo"));
  EXPECT_THAT(
      run_program({"train", path("ds.json"), "--set", "run.transport=mpi", "--dry-run"}).err,
      HasSubstr("has no effect: all ranks are on one host"));
}

TEST_F(LauncherCommandLine, StartsASingleHostAsIfItWereRemote) {
  files::write_atomic(folder_.path() / "hosts", "localhost slots=2\n");

  const Outcome o =
      run_program({"train", path("ds.json"), "-H", path("hosts"), "--force_multi", "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("host        localhost: ranks 0-1\n"));
}

TEST_F(LauncherCommandLine, AcceptsAConfigurationInBase64) {
  // {"model": {"preset": "nano"}, "train_batch_size": 4}
  const std::string encoded =
      "eyJtb2RlbCI6IHsicHJlc2V0IjogIm5hbm8ifSwgInRyYWluX2JhdGNoX3NpemUiOiA0fQ==";
  const std::string data = "data.train=" + path("text.txt");

  expect_understood({"train",
                     "--deepspeed_config",
                     encoded,
                     "--set",
                     data,
                     "--set",
                     "data.sequence_length=32",
                     "--output_dir",
                     path("run")});
  EXPECT_THAT(run_program({"train", "--deepspeed_config", "eyJicm9rZW4="}).err,
              AllOf(HasSubstr("CONFIG (base64):1:2"), HasSubstr("never closed")));
}

TEST_F(LauncherCommandLine, NotesFlagsWithoutEffect) {
  const Outcome o = run_program({"train",
                                 path("ds.json"),
                                 "--master_port",
                                 "29500",
                                 "--no_local_rank",
                                 "--no_python",
                                 "--module",
                                 "--extra_launch_args",
                                 "a=b",
                                 "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("--master_port has no effect here"),
                    HasSubstr("--no_local_rank"),
                    HasSubstr("--no_python has no effect here: there is no script"),
                    HasSubstr("--module has no effect here"),
                    HasSubstr("--extra_launch_args has no effect here")));
}

TEST_F(LauncherCommandLine, NotesFlagsOfPythonAndSlurm) {
  const Outcome o = run_program({"train",
                                 path("ds.json"),
                                 "--venv_script",
                                 "/opt/venv/bin/activate",
                                 "--log_level=warning",
                                 "--account",
                                 "physics",
                                 "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("--venv_script has no effect here: no host needs a Python"),
                    HasSubstr("TESSERA_LOG="),
                    HasSubstr("srun --account")));
}

// Megatron's flag names; the table at the start shows the resulting layout.
TEST_F(LauncherCommandLine, AppliesMegatronsParallelFlags) {
  const Outcome o = run_program({"train",
                                 path("ds.json"),
                                 "-n",
                                 "4",
                                 "--pipeline-model-parallel-size",
                                 "2",
                                 "--tensor-model-parallel-size=2",
                                 "--sequence-parallel",
                                 "--dry-run"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("tensor parallel 2 (1d, sequence)"),
                    ContainsRegex("mesh        rank  host +stage   pp  dp  cp  tp  blocks"),
                    ContainsRegex("\n +3  [^ ]+ +1    1   0   0   1  ")));
  EXPECT_THAT(fix_of({"train",
                      path("ds.json"),
                      "--num-layers-per-virtual-pipeline-stage",
                      "1",
                      "--set",
                      "parallel.pipeline.size=2"}),
              HasSubstr("parallel.pipeline.chunks"));
}

}  // namespace
}  // namespace tessera::cli
