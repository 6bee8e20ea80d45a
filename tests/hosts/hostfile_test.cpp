// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/hostfile.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::hosts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "accepted";
}
std::string refused_file(const std::string& text) {
  return refusal([&] { parse_hostfile(text, "hosts"); });
}

TEST(Hostfile, ReadsTheLinesOfDeepSpeed) {
  const HostPool pool = parse_hostfile(
      "# two of them\n\nworker-0 slots=4\n  worker-1\tslots=2   # the small one\r\n", "hosts");

  EXPECT_THAT(pool,
              ElementsAre(HostSlots{"worker-0", {0, 1, 2, 3}}, HostSlots{"worker-1", {0, 1}}));
  EXPECT_EQ(num_slots(pool), 6);
}

TEST(Hostfile, ReadsTheLinesOfMpi) {
  EXPECT_THAT(parse_hostfile("a slots=2 max_slots=8\nb slots=1 max-slots=1\n", "hosts"),
              ElementsAre(HostSlots{"a", {0, 1}}, HostSlots{"b", {0}}));
  EXPECT_THAT(parse_hostfile("a:2\nb\n[fe80::1]:2\nfe80::2", "hosts"),
              ElementsAre(HostSlots{"a", {0, 1}},
                          HostSlots{"b", {0}, false},
                          HostSlots{"[fe80::1]", {0, 1}},
                          HostSlots{"fe80::2", {0}, false}));
  EXPECT_THAT(parse_hostfile("a,b:2", "hosts"),
              ElementsAre(HostSlots{"a", {0}, false}, HostSlots{"b", {0, 1}}));
}

TEST(Hostfile, NamesTheFileAndTheLineOfAMistake) {
  EXPECT_THAT(refused_file("a slots=2\n\na slots=2\n"),
              HasSubstr("hosts:3: host a is named twice"));
  EXPECT_THAT(refused_file("a slots=two"), HasSubstr("hosts:1: a has \"two\" slots"));
  EXPECT_THAT(refused_file("a slots=0"), HasSubstr("expected a number from 1 to 1024"));
  EXPECT_THAT(refused_file("a slots=1025"), HasSubstr("\"1025\""));
  EXPECT_THAT(refused_file("a slots=-1"), HasSubstr("\"-1\""));
  EXPECT_THAT(refused_file("a slots=4 slots=4"), HasSubstr("unknown word \"slots=4\""));
  EXPECT_THAT(refused_file("a slots=4 max_slots=2"), HasSubstr("slots=4 above max_slots=2"));
  EXPECT_THAT(refused_file("# b\na 4\n"), HasSubstr("hosts:2: unknown word \"4\" after a"));
  EXPECT_THAT(refused_file("# only a comment\n"), HasSubstr("names no host"));
}

// The name becomes a word of the command line of ssh.
TEST(Hostfile, RefusesNamesThatAreOptionsOrCommands) {
  for (const char* name : {"-oProxyCommand=x", "a;b", "a$(b)", "a`b`", "a|b", "\"a\"", "a\\b"})
    EXPECT_THAT(refused_file(std::string(name) + " slots=1"), HasSubstr("hosts:1: ")) << name;
}

TEST(Hostfile, IsReadFromAFile) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "hosts").string();
  files::write_atomic(path, "a slots=1\nb slots=x\n");

  EXPECT_THAT(refusal([&] { read_hostfile(path); }), HasSubstr(path + ":2:"));
}

const HostPool kPool = {{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 1, 2, 3}}};

HostPool included(const std::string& filter) {
  return filter_hosts(kPool, {.include = filter});
}
HostPool excluded(const std::string& filter) {
  return filter_hosts(kPool, {.exclude = filter});
}

TEST(HostFilter, IncludesWholeHostsAndSlots) {
  EXPECT_THAT(included("worker-0@worker-1:0,2"),
              ElementsAre(HostSlots{"worker-0", {0, 1, 2, 3}}, HostSlots{"worker-1", {0, 2}}));
  EXPECT_THAT(included("worker-1"), ElementsAre(HostSlots{"worker-1", {0, 1, 2, 3}}));
  EXPECT_THAT(included("worker-1:3"), ElementsAre(HostSlots{"worker-1", {3}}));
}

TEST(HostFilter, AddsUpSeveralNodesOfAHostInTheOrderOfThePool) {
  EXPECT_THAT(included("worker-1:3@worker-0:1@worker-1:0,3"),
              ElementsAre(HostSlots{"worker-0", {1}}, HostSlots{"worker-1", {0, 3}}));
}

TEST(HostFilter, ExcludesAndDropsEmptyHosts) {
  EXPECT_THAT(excluded("worker-1:0"),
              ElementsAre(HostSlots{"worker-0", {0, 1, 2, 3}}, HostSlots{"worker-1", {1, 2, 3}}));
  EXPECT_THAT(excluded("worker-0"), ElementsAre(HostSlots{"worker-1", {0, 1, 2, 3}}));
  EXPECT_THAT(excluded("worker-0:0,1,2,3"), ElementsAre(HostSlots{"worker-1", {0, 1, 2, 3}}));
}

TEST(HostFilter, KeepsTheFirstHostsAndSlots) {
  EXPECT_THAT(filter_hosts(kPool, {.num_nodes = 1, .num_per_host = 2}),
              ElementsAre(HostSlots{"worker-0", {0, 1}}));
  EXPECT_EQ(filter_hosts(kPool, {}), kPool);
}

