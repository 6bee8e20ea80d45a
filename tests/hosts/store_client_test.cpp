// SPDX-License-Identifier: Apache-2.0
// Values that ranks exchange through the coordinator of their job.
#include "tessera/hosts/store_client.h"

#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/coordinator.h"

namespace tessera::hosts {
namespace {

using testing::HasSubstr;

class Values : public testing::Test {
 protected:
  void SetUp() override {
    part_.master = "127.0.0.1";
    part_.secret = random_secret();
    CoordinatorOptions options;
    options.address = part_.master;
    options.secret = part_.secret;
    options.world_size = 2;
    coordinator_.emplace(options);
    coordinator_->start();
    part_.port = coordinator_->port();
  }
  HostPart part_;
  std::optional<Coordinator> coordinator_;
};

TEST_F(Values, ReachTheRankThatWaitsForThem) {
  StoreClient one(part_, 10.0), two(part_, 10.0);
  std::string seen;
  std::thread waits([&] { seen = two.get("key"); });

  one.set("key", std::string("a\0b", 3));
  waits.join();

  EXPECT_EQ(seen, std::string("a\0b", 3));
  EXPECT_EQ(one.get("key"), seen);
  EXPECT_EQ(one.own_address(), "127.0.0.1");
}

TEST_F(Values, ThatNobodySetsAreReported) {
  StoreClient one(part_, 10.0);
  const double begin = now_s();
  try {
    one.get("nothing", 0.1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Comm);
    EXPECT_THAT(error.what(), HasSubstr("did not connect in time"));
  }
  EXPECT_LT(now_s() - begin, 5.0);
}

TEST_F(Values, AreKeptFromProcessesWithoutTheSecret) {
  HostPart stranger = part_;
  stranger.secret = random_secret();

  EXPECT_THROW(StoreClient(stranger, 0.2), Error);
}

}  // namespace
}  // namespace tessera::hosts
