// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/detect_launcher.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"

namespace tessera::hosts {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

/// Tests detection with exactly the given environment variables.
class DetectLauncher : public testing::Test {
 protected:
  static std::optional<launch::Launcher> detect(const Variables& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "LOCAL_SIZE",
                             "GROUP_RANK",
                             "GROUP_WORLD_SIZE",
                             "CROSS_RANK",
                             "CROSS_SIZE",
                             "KUBERNETES_SERVICE_HOST",
                             "SM_HOSTS",
                             "SM_CURRENT_HOST",
                             "SLURM_NODEID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_TASKS_PER_NODE",
                             "JSM_NAMESPACE_RANK",
                             "JSM_NAMESPACE_SIZE",
                             "JSM_NAMESPACE_LOCAL_RANK",
                             "JSM_NAMESPACE_LOCAL_SIZE",
                             "LSB_JOBID",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "OMPI_MCA_ess_base_jobid",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_NODES",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_LOCAL_RANK",
                             "MV2_COMM_WORLD_LOCAL_SIZE"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables)
      setenv(name.c_str(), value.c_str(), 1);
    return detect_launcher();
  }
  static Error refusal(const Variables& variables) {
    try {
      detect(variables);
    } catch (const Error& error) {
      return error;
    }
    return {Error::Kind::Bug, "accepted"};
  }
};

const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"}};
const Variables kPort = {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
const Variables kDeepSpeed = {{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_SIZE", "2"},
                              {"CROSS_SIZE", "1"},
                              {"MASTER_ADDR", "localhost"},
                              {"MASTER_PORT", "29500"}};
const Variables kMpiexec = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun = {{"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "2"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more)
    variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST_F(DetectLauncher, FindsNothingWithoutVariables) {
  EXPECT_FALSE(detect({}));
}

TEST_F(DetectLauncher, KnowsTorchrun) {
  const auto found = detect(kTorchrun);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "torchrun");
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
}

TEST_F(DetectLauncher, KnowsSlurmSteps) {
  const auto found = detect(kSrun);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "srun");
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->local_world_size, 4);
}

TEST_F(DetectLauncher, BelievesTheSlurmStepAndNotItsAllocation) {
  const auto found = detect(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "3"}}));

  ASSERT_TRUE(found);
  EXPECT_EQ(found->world_size, 3);
}

TEST_F(DetectLauncher, IgnoresTheShellOfAnInteractiveAllocation) {
  for (const char* step : {"4294967290", "4294967291", "4294967280"}) {
    EXPECT_FALSE(detect(with(kSrun, {{"SLURM_STEP_ID", step}}))) << step;
    EXPECT_FALSE(detect(with(
        kSrun, {{"SLURM_STEP_ID", step}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})));
  }
  EXPECT_TRUE(detect(with(kSrun, {{"SLURM_STEP_ID", "4294967279"}})));
}

TEST_F(DetectLauncher, KnowsOpenMpi) {
  const auto found = detect(kMpirun);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "mpirun");
  EXPECT_EQ(found->world_size, 3);
}

