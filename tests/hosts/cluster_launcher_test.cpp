// SPDX-License-Identifier: Apache-2.0
// Agents that mpirun, mpiexec or srun starts: the command, the labels, and the agents' requests.
#include "tessera/hosts/cluster_launcher.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/hosts/coordinator.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"

namespace tessera::hosts {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Pair;
using testing::UnorderedElementsAre;

ClusterStart two_hosts() {
  ClusterStart start;
  start.hosts = {"node-1", "node-0"};
  start.cores = 8;
  start.host_list = "/tmp/hosts";
  start.folder = "/home/a b";
  start.agent = {"env", "A=1", "/opt/tessera", "agent"};
  return start;
}

/// Returns true if `words` contains the words of `part` one after the other.
bool has_run(const std::vector<std::string>& words, const std::vector<std::string>& part) {
  return std::search(words.begin(), words.end(), part.begin(), part.end()) != words.end();
}

TEST(ClusterCommand, OfOpenMpiKeepsTheOrderOfTheHosts) {
  ClusterStart start = two_hosts();
  start.ssh_port = 2222;
  start.extra = {"--mca", "btl", "tcp,self"};

  const ClusterCommand command = cluster_command(ClusterLauncher::OpenMpi, start);

  EXPECT_THAT(command.words.front(), HasSubstr("mpirun"));
  EXPECT_TRUE(has_run(command.words, {"-np", "2"}));
  EXPECT_TRUE(has_run(command.words, {"--host", "node-1,node-0"}));
  EXPECT_TRUE(has_run(command.words, {"--map-by", "seq"}));
  EXPECT_TRUE(has_run(command.words, {"--wdir", "/home/a b"}));
  EXPECT_TRUE(has_run(command.words, {"-x", kAgentVariable}));
  EXPECT_TRUE(has_run(command.words, {"--mca", "plm_rsh_args", "-p 2222"}));
  EXPECT_TRUE(
      has_run(command.words, {"--mca", "btl", "tcp,self", "env", "A=1", "/opt/tessera", "agent"}));
}

/// A folder with programs that can be found, and nothing else in PATH.
class OnlyPrograms {
 public:
  explicit OnlyPrograms(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const std::string file = (folder_.path() / name).string();
      files::write_atomic(file, std::string("#!/bin/sh\n"));
      chmod(file.c_str(), 0700);
    }
    setenv("PATH", folder_.path().c_str(), 1);
  }
  ~OnlyPrograms() { setenv("PATH", before_.c_str(), 1); }
  OnlyPrograms(const OnlyPrograms&) = delete;
  OnlyPrograms& operator=(const OnlyPrograms&) = delete;

 private:
  files::TempDir folder_;
  std::string before_ = std::getenv("PATH");
};

struct HydraRow {
  std::string launcher;
  std::vector<std::string> installed;
  std::string started;
};
class OfHydra : public testing::TestWithParam<HydraRow> {};

TEST_P(OfHydra, IsTheWholeCommand) {
  const HydraRow& row = GetParam();
  const OnlyPrograms programs(row.installed);
  const std::optional<ClusterLauncher> launcher = cluster_launcher_of(row.launcher);
  ASSERT_TRUE(launcher);
  ClusterStart start = two_hosts();
  start.ssh_port = 2222;
  start.extra = {"-genv", "I_MPI_DEBUG", "5"};

  const ClusterCommand command = cluster_command(*launcher, start);

  EXPECT_THAT(command.words,
              ElementsAre(row.started,
                          "-n",
                          "2",
                          "-ppn",
                          "1",
                          "-hosts",
                          "node-1,node-0",
                          "-prepend-rank",
                          "-wdir",
                          "/home/a b",
                          "-genv",
                          "I_MPI_DEBUG",
                          "5",
                          "env",
                          "A=1",
                          "/opt/tessera",
                          "agent"));
  EXPECT_THAT(command.variables, ElementsAre(Pair("HYDRA_LAUNCHER_EXTRA_ARGS", "-p 2222")));
}

