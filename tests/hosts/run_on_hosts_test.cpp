// SPDX-License-Identifier: Apache-2.0
// Agents on other hosts: what they receive, and how their ends are reported. The agents are
// scripts.
#include "tessera/hosts/run_on_hosts.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/hosts/ssh.h"

namespace tessera::hosts {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

AgentJob job_with(std::vector<std::string> words) {
  AgentJob job{{}, std::move(words)};
  job.part.host = 1;
  job.part.hosts = 3;
  job.part.first_rank = 4;
  job.part.local_ranks = 2;
  job.part.world_size = 8;
  job.part.name = "node-1";
  job.part.master = "10.0.0.1";
  job.part.port = 4242;
  job.part.secret = random_secret();
  return job;
}

TEST(AgentJob, IsReadAsItWasWritten) {
  AgentJob job = job_with({"c.json", "--set", "a=\n b", ""});
  job.part.copies = {{{"node-0", "10.0.0.1", 7}, {"node-1", "10.0.0.2", 8}}, 1, 0, {2, 40}};

  const AgentJob read = parse_agent_job(agent_job_text(job));

  EXPECT_TRUE(read.part.is_agent);
  EXPECT_EQ(read.words, job.words);
  EXPECT_EQ(read.part.secret.key, job.part.secret.key);
  EXPECT_EQ(read.part.first_rank, 4);
  EXPECT_EQ(read.part.world_size, 8);
  EXPECT_EQ(read.part.master, "10.0.0.1");
  EXPECT_EQ(read.part.port, 4242);
  ASSERT_EQ(read.part.copies.places.size(), 2U);
  EXPECT_EQ(read.part.copies.places[1].host, "node-1");
  EXPECT_EQ(read.part.copies.places[1].address, "10.0.0.2");
  EXPECT_EQ(read.part.copies.places[1].port, 8);
  EXPECT_EQ(read.part.copies.own, 1);
  EXPECT_EQ(read.part.copies.neighbour, 0);
  EXPECT_EQ(read.part.copies.from, (CopySet{2, 40}));
}

TEST(AgentJob, RefusesEveryTextThatWasCutShort) {
  const std::string text = agent_job_text(job_with({"c.json", "-n"}));
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_THROW(parse_agent_job(text.substr(0, length)), Error) << length;
  AgentJob nowhere = job_with({});
  nowhere.part.copies.own = 0;  // of no server
  EXPECT_THROW(parse_agent_job(agent_job_text(nowhere)), Error);
  AgentJob wrong = job_with({});
  wrong.part.first_rank = 7;  // of 8 ranks, with 2 on this host
  EXPECT_THROW(parse_agent_job(agent_job_text(wrong)), Error);
}

TEST(AgentJob, OfAnotherVersionIsReportedAsSuch) {
  std::string text = agent_job_text(job_with({}));
  text.replace(0, text.find('\n'), "tessera-agent 1");
  try {
    parse_agent_job(text);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("another version of tessera than the one that started the job"),
                      HasSubstr("install the same program on every host")));
  }
}

TEST(SshCommand, QuotesWhatTheShellOfTheHostReads) {
  RemoteOptions options;
  options.program = "/opt/a b/tessera";
  options.ssh_port = 2222;
  options.launcher_args = "-i key";

  const std::vector<std::string> words =
      ssh_command(options, "node-1", "/home/o'neil/runs", {"A=$(x) 'y'"});

  EXPECT_THAT(words,
              ElementsAre("ssh",
                          "-o",
                          "PasswordAuthentication=no",
                          "-o",
                          "BatchMode=yes",
                          "-p",
                          "2222",
                          "-i",
                          "key",
                          "node-1",
                          "cd '/home/o'\\''neil/runs' || exit 121; exec env 'A=$(x) '\\''y'\\''' "
                          "'/opt/a b/tessera' agent"));
}

TEST(SshCommand, RunsACommandBefore) {
  RemoteOptions options;
  options.program = "tessera";
  options.launcher_args = "source setup_env.sh";

  EXPECT_THAT(ssh_command(options, "a", "/", {}).back(),
              HasSubstr("cd '/' || exit 121; source setup_env.sh && exec env 'tessera' agent"));
}

TEST(PassedEnvironment, ContainsTheVariablesAndTheFile) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "env").string();
  files::write_atomic(path, "# for all hosts\nMY_NAME=a b\n\n");
  setenv("DS_ENV_FILE", path.c_str(), 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("HIDDEN_PASSWORD", "x", 1);

  EXPECT_THAT(passed_environment(),
              AllOf(Contains("MY_NAME=a b"),
                    Contains("NCCL_DEBUG=INFO"),
                    Not(Contains("HIDDEN_PASSWORD=x"))));
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  files::write_atomic(folder.path() / ".deepspeed_env", "FROM_HOME=1\n");
  unsetenv("DS_ENV_FILE");
  setenv("HOME", folder.path().c_str(), 1);
  EXPECT_THAT(passed_environment(), Contains("FROM_HOME=1"));
  setenv("HOME", before.c_str(), 1);
  setenv("DS_ENV_FILE", path.c_str(), 1);
  files::write_atomic(path, "GOOD=1\nexport BAD=1\n");
  std::string text;
  try {
    passed_environment();
  } catch (const Error& error) {
    text = error.text();
  }
  EXPECT_THAT(text, HasSubstr("env:2: expected NAME=VALUE"));
  unsetenv("DS_ENV_FILE");
  unsetenv("NCCL_DEBUG");
  unsetenv("HIDDEN_PASSWORD");
}

