// SPDX-License-Identifier: Apache-2.0
// Registered transports and links: which one a world gets, and what is said if there is none.
#include "tessera/comm/registry.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/solo.h"
#include "tessera/launch/launch.h"

namespace tessera::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Two transports for memory of a plugin's device: the better one refuses jobs of more than a rank.
const Transport* host_of_device = nullptr;
MadeTransport make_device(const WorldNeeds&,
                          ControlPage* control,
                          const std::shared_ptr<Transport>& host) {
  host_of_device = host.get();
  return {make_solo_transport(control), {}};
}
std::string only_alone(const WorldNeeds& needs) {
  return needs.mesh.size() == 1 ? "" : "it serves a single rank";
}
std::string no_cable(const WorldNeeds& needs) {
  return needs.mesh.size() <= 2 ? "" : "a cable is missing";
}
TESSERA_TRANSPORT(
    "test_alone",
    {.moves = DeviceKind::Plugin, .rank_of_choice = 1, .why_not = only_alone, .make = make_device});
TESSERA_TRANSPORT(
    "test_pair",
    {.moves = DeviceKind::Plugin, .rank_of_choice = 2, .why_not = no_cable, .make = make_device});

TESSERA_LINK("test_slow", {.rank_of_choice = 2});
TESSERA_LINK("test_quick", {.rank_of_choice = 1, .check = [] {
                              throw Error(Error::Kind::Environment, "the network is off", "");
                            }});

/// Needs of a rank without shared memory on a mesh of `ranks`.
struct Needs {
  explicit Needs(int ranks, Device device = {DeviceKind::Plugin, 0})
      : mesh(mesh::Mesh::data_parallel(ranks)),
        needs{.info = info, .mesh = mesh, .device = device} {
    info.local_rank = 0;
  }
  launch::RankInfo info;
  mesh::Mesh mesh;
  WorldNeeds needs;
};

TEST(CommRegistry, TakesTheFirstTransportOfChoiceThatCanBeUsed) {
  EXPECT_EQ(transport_name(Needs(1).needs, DeviceKind::Plugin), "test_alone");
  EXPECT_EQ(transport_name(Needs(2).needs, DeviceKind::Plugin), "test_pair");
  EXPECT_EQ(transport_name(Needs(1).needs, DeviceKind::Cpu), "solo");
}

TEST(CommRegistry, SaysOfEveryTransportWhyItCannotBeUsed) {
  try {
    (void)transport_name(Needs(4).needs, DeviceKind::Plugin);
    FAIL() << "a transport was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("4 ranks"),
                      HasSubstr("test_alone: it serves a single rank"),
                      HasSubstr("test_pair: a cable is missing")));
  }
  EXPECT_THROW((void)transport_name(Needs(1).needs, DeviceKind::Cuda), Error);
}

TEST(CommRegistry, ChoosesSharedMemoryForRanksOfOneHost) {
  Needs several(2, {});
  several.info.arenas = {7, 8};
  EXPECT_EQ(transport_name(several.needs, DeviceKind::Cpu), "shm");
}

TEST(CommRegistry, GivesAWorldWithADeviceTwoTransports) {
  const std::shared_ptr<ControlPage> page = private_control_page(1);
  const Needs on_host(1, {}), on_device(1);

  const auto plain = make_world(on_host.needs, page.get());
  EXPECT_EQ(&plain->transport(), &plain->host_transport());

  const auto world = make_world(on_device.needs, page.get());
  EXPECT_NE(&world->transport(), &world->host_transport());
  EXPECT_EQ(host_of_device, &world->host_transport()) << "a device transport may use the host's";
}

TEST(CommRegistry, NamesLinksAndChecksThem) {
  EXPECT_THAT(link_choices(), ElementsAre("auto", "test_quick", "test_slow"));
  EXPECT_EQ(link_name("auto"), "test_quick");
  EXPECT_EQ(link_name("test_slow"), "test_slow");
  EXPECT_NO_THROW(check_link("test_slow"));
  EXPECT_THROW(check_link("auto"), Error);
  try {
    (void)link_name("test_slwo");
    FAIL() << "a link was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.fix(), HasSubstr("test_slow"));
  }
}

}  // namespace
}  // namespace tessera::comm