// Intel MPI and MVAPICH have the options and the labels of MPICH's mpiexec. Debian calls MPICH's
// mpiexec.mpich, because mpiexec may be Open MPI's.
INSTANTIATE_TEST_SUITE_P(
    ClusterCommand,
    OfHydra,
    testing::Values(HydraRow{"mpich", {"mpiexec", "mpiexec.mpich"}, "mpiexec.mpich"},
                    HydraRow{"mpich", {"mpiexec"}, "mpiexec"},
                    HydraRow{"impi", {"mpiexec", "mpiexec.hydra"}, "mpiexec.hydra"},
                    HydraRow{"impi", {}, "mpiexec"},
                    HydraRow{"mvapich", {"mpiexec", "mpiexec.hydra"}, "mpiexec.hydra"},
                    HydraRow{"mvapich", {"mpiexec"}, "mpiexec"}),
    [](const auto& info) {
      return info.param.launcher + "_" + std::to_string(info.param.installed.size());
    });

TEST(ClusterLauncherNames, AreThoseOfLaunchersThatStartOneTaskOnEachHost) {
  EXPECT_EQ(cluster_launcher_of("openmpi"), ClusterLauncher::OpenMpi);
  EXPECT_EQ(cluster_launcher_of("slurm"), ClusterLauncher::Slurm);
  for (const char* other : {"ssh", "pdsh", "none", "jsrun"})
    EXPECT_EQ(cluster_launcher_of(other), std::nullopt) << other;
}

TEST(ClusterCommand, OfSlurm) {
  setenv("SLURM_JOB_ID", "7", 1);
  const ClusterCommand step = cluster_command(ClusterLauncher::Slurm, two_hosts());
  unsetenv("SLURM_JOB_ID");
  const ClusterCommand alone = cluster_command(ClusterLauncher::Slurm, two_hosts());

  EXPECT_THAT(step.words,
              IsSupersetOf({"srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=8", "--overlap"}));
  EXPECT_THAT(step.variables, ElementsAre(Pair("SLURM_HOSTFILE", "/tmp/hosts")));
  EXPECT_THAT(alone.words, testing::Not(Contains("--overlap")));
  ClusterStart with_port = two_hosts();
  with_port.ssh_port = 22;
  EXPECT_THROW(cluster_command(ClusterLauncher::Slurm, with_port), Error);
}

TEST(SplitLabel, KnowsTheLabelsOfEachLauncher) {
  const auto split = [](ClusterLauncher launcher, std::string_view line) {
    const std::optional<LabelledLine> found = split_label(launcher, line);
    return found ? std::to_string(found->task) + "|" + std::string(found->text) : "none";
  };

  EXPECT_EQ(split(ClusterLauncher::OpenMpi, "[1,12]<stdout>:step 3: [x]"), "12|step 3: [x]");
  EXPECT_EQ(split(ClusterLauncher::OpenMpi, "[1,0]<stderr>:"), "0|");
  EXPECT_EQ(split(ClusterLauncher::OpenMpi, "[node-0:123] [1,0]<stdout>:x"), "none");
  EXPECT_EQ(split(ClusterLauncher::OpenMpi, "[1,2] x"), "none");
  EXPECT_EQ(split(ClusterLauncher::Hydra, "[3] a b"), "3|a b");
  EXPECT_EQ(split(ClusterLauncher::Hydra, "[proxy:0:0@vm] error"), "none");
  EXPECT_EQ(split(ClusterLauncher::Slurm, " 3: a: b"), "3|a: b");
  EXPECT_EQ(split(ClusterLauncher::Slurm, "srun: error: x"), "none");
  for (const ClusterLauncher launcher :
       {ClusterLauncher::OpenMpi, ClusterLauncher::Hydra, ClusterLauncher::Slurm})
    EXPECT_EQ(split(launcher, ""), "none");
}

class SlurmAllocation : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_JOB_NODELIST", "n[1-2],m", 1);
    setenv("SLURM_TASKS_PER_NODE", "2(x2),1", 1);
  }
  void TearDown() override {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"})
      unsetenv(name);
  }
};

TEST_F(SlurmAllocation, HasASlotForEachTask) {
  EXPECT_THAT(slurm_allocation(std::nullopt),
              ElementsAre(HostSlots{"n1", {0, 1}}, HostSlots{"n2", {0, 1}}, HostSlots{"m", {0}}));
  EXPECT_EQ(num_slots(slurm_allocation(4)), 12);
}

TEST_F(SlurmAllocation, IsEmptyOutsideOfOneAndRefusesContradictions) {
  setenv("SLURM_TASKS_PER_NODE", "2", 1);
  EXPECT_THROW(slurm_allocation(std::nullopt), Error);
  EXPECT_THROW(slurm_allocation(0), Error);
  unsetenv("SLURM_JOB_ID");
  EXPECT_THAT(slurm_allocation(std::nullopt), IsEmpty());
}