// A configuration that comes from someone else may have the file beside it.
TEST(PassedEnvironment, LeavesTheFileOfTheCurrentFolderUnread) {
  const files::TempDir home, here;
  const fs::path before = fs::current_path();
  const char* const set = std::getenv("HOME");
  const std::string home_before = set == nullptr ? "" : set;
  files::write_atomic(here.path() / ".deepspeed_env", "LD_PRELOAD=/tmp/evil.so\n");
  files::write_atomic(home.path() / ".deepspeed_env", "MINE=1\n");
  fs::current_path(here.path());
  setenv("HOME", home.path().c_str(), 1);
  std::vector<std::string> told;
  log::set_sink([&](log::Level, std::string_view message) { told.emplace_back(message); });

  const std::vector<std::string> unnamed = passed_environment();
  setenv("DS_ENV_FILE", ".deepspeed_env", 1);
  const std::vector<std::string> named = passed_environment();
  chmod((here.path() / ".deepspeed_env").c_str(), 0606);
  std::string refused;
  try {
    passed_environment();
  } catch (const Error& error) {
    refused = error.text();
  }
  unsetenv("DS_ENV_FILE");
  log::set_sink(nullptr);
  fs::current_path(before);
  setenv("HOME", home_before.c_str(), 1);

  EXPECT_THAT(unnamed, AllOf(Contains("MINE=1"), Not(Contains(HasSubstr("LD_PRELOAD")))));
  EXPECT_THAT(told, Contains(AllOf(HasSubstr("is not read"), HasSubstr("DS_ENV_FILE"))));
  EXPECT_THAT(named, Contains("LD_PRELOAD=/tmp/evil.so"));
  EXPECT_THAT(refused, HasSubstr("another user can write the file"));
}

/// Hosts whose agents are a script; all of them are this host, which needs no ssh.
class Remote : public testing::Test {
 protected:
  int run(const std::string& script, int hosts = 2, double join_timeout_s = 60.0) {
    const std::string program = (folder_.path() / "agent.sh").string();
    files::write_atomic(program,
                        "#!/bin/bash\nread -r first; read -r secret; read -r host rest\n" + script);
    chmod(program.c_str(), 0700);
    RemoteOptions options;
    for (int host = 0; host < hosts; ++host)
      options.pool.push_back({"127.0.0." + std::to_string(host + 1), {0, 1}});
    options.program = program;
    options.words = {"c.json"};
    options.join_timeout_s = join_timeout_s;
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const HostsEnd end = run_job_on_hosts(options);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    error_ = end.error ? end.error->what + "\n  fix: " + end.error->fix : "";
    lost_ = end.lost;
    return end.code;
  }
  files::TempDir folder_;
  std::vector<std::string> notices_;
  std::string out_, err_, error_;
  std::vector<std::string> lost_;
};

TEST_F(Remote, PassesOutputOnWithTheNameOfTheHost) {
  EXPECT_EQ(run("echo out $host; echo err $host >&2"), 0);

  EXPECT_THAT(out_, AllOf(HasSubstr("out 0\n"), HasSubstr("[127.0.0.2] out 1\n")));
  EXPECT_THAT(out_, Not(HasSubstr("[127.0.0.1]")));
  EXPECT_THAT(err_, HasSubstr("[127.0.0.2] err 1\n"));
}

TEST_F(Remote, ReturnsTheCodeOfTheFirstHostOrOfOneThatFailed) {
  EXPECT_EQ(run("exit 7"), 7);
  EXPECT_EQ(run("[[ $host == 0 ]] || exit 3"), 3);
  EXPECT_EQ(run("exit 75"), 75) << "stopped and saved";
  EXPECT_EQ(error_, "");
}

TEST_F(Remote, EndsAgentsThatHaveNotMetAtTheFirstSignal) {
  // The first agent stops the job, as Ctrl-C does, while both still prepare.
  const std::string stop = "[[ $host == 0 ]] && kill -TERM $PPID; sleep 60";

  EXPECT_EQ(run(stop), 143);
}

TEST_F(Remote, ReportsWhichAgentCouldNotBeStartedOrWasKilled) {
  EXPECT_EQ(run("[[ $host == 0 ]] || exit 255"), 8);
  EXPECT_THAT(error_, HasSubstr("host 127.0.0.2: ssh cannot reach it"));
  EXPECT_EQ(run("[[ $host == 0 ]] || exit 121"), 8);
  EXPECT_THAT(error_, HasSubstr("host 127.0.0.2: it has no folder"));
  EXPECT_EQ(run("[[ $host == 0 ]] || kill -9 $$"), 6);
  EXPECT_THAT(error_, AllOf(HasSubstr("127.0.0.2"), HasSubstr("SIGKILL")));
}

// As an ssh that connects and stays silent, on all hosts.
TEST_F(Remote, EndsIfNoHostArrives) {
  EXPECT_EQ(run("exec sleep 60", 2, /*join_timeout_s=*/0.3), 6);

  EXPECT_THAT(error_,
              AllOf(HasSubstr("hosts 127.0.0.1, 127.0.0.2 did not arrive within 0.3 s"),
                    HasSubstr("fix: ")));
  EXPECT_THAT(lost_, ElementsAre("127.0.0.1", "127.0.0.2"));
}

}  // namespace
}  // namespace tessera::hosts