TEST_F(DetectLauncher, KnowsJsrunOfLsf) {
  const auto found = detect({{"JSM_NAMESPACE_RANK", "1"},
                             {"JSM_NAMESPACE_SIZE", "2"},
                             {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                             {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                             {"LSB_JOBID", "7"}});

  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "jsrun");
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_FALSE(found->several_hosts());
}

TEST_F(DetectLauncher, PrefersTorchrunThenOpenMpiThenSlurm) {
  EXPECT_EQ(detect(with(with(kSrun, kMpirun), kTorchrun))->name, "torchrun");
  EXPECT_EQ(detect(with(kSrun, kMpirun))->name, "mpirun");
}

TEST_F(DetectLauncher, IgnoresAnAllocationWithoutAStep) {
  EXPECT_FALSE(detect(without(kSrun, "SLURM_STEP_ID")));
}

TEST_F(DetectLauncher, RefusesARankAndASizeWithoutTheLocalOnes) {
  const Error one = refusal(without(kTorchrun, "LOCAL_RANK"));
  const Error both = refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  const Error pmi = refusal({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  const Error jsrun = refusal({{"JSM_NAMESPACE_RANK", "1"},
                               {"JSM_NAMESPACE_SIZE", "2"},
                               {"JSM_NAMESPACE_LOCAL_RANK", "1"}});

  EXPECT_EQ(one.kind(), Error::Kind::Config);
  EXPECT_THAT(one.what(), HasSubstr("RANK=1 and WORLD_SIZE=2, but not LOCAL_RANK"));
  EXPECT_THAT(both.what(), HasSubstr("but not LOCAL_RANK and LOCAL_WORLD_SIZE"));
  EXPECT_THAT(both.fix(), HasSubstr("unset RANK WORLD_SIZE"));
  EXPECT_EQ(pmi.kind(), Error::Kind::Config);
  EXPECT_THAT(pmi.what(),
              HasSubstr("PMI_RANK=1 and PMI_SIZE=2, but not MPI_LOCALRANKID and MPI_LOCALNRANKS"));
  EXPECT_EQ(jsrun.kind(), Error::Kind::Config);
  EXPECT_THAT(
      jsrun.what(),
      HasSubstr("JSM_NAMESPACE_RANK=1 and JSM_NAMESPACE_SIZE=2, but not JSM_NAMESPACE_LOCAL_SIZE"));
  EXPECT_EQ(refusal(without(kMpirun, "OMPI_COMM_WORLD_LOCAL_SIZE")).kind(), Error::Kind::Config);
  EXPECT_EQ(refusal({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}).kind(),
            Error::Kind::Config);
}

TEST_F(DetectLauncher, IgnoresARankWithoutASizeAndARankAlone) {
  EXPECT_FALSE(detect({{"RANK", "0"}}));
  EXPECT_FALSE(detect({{"WORLD_SIZE", "2"}}));
  EXPECT_FALSE(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_EQ(detect(with(kSrun, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}))->name, "srun");
}

TEST_F(DetectLauncher, RefusesContradictionsWithBothValues) {
  const Error error = refusal(with(kTorchrun, {{"RANK", "5"}, {"LOCAL_RANK", "1"}}));

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.text(), HasSubstr("RANK=5"));
  EXPECT_THAT(error.text(), HasSubstr("WORLD_SIZE=2"));
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})).kind(), Error::Kind::Config);
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}})).kind(), Error::Kind::Config);
}

TEST_F(DetectLauncher, RefusesWhatIsNotANumber) {
  const Error error = refusal(with(kTorchrun, {{"RANK", "one"}}));

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.text(), HasSubstr("RANK=one"));
}

TEST_F(DetectLauncher, FindsSeveralHosts) {
  const Variables third = {{"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "7"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_TASKS_PER_NODE", "4,3"}};
  struct Expected {
    Variables variables;
    int first, local;
  };
  for (const Expected& expected :
       {Expected{
            with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"GROUP_WORLD_SIZE", "2"}}), 2, 2},
        Expected{with(kDeepSpeed, {{"WORLD_SIZE", "4"}, {"CROSS_SIZE", "2"}, {"CROSS_RANK", "0"}}),
                 0,
                 2},
        Expected{
            with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "6"}, {"OMPI_COMM_WORLD_RANK", "3"}}), 3, 3},
        Expected{with(kSrun, third), 4, 3},
        Expected{{{"JSM_NAMESPACE_RANK", "3"},
                  {"JSM_NAMESPACE_SIZE", "4"},
                  {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                  {"JSM_NAMESPACE_LOCAL_SIZE", "2"}},
                 2,
                 2},
        Expected{with(kMpiexec, {{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}}), 2, 2}}) {
    const auto found = detect(expected.variables);

    ASSERT_TRUE(found);
    EXPECT_TRUE(found->several_hosts()) << found->name;
    EXPECT_EQ(found->first_rank(), expected.first) << found->name;
    EXPECT_EQ(found->local_world_size, expected.local) << found->name;
  }
}

TEST_F(DetectLauncher, TakesTorchsVariablesAloneAsOneRankOnEachHost) {
  const Variables plain = with(kPort, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});

  const auto found = detect(plain);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_EQ(found->local_world_size, 1);
  EXPECT_EQ(detect(with(plain, {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}))->name, "Kubernetes");
  EXPECT_FALSE(detect(with(kPort, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})));
}