/// A coordinator that keeps the job of one task.
class FanAgents : public testing::Test {
 protected:
  void SetUp() override {
    job_.part.host = 1;
    job_.part.hosts = 2;
    job_.part.first_rank = 2;
    job_.part.local_ranks = 2;
    job_.part.world_size = 4;
    job_.part.name = "node-1";
    job_.part.master = "127.0.0.1";
    job_.part.secret = random_secret();
    job_.words = {"c.json"};
    CoordinatorOptions options;
    options.address = "127.0.0.1";
    options.secret = job_.part.secret;
    options.world_size = 4;
    AgentJob sent = job_;
    sent.part.secret = {};  // agents know it already
    options.values[agent_job_key(1)] = agent_job_text(sent);
    coordinator_.emplace(options);
    coordinator_->start();
    // The variables are those that mpirun sets.
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
  }
  void TearDown() override {
    forget_launcher();
    unsetenv(kAgentVariable);
  }
  AgentJob job_;
  std::optional<Coordinator> coordinator_;
};

TEST_F(FanAgents, GetTheirPartFromTheHeadAndReportTheirEnd) {
  setenv(kAgentVariable,
         agent_variable(to_hex(job_.part.secret), "127.0.0.1", coordinator_->port()).c_str(),
         1);

  std::optional<ClusterAgent> agent = ClusterAgent::find();
  ASSERT_TRUE(agent);
  const AgentJob job = agent->job();

  EXPECT_EQ(job.part.host, 1);
  EXPECT_EQ(job.part.first_rank, 2);
  EXPECT_EQ(job.part.port, coordinator_->port()) << "known only after the job was written";
  EXPECT_EQ(job.words, job_.words);
  EXPECT_EQ(to_hex(job.part.secret), to_hex(job_.part.secret));
  EXPECT_EQ(std::getenv(kAgentVariable), nullptr);
  EXPECT_FALSE(detect_launcher()) << "the ranks of an agent are not those of the launcher";
  EXPECT_TRUE(agent->report_end(7));
  EXPECT_THAT(coordinator_->exit_codes(), UnorderedElementsAre(Pair(1, 7)));
}

TEST(AgentSecret, IsNotCarriedByTheLauncherIfAFileIsShared) {
  unsetenv(kSecretFile);
  const AgentSecret carried = agent_secret();
  EXPECT_EQ(carried.text, to_hex(carried.secret));

  const files::TempDir folder;
  const std::string path = (folder.path() / "secret").string();
  files::write_atomic(path, std::string(40, 'k'));
  chmod(path.c_str(), 0600);
  setenv(kSecretFile, path.c_str(), 1);
  const AgentSecret one = agent_secret(), two = agent_secret();

  EXPECT_EQ(one.text.find(to_hex(one.secret)), std::string::npos);
  EXPECT_NE(to_hex(one.secret), to_hex(two.secret)) << "each job has its own";
  EXPECT_EQ(to_hex(shared_secret(one.text)), to_hex(one.secret)) << "agents find it again";
  setenv(kAgentVariable, agent_variable(one.text, "127.0.0.1", 1).c_str(), 1);
  unsetenv(kSecretFile);
  EXPECT_THROW(ClusterAgent::find(), Error) << "an agent without the file";
  unsetenv(kAgentVariable);
}

TEST_F(FanAgents, RefuseAVariableThatSaysNothing) {
  EXPECT_FALSE(ClusterAgent::find());
  setenv(kAgentVariable, "12 34", 1);
  EXPECT_THROW(ClusterAgent::find(), Error);
  setenv(kAgentVariable,
         agent_variable(to_hex(job_.part.secret), "127.0.0.1", coordinator_->port()).c_str(),
         1);
  forget_launcher();
  EXPECT_THROW(ClusterAgent::find(), Error);
}

TEST_F(FanAgents, AreRefusedWithAnotherSecret) {
  setenv(kAgentVariable,
         agent_variable(to_hex(random_secret()), "127.0.0.1", coordinator_->port()).c_str(),
         1);
  std::optional<ClusterAgent> agent = ClusterAgent::find();
  ASSERT_TRUE(agent);
  EXPECT_FALSE(agent->report_end(0));
  EXPECT_THAT(coordinator_->exit_codes(), IsEmpty());
}

}  // namespace
}  // namespace tessera::hosts
