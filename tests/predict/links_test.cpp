// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/links.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::predict {
namespace {

DescribedMachine machine() {
  DescribedMachine out;
  out.name = "toy";
  out.rates.in_host = {.latency_s = 1e-6, .bytes_per_s = 200e9};
  out.rates.between_hosts = {.latency_s = 1e-5, .bytes_per_s = 20e9};
  out.rates.host_ranks = 8;
  return out;
}

constexpr double kBytes = 1e9;

TEST(Transfer, InAHostTakesTheClosedFormsOfRings) {
  const comm::GroupPlace place{1, 8};
  const auto seconds = [&](comm::Kind kind) {
    return transfer(kind, kBytes, DType::F32, place, machine()).seconds;
  };
  const double part = 7.0 / 8 * kBytes / 200e9;
  EXPECT_DOUBLE_EQ(seconds(comm::Kind::AllGather), 7e-6 + part);
  EXPECT_DOUBLE_EQ(seconds(comm::Kind::ReduceScatter), 7e-6 + part);
  EXPECT_DOUBLE_EQ(seconds(comm::Kind::AllReduce), 2 * (7e-6 + part));
  EXPECT_DOUBLE_EQ(seconds(comm::Kind::Broadcast), 7e-6 + kBytes / 200e9);
}

TEST(Transfer, BetweenHostsUsesTheLinksOfAllMembersButIsNotFasterThanAHost) {
  const auto seconds = [&](int locals) {
    return transfer(comm::Kind::AllGather, kBytes, DType::F32, {4, locals}, machine()).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(1), 3e-5 + 0.75 * kBytes / 20e9);
  EXPECT_DOUBLE_EQ(seconds(8), 7e-6 + 3e-5 + 31.0 / 32 * kBytes / 160e9);
  DescribedMachine slow = machine();
  slow.rates.in_host.bytes_per_s = 50e9;
  EXPECT_DOUBLE_EQ(transfer(comm::Kind::AllGather, kBytes, DType::F32, {4, 8}, slow).seconds,
                   7e-6 + 3e-5 + 31.0 / 32 * kBytes / 50e9);
}

TEST(Transfer, OfOwnTransportsIsTheCostOfTheirCollectives) {
  DescribedMachine own = machine();
  own.collectives = Collectives::Own;
  const comm::GroupPlace place{2, 4};
  EXPECT_DOUBLE_EQ(
      transfer(comm::Kind::AllReduce, kBytes, DType::F32, place, own).seconds,
      comm::seconds(comm::sent(comm::Kind::AllReduce, kBytes, DType::F32, place), own.rates));
}

TEST(Transfer, NamesTheMissingLink) {
  DescribedMachine alone = machine();
  alone.rates.between_hosts = {};
  EXPECT_THROW((void)transfer(comm::Kind::AllReduce, 1, DType::F32, {2, 1}, alone), Error);
  EXPECT_EQ(transfer(comm::Kind::AllReduce, 1, DType::F32, {1, 1}, alone).seconds, 0);
}

TEST(PlaceOf, RanksThatAreApartHaveFewerMembersOnAHost) {
  EXPECT_EQ(place_of(32, 1, 8).locals, 8);
  EXPECT_EQ(place_of(32, 4, 8).locals, 2);
  EXPECT_EQ(place_of(32, 8, 8).locals, 1);
  EXPECT_EQ(place_of(32, 8, 8).hosts, 32);
  EXPECT_EQ(place_of(4, 1, 8).hosts, 1);
  EXPECT_EQ(place_of(32, 8, 0).hosts, 1) << "all are on one host";
}

}  // namespace
}  // namespace tessera::predict
