// SPDX-License-Identifier: Apache-2.0
// Checks that hosts make of each other before a job begins.
#include "tessera/hosts/host_check.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::hosts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ProbeListener, IsReachedByAnyNumberOfHosts) {
  const ProbeListener listener("127.0.0.1");
  ASSERT_GT(listener.port(), 0) << listener.why();

  EXPECT_THAT(
      unreachable(std::vector<HostAddress>(64, {"node-1", "127.0.0.1", listener.port()}), 5.0),
      IsEmpty());
}

TEST(ProbeListener, SaysWhyItIsClosed) {
  const ProbeListener foreign("192.0.2.1");  // no address of this host
  EXPECT_EQ(foreign.port(), 0);
  EXPECT_THAT(foreign.why(), HasSubstr("assign"));

  int port = 0;
  {
    const ProbeListener gone("127.0.0.1");
    port = gone.port();
  }
  EXPECT_THAT(unreachable({{"node-1", "127.0.0.1", port}, {"node-2", "no address", 1}}, 5.0),
              ElementsAre(HasSubstr("node-1 at 127.0.0.1: Connection refused"),
                          HasSubstr("node-2 at no address: ")));
}

TEST(HostsToReach, CoversEveryPairOfFewAndConnectsMany) {
  EXPECT_THAT(hosts_to_reach(1, 4), ElementsAre(0, 2, 3));
  EXPECT_THAT(hosts_to_reach(0, 1), IsEmpty());
  constexpr int kMany = 4096;
  EXPECT_EQ(hosts_to_reach(0, kMany).size(), 12U);
  EXPECT_THAT(hosts_to_reach(kMany - 1, kMany), testing::Contains(0));
}

TEST(ListeningAddress, FollowsTheInterfaceThatIsNamed) {
  unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(listening_address("10.0.0.2"), "10.0.0.2");
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_EQ(listening_address("10.0.0.2"), "127.0.0.1");
  setenv("GLOO_SOCKET_IFNAME", "no-such-interface", 1);
  EXPECT_THROW(listening_address("10.0.0.2"), Error);
  unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(FolderMark, IsSeenInTheSameFolderOnlyAndRemoved) {
  const files::TempDir one, other;
  std::string name;
  {
    const FolderMark mark(one.path().string());
    name = mark.mark();
    ASSERT_FALSE(name.empty());
    EXPECT_TRUE(sees_mark(one.path().string(), name, 0.0));
    EXPECT_FALSE(sees_mark(other.path().string(), name, 0.0));
    EXPECT_FALSE(sees_mark(other.path().string(), one.path().string() + "/" + name, 0.0));
  }
  EXPECT_FALSE(sees_mark(one.path().string(), name, 0.0));
  EXPECT_EQ(FolderMark("/no/such/folder").mark(), "");
}

TEST(OwnFolder, IsRefusedOnANetworkFileSystemAndTakenElsewhere) {
  EXPECT_EQ(network_file_system(0x6969), "NFS");
  EXPECT_EQ(network_file_system(0xFE534D42), "SMB");
  EXPECT_EQ(network_file_system(0xEF53), "") << "ext4";
  EXPECT_EQ(network_file_system(0x01021994), "") << "tmpfs";

  EXPECT_NO_THROW(check_own_folder(
      {.path = "/tmp/no/such/folder", .must_be_shared = false, .must_be_own = true}));
}

}  // namespace
}  // namespace tessera::hosts
