// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/master_address.h"

#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::hosts {
namespace {

using testing::ElementsAre;

/// Tests with exactly the given environment variables.
class CoordinatorAddress : public testing::Test {
 protected:
  static void set(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"MASTER_ADDR",
                             "MASTER_PORT",
                             "AZ_BATCH_MASTER_NODE",
                             "AZ_BATCHAI_MPI_MASTER_NODE",
                             "SLURM_STEP_ID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "SLURM_NODELIST",
                             "SM_HOSTS",
                             "JSM_NAMESPACE_RANK",
                             "LSB_MCPU_HOSTS"})
      unsetenv(name);
    for (const auto& [name, value] : variables)
      setenv(name.c_str(), value.c_str(), 1);
  }
  void TearDown() override { set({}); }
};

TEST_F(CoordinatorAddress, FindsNothingWithoutVariables) {
  set({});

  EXPECT_FALSE(find_master_address());
}

TEST_F(CoordinatorAddress, PrefersFlagsToVariables) {
  set({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}});

  EXPECT_EQ(find_master_address()->address, "a");
  EXPECT_EQ(find_master_address()->port, 1234);
  EXPECT_EQ(find_master_address("b", 99)->address, "b");
  EXPECT_EQ(find_master_address("b", 99)->port, 99);
  EXPECT_EQ(find_master_address("b")->source, "--master_addr");
}

TEST_F(CoordinatorAddress, KnowsTheFirstHostOfSlurmSageMakerAzureAndLsf) {
  set({{"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "3"}, {"SLURM_STEP_NODELIST", "n[07-08]"}});
  EXPECT_EQ(find_master_address()->address, "n07");
  EXPECT_EQ(find_master_address()->port, 10000 + 3 * kMasterPorts);
  set({{"SM_HOSTS", R"(["algo-1","algo-2"])"}});
  EXPECT_EQ(find_master_address()->address, "algo-1");
  set({{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}});
  EXPECT_EQ(find_master_address()->address, "10.0.0.4");
  EXPECT_EQ(find_master_address()->port, kMasterPort);
  set({{"LSB_MCPU_HOSTS", "h1 4 h2 4"}});
  EXPECT_EQ(find_master_address()->address, "h1");
}

TEST_F(CoordinatorAddress, SkipsTheLaunchNodeOfJsrun) {
  set({{"JSM_NAMESPACE_RANK", "0"}, {"LSB_MCPU_HOSTS", "batch1 1  h1 42 h2 42"}});
  EXPECT_EQ(find_master_address()->address, "h1");
  for (const char* hosts : {"h1 4 h2 4", "h1 1 h2 1", "h1 1"}) {
    set({{"JSM_NAMESPACE_RANK", "0"}, {"LSB_MCPU_HOSTS", hosts}});
    EXPECT_EQ(find_master_address()->address, "h1") << hosts;
  }
  set({{"LSB_MCPU_HOSTS", "h1 1 h2 42"}});
  EXPECT_EQ(find_master_address()->address, "h1");
}

TEST_F(CoordinatorAddress, IgnoresAnAllocationWithoutAStep) {
  set({{"SLURM_JOB_ID", "3"}, {"SLURM_JOB_NODELIST", "n[07-08]"}});

  EXPECT_FALSE(find_master_address());
}

TEST_F(CoordinatorAddress, RefusesWhatIsNeitherAPortNorAnAddress) {
  for (const char* port : {"x", "0", "65530", "-1", "80 "}) {
    set({{"MASTER_ADDR", "a"}, {"MASTER_PORT", port}});
    EXPECT_THROW(find_master_address(), Error) << port;
  }
  set({{"MASTER_ADDR", "a b"}});
  EXPECT_THROW(find_master_address(), Error);
}

TEST_F(CoordinatorAddress, ReadsTheHostsOfSageMaker) {
  EXPECT_THAT(sagemaker_hosts(R"( ["algo-1", "algo-2"] )"), ElementsAre("algo-1", "algo-2"));
  for (const char* text : {"", "[", "algo-1", "[algo-1]", R"(["algo-1",])"})
    EXPECT_THROW(sagemaker_hosts(text), Error) << text;
}

}  // namespace
}  // namespace tessera::hosts
