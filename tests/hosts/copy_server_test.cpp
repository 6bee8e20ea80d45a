// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Files in the memory of another process, over loopback.
#include "tessera/hosts/copy_server.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/copy_client.h"

namespace tessera::hosts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CopyServers : public testing::Test {
 protected:
  CopyClient client(double timeout_s = 5.0) {
    return {{"node-7", "127.0.0.1", server_.port()}, secret_, timeout_s};
  }
  static CopyFile file(const CopySet& set, const std::string& name, std::size_t bytes) {
    return {.set = set, .keep = {}, .num_ranks = 2, .rank = 0, .name = name, .bytes = bytes};
  }
  static void put(CopyClient& client, const CopyFile& file, const std::string& text) {
    client.begin(file);
    client.append(std::as_bytes(std::span(text)));
    client.finish();
  }
  std::vector<CopySet> sets() {
    std::vector<CopySet> out;
    for (const CopyListing& one : server_.list())
      out.push_back(one.set);
    return out;
  }

  const Secret secret_ = random_secret();
  CopyServer server_{"127.0.0.1", secret_};
};

TEST_F(CopyServers, GiveBackWhatTheyWereGiven) {
  const std::string text(std::size_t{3} << 20, 'x');
  CopyClient writer = client(), reader = client();

  put(writer, file({0, 5}, "a", text.size()), text);
  put(writer, file({0, 5}, "b", 4), "abcd");

  EXPECT_EQ(reader.read_rest({0, 5}, "a"), text);
  EXPECT_EQ(reader.read_rest({0, 5}, "b", 1), "bcd");
  std::string part(2, ' ');
  reader.read({0, 5}, "b", 2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "cd");
  EXPECT_EQ(server_.bytes(), text.size() + 4);
  const std::vector<CopyListing> listed = reader.list();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].set, (CopySet{0, 5}));
  EXPECT_EQ(listed[0].num_ranks, 2);
  EXPECT_THAT(listed[0].names, ElementsAre("a", "b"));
}

TEST_F(CopyServers, KeepTheLastCompleteSetUntilTheNextIsComplete) {
  CopyClient writer = client();
  put(writer, file({0, 5}, "a", 1), "5");
  CopyFile next = file({0, 10}, "a", 2);
  next.keep = {0, 5};
  put(writer, next, "10");
  EXPECT_THAT(sets(), ElementsAre(CopySet{0, 5}, CopySet{0, 10}));

  CopyFile third = file({0, 15}, "a", 2);
  third.keep = {0, 10};
  put(writer, third, "15");

  EXPECT_THAT(sets(), ElementsAre(CopySet{0, 10}, CopySet{0, 15}));
  EXPECT_EQ(server_.bytes(), 4U);
}

TEST_F(CopyServers, ForgetAFileThatDidNotArriveCompletely) {
  {
    CopyClient writer = client();
    writer.begin(file({0, 5}, "a", 100));
    writer.append(std::as_bytes(std::span("half", 4)));
  }
  CopyClient writer = client();
  put(writer, file({0, 5}, "b", 1), "b");
  for (const double until = now_s() + 5; server_.bytes() > 1 && now_s() < until;) {
  }

  EXPECT_EQ(server_.bytes(), 1U);
  EXPECT_THAT(server_.list().at(0).names, ElementsAre("b"));
  EXPECT_THROW(client().read_rest({0, 5}, "a"), Error);
}

TEST_F(CopyServers, RefuseRanksOfAnEarlierGeneration) {
  CopyClient now = client(), before = client();
  put(now, file({1, 5}, "a", 1), "a");

  EXPECT_THROW(put(before, file({0, 50}, "a", 1), "a"), Error);

  EXPECT_THAT(sets(), ElementsAre(CopySet{1, 5}));
}

TEST_F(CopyServers, RefuseWhoDoesNotKnowTheSecret) {
  try {
    CopyClient({"node-7", "127.0.0.1", server_.port()}, random_secret(), 0.1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Comm);
    EXPECT_THAT(error.what(), HasSubstr("copy server of host node-7"));
  }
  EXPECT_THAT(sets(), IsEmpty());
}

TEST_F(CopyServers, ReadTheRequestThatStartsThem) {
  const std::string request = copy_server_request(secret_, "127.0.0.1");

  EXPECT_THAT(request, HasSubstr(to_hex(secret_)));
  EXPECT_TRUE(request.ends_with("\nend\n"));
}

TEST(FoundCopies, AreTheNewestSetOfWhichEveryRankIsThere) {
  const CopySet old{0, 90}, complete{1, 20}, newest{1, 30};
  const std::vector<CopyListing> listings = {{old, 2, {}, {0, 1}},
                                             {complete, 3, {}, {0}},
                                             {newest, 3, {}, {0}},
                                             {complete, 3, {}, {2, 1}}};

  const FoundCopies found = find_copies(listings);

  EXPECT_EQ(found.complete, complete);
  EXPECT_EQ(found.newest, newest);
  EXPECT_EQ(found.missing, 2);
}

TEST(FoundCopies, AreNoneWhereRanksAreMissing) {
  const FoundCopies found = find_copies({{{0, 20}, 4, {}, {0, 3}}, {{0, 20}, 4, {}, {3}}});

  EXPECT_FALSE(found.complete.exists());
  EXPECT_EQ(found.newest, (CopySet{0, 20}));
  EXPECT_EQ(found.missing, 2);
  EXPECT_FALSE(find_copies({}).newest.exists());
}

}  // namespace
}  // namespace tessera::hosts