TEST_F(DetectLauncher, KnowsSageMaker) {
  const Variables hosts = {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}};

  const auto found = detect(hosts);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_THAT(refusal(with(hosts, {{"SM_CURRENT_HOST", "algo-3"}})).text(),
              HasSubstr("SM_CURRENT_HOST=algo-3"));
  EXPECT_FALSE(detect(with(hosts, {{"SM_HOSTS", R"(["algo-2"])"}})));
}

TEST_F(DetectLauncher, SaysWhichOtherLauncherIsIgnored) {
  EXPECT_THAT(detect(with(kSrun, kTorchrun))->ignored, testing::ElementsAre("srun"));
  EXPECT_TRUE(detect(kTorchrun)->ignored.empty());
}

TEST_F(DetectLauncher, RefusesNumbersOfHostsThatContradictTheRanks) {
  for (const Variables& variables :
       {with(kTorchrun, {{"GROUP_WORLD_SIZE", "2"}}),
        with(kTorchrun, {{"WORLD_SIZE", "4"}, {"GROUP_WORLD_SIZE", "1"}}),
        with(kTorchrun, {{"WORLD_SIZE", "4"}, {"GROUP_WORLD_SIZE", "2"}, {"GROUP_RANK", "2"}}),
        with(kSrun, {{"SLURM_LOCALID", "0"}}),
        with(kSrun, {{"SLURM_STEP_NUM_NODES", "2"}}),
        with(kSrun, {{"SLURM_NODEID", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}})}) {
    const Error error = refusal(variables);

    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.text(), HasSubstr("contradicts itself"));
  }
}

/// Tests what is detected from `variables` by a process whose launcher is the test process.
class DetectLauncherBelow : public DetectLauncher {
 protected:
  static bool finds_job(const Variables& variables, const std::string& job) {
    const pid_t child = fork();
    if (child == 0) _exit(detect(variables)->job == job ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0;
  }
};

TEST_F(DetectLauncherBelow, AnotherProcessIsInAnotherJobThoughTheyShareAPort) {
  for (const Variables& variables : {kDeepSpeed, kMpiexec, with(kMpiexec, kPort)}) {
    const std::string job = detect(variables)->job;

    EXPECT_FALSE(finds_job(variables, job)) << job;
    EXPECT_THAT(job, HasSubstr("parent=" + std::to_string(getppid())));
  }
  const Variables in_slurm = with(kDeepSpeed, {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_FALSE(finds_job(in_slurm, detect(in_slurm)->job)) << "two of them in one step";
}

TEST_F(DetectLauncherBelow, IdentifiersOfTheLauncherCountForItsDescendants) {
  for (const Variables& variables :
       {kTorchrun, kSrun, with(kMpirun, {{"PMIX_NAMESPACE", "prterun-1"}})}) {
    const std::string job = detect(variables)->job;

    EXPECT_TRUE(finds_job(variables, job)) << job;
  }
}

TEST_F(DetectLauncherBelow, ARankIsBoundIfItsLauncherHasMoreProcessors) {
  const std::vector<int> all = launch::affinity_cores();
  if (all.size() < 2) GTEST_SKIP() << "one processor";
  const int part = static_cast<int>(all.size() / 2);
  cpu_set_t half;
  CPU_ZERO(&half);
  for (int i = 0; i < part; ++i)
    CPU_SET(static_cast<unsigned>(all[static_cast<std::size_t>(i)]), &half);
  for (const Variables& variables : {kTorchrun, kSrun, kMpirun, kMpiexec}) {
    const pid_t child = fork();
    if (child == 0) {
      detect(variables);
      const bool free = !is_bound() && threads_per_rank(2) == launch::threads_per_rank(2);
      sched_setaffinity(0, sizeof(half), &half);
      _exit(free && is_bound() && threads_per_rank(2) == launch::usable_cores() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << variables.begin()->first;
  }
  detect({});
  EXPECT_FALSE(is_bound()) << "without a launcher";
}

TEST_F(DetectLauncher, DistinguishesJobs) {
  EXPECT_EQ(detect(kTorchrun)->job,
            detect(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}))->job);
  EXPECT_NE(detect(kTorchrun)->job, detect(with(kTorchrun, {{"MASTER_PORT", "29501"}}))->job);
  EXPECT_NE(detect(kSrun)->job, detect(with(kSrun, {{"SLURM_STEP_ID", "1"}}))->job);
  EXPECT_NE(detect(kTorchrun)->job,
            detect(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}}))->job);
}

}  // namespace
}  // namespace tessera::hosts