// A hostfile of Colossal-AI has names alone, and --nproc_per_node says how many ranks each has.
TEST(HostFilter, GivesHostsThatAreNotCountedTheirSlots) {
  const HostPool pool = parse_hostfile("a\nb\nc:2\n", "hosts");
  const HostPool names = parse_hostfile("a\nb\nc\n", "hosts");

  EXPECT_THAT(filter_hosts(pool, {.num_nodes = 2, .num_per_host = 2}),
              ElementsAre(HostSlots{"a", {0, 1}, false}, HostSlots{"b", {0, 1}, false}));
  EXPECT_THAT(filter_hosts(names, {.include = "c,a", .num_per_host = 2}),
              ElementsAre(HostSlots{"a", {0, 1}, false}, HostSlots{"c", {0, 1}, false}));
  EXPECT_THAT(filter_hosts(names, {.exclude = "a,b"}), ElementsAre(HostSlots{"c", {0}, false}));
  EXPECT_THAT(refusal([&] { filter_hosts(pool, {.num_per_host = 3}); }),
              HasSubstr("host c has 2 slots"));
  EXPECT_THAT(refusal([&] { filter_hosts(names, {.num_per_host = 0}); }),
              HasSubstr("--num_gpus 0"));
  EXPECT_THAT(refusal([&] { filter_hosts(pool, {.include = "a", .num_per_host = 2}); }),
              HasSubstr("--num_nodes or --num_gpus"));
}

TEST(HostFilter, RefusesWhatThePoolDoesNotHave) {
  EXPECT_THAT(refusal([] { included("worker-2"); }), HasSubstr("there is no host worker-2"));
  EXPECT_THAT(refusal([] { included("worker-0:9"); }), HasSubstr("host worker-0 has no slot 9"));
  EXPECT_THAT(refusal([] { excluded("worker-0:9"); }),
              HasSubstr("its slots are worker-0 (slots 0-3)"));
  EXPECT_THAT(refusal([] { filter_hosts(kPool, {.num_nodes = 3}); }),
              HasSubstr("there are 2 hosts"));
  EXPECT_THAT(refusal([] { filter_hosts(kPool, {.num_per_host = 5}); }), HasSubstr("has 4 slots"));
  EXPECT_THAT(refusal([] { filter_hosts(kPool, {.num_nodes = 0}); }), HasSubstr("choose 1 to 2"));
}

TEST(HostFilter, RefusesMalformedAndContradictingFilters) {
  for (const char* filter : {"@", "worker-0:", "worker-0:a", "worker-0:0,", ":0", "worker-0@"})
    EXPECT_THAT(refusal([&] { included(filter); }), HasSubstr("--include")) << filter;
  EXPECT_THAT(refusal([] { filter_hosts(kPool, {.include = "worker-0", .exclude = "worker-1"}); }),
              HasSubstr("exclude each other"));
  EXPECT_THAT(refusal([] { filter_hosts(kPool, {.include = "worker-0", .num_nodes = 1}); }),
              HasSubstr("--num_nodes or --num_gpus"));
  EXPECT_THAT(refusal([] { excluded("worker-0@worker-1"); }), HasSubstr("leaves no slot"));
}

TEST(Hosts, AreDescribedBriefly) {
  EXPECT_EQ(describe(HostPool{{"a", {0, 1, 2}}, {"b", {0, 2, 3}}, {"c", {5}}}),
            "a (slots 0-2), b (slots 0,2-3), c (slot 5)");
  EXPECT_THAT(describe(HostPool(11, HostSlots{"a", {0}})), HasSubstr(" and 3 more"));
}

TEST(Hosts, KnowTheNamesOfThisHost) {
  std::string own(256, '\0');
  ASSERT_EQ(gethostname(own.data(), own.size() - 1), 0);
  own.resize(own.find('\0'));

  for (const std::string& name : {std::string("localhost"), std::string("127.0.0.1"), own})
    EXPECT_TRUE(is_this_host(name)) << name;
  // A documentation address, which no interface has, and a name that no host has.
  EXPECT_FALSE(is_this_host("192.0.2.1"));
  EXPECT_FALSE(is_this_host(own + "x"));
}

TEST(Hostlist, ExpandsWhatSlurmWrites) {
  EXPECT_THAT(expand_hostlist("n[008-011,20],login-1"),
              ElementsAre("n008", "n009", "n010", "n011", "n20", "login-1"));
  EXPECT_THAT(expand_hostlist("r[1-2]c[0,3]x"), ElementsAre("r1c0x", "r1c3x", "r2c0x", "r2c3x"));
  EXPECT_THAT(expand_hostlist("node"), ElementsAre("node"));
  EXPECT_THAT(expand_hostlist("n[9-11]"), ElementsAre("n9", "n10", "n11"));
}

TEST(Hostlist, RefusesWhatIsMalformedOrTooLong) {
  for (const char* list : {"", "a,", "n[1-2", "n]1", "n[[1]]", "n[2-1]", "n[a]", "n[]", "n[1,]"})
    EXPECT_THAT(refusal([&] { expand_hostlist(list); }), HasSubstr("the list of hosts")) << list;
  EXPECT_THAT(refusal([] { expand_hostlist("n[0-2000000000]"); }), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal([] { expand_hostlist("n[0-999][0-999]"); }), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal([] { expand_hostlist("n[0-40000],m[0-40000]"); }),
              HasSubstr("more than 65536"));
}

TEST(TaskCounts, ExpandWhatSlurmWrites) {
  EXPECT_THAT(expand_counts("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(expand_counts("2"), ElementsAre(2));
  for (const char* counts : {"", "4(x2", "4(x0)", "x", "4(x99999999)", "-1"})
    EXPECT_THAT(refusal([&] { expand_counts(counts); }), HasSubstr("4(x2),3")) << counts;
}

}  // namespace
}  // namespace tessera::hosts
