// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/machine.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <sched.h>

#include "tessera/base/files.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// Simulates /proc and /sys/fs/cgroup.
class CgroupFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  [[nodiscard]] Roots roots() const { return {folder_.path() / "proc", folder_.path() / "cg"}; }
  [[nodiscard]] Cgroup group() const { return Cgroup(roots()); }

  void version_2(const std::string& path = "/job/step") const {
    write("proc/self/cgroup", "0::" + path);
  }
  void version_1() const {
    write("proc/self/cgroup", "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/");
  }

 private:
  files::TempDir folder_;
};

TEST_F(CgroupFiles, MayBeAbsent) {
  EXPECT_FALSE(group().cpu_quota());
  EXPECT_FALSE(group().memory_limit());
  EXPECT_FALSE(group().memory_left());
  EXPECT_FALSE(group().oom_kills());
}

TEST_F(CgroupFiles, OfVersion2AreReadUpTheTree) {
  version_2();
  write("cg/job/step/cpu.max", "max 100000");
  write("cg/job/cpu.max", "150000 100000");
  write("cg/job/step/memory.max", "max");
  write("cg/job/memory.max", std::to_string(4 * kGiB));
  write("cg/job/memory.current", std::to_string(3 * kGiB));
  write("cg/job/memory.stat", "anon 5\ninactive_file " + std::to_string(kGiB) + "\nactive_file 7");
  write("cg/job/step/memory.events", "low 0\noom 1\noom_kill 2\noom_group_kill 0");

  EXPECT_DOUBLE_EQ(group().cpu_quota().value(), 1.5);
  EXPECT_EQ(group().memory_limit(), 4 * kGiB);
  EXPECT_EQ(group().memory_left(), 2 * kGiB) << "cache that can be dropped counts as free";
  EXPECT_EQ(group().oom_kills(), 2U);
}

TEST_F(CgroupFiles, OfVersion2InsideAContainerAreAtTheMount) {
  version_2("/kubepods/pod1/c1");
  write("cg/memory.max", std::to_string(kGiB));
  write("cg/memory.current", std::to_string(2 * kGiB));
  write("cg/cpu.max", "50000 100000");

  EXPECT_EQ(group().memory_left(), 0U);
  EXPECT_DOUBLE_EQ(group().cpu_quota().value(), 0.5);
}

TEST_F(CgroupFiles, OfVersion1AreReadPerController) {
  version_1();
  write("cg/memory/docker/x/memory.limit_in_bytes", std::to_string(8 * kGiB));
  write("cg/memory/memory.limit_in_bytes", "9223372036854771712");  // no limit
  write("cg/memory/docker/x/memory.usage_in_bytes", std::to_string(2 * kGiB));
  write("cg/memory/docker/x/memory.stat", "cache 1\ntotal_inactive_file 0");
  write("cg/memory/docker/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3");
  write("cg/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "300000");
  write("cg/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");

  EXPECT_EQ(group().memory_limit(), 8 * kGiB);
  EXPECT_EQ(group().memory_left(), 6 * kGiB);
  EXPECT_EQ(group().oom_kills(), 3U);
  EXPECT_DOUBLE_EQ(group().cpu_quota().value(), 3.0);
}

TEST_F(CgroupFiles, OfVersion1WithoutAQuotaSayMinusOne) {
  version_1();
  write("cg/cpu/docker/x/cpu.cfs_quota_us", "-1");
  write("cg/cpu/docker/x/cpu.cfs_period_us", "100000");

  EXPECT_FALSE(group().cpu_quota());
}

TEST_F(CgroupFiles, MayHoldNonsense) {
  version_2();
  write("cg/job/step/memory.max", "four");
  write("cg/job/step/cpu.max", "");
  write("cg/job/step/memory.events", "oom_kill");

  EXPECT_FALSE(group().memory_limit());
  EXPECT_FALSE(group().cpu_quota());
  EXPECT_FALSE(group().oom_kills());
}

TEST_F(CgroupFiles, BoundTheAvailableMemory) {
  version_2("/");
  write("proc/meminfo", "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB");
  EXPECT_EQ(available_memory(roots()), 4 * kGiB);

  write("cg/memory.max", std::to_string(kGiB));

  EXPECT_EQ(available_memory(roots()), kGiB);
}

TEST_F(CgroupFiles, WithoutACounterLeaveTheMachines) {
  version_2("/");
  write("proc/vmstat", "pgfault 9\noom_kill 5");
  EXPECT_EQ(oom_kills(roots()), 5U);

  write("cg/memory.events", "oom_kill 1");

  EXPECT_EQ(oom_kills(roots()), 1U);
}

TEST(UsableCores, AreTheMaskAndTheQuotaRoundedDown) {
  EXPECT_EQ(usable_cores(8, std::nullopt), 8);
  EXPECT_EQ(usable_cores(8, 2.9), 2);
  EXPECT_EQ(usable_cores(8, 0.3), 1);
  EXPECT_EQ(usable_cores(2, 64.0), 2);
  EXPECT_EQ(usable_cores(0, std::nullopt), 1);
}

TEST(UsableCores, ShareOutAmongRanks) {
  EXPECT_EQ(threads_per_rank(1), usable_cores());
  EXPECT_EQ(threads_per_rank(100000), 1);
}

TEST(RanksThatShareCores, AreThoseThatWereNotBound) {
  constexpr bool kBound = true;

  EXPECT_EQ(shared_cores(2, 1, 1, std::nullopt, false), 1);
  EXPECT_EQ(shared_cores(2, 2, 2, std::nullopt, false), std::nullopt);
  // taskset and a container: the ranks have this mask together.
  EXPECT_EQ(shared_cores(2, 1, 8, std::nullopt, false), 1);
  // A launcher bound each of its ranks to one of eight processors.
  EXPECT_EQ(shared_cores(2, 1, 8, std::nullopt, kBound), std::nullopt);
  EXPECT_EQ(shared_cores(9, 1, 8, std::nullopt, kBound), 8);
  EXPECT_EQ(shared_cores(2, 1, 8, 1.0, kBound), 1) << "a quota is that of all ranks";
  EXPECT_EQ(shared_cores(4, 2, 2, std::nullopt, kBound), 2);
}

TEST(CoresBySibling, AreThoseOfTheMask) {
  const std::vector<int> mask = affinity_cores(), order = cores_by_sibling();

  EXPECT_EQ(std::set<int>(order.begin(), order.end()), std::set<int>(mask.begin(), mask.end()));
  EXPECT_EQ(static_cast<int>(mask.size()),
            std::min(usable_cores(mask.size(), std::nullopt), 1 << 20));
}

TEST(SharedCores, AreDisjointAndOnlyWhenThereAreEnough) {
  const int cores = usable_cores();
  RankInfo crowded;
  crowded.local_world_size = cores + 1;
  share_cores(crowded, {});
  EXPECT_EQ(crowded.threads, 1);
  EXPECT_TRUE(crowded.cores.empty()) << "more ranks than cores";

  RankInfo alone;
  share_cores(alone, {});
  EXPECT_EQ(alone.threads, cores);
  EXPECT_TRUE(alone.cores.empty());

  std::set<int> given;
  std::size_t count = 0;
  for (int rank = 0; rank < 2; ++rank) {
    RankInfo info;
    info.rank = info.local_rank = rank;
    info.local_world_size = 2;
    Options options;
    options.threads_per_rank = 1;
    share_cores(info, options);
    EXPECT_EQ(info.threads, 1);
    given.insert(info.cores.begin(), info.cores.end());
    count += info.cores.size();
  }
  EXPECT_EQ(given.size(), count);
}

TEST(SharedCores, AreGivenOnlyWhereRanksAndThreadsFillThem) {
  const std::vector<int> cores = {0, 2, 4, 6, 1, 3, 5, 7};

  EXPECT_EQ(share_of(cores, 1, 2, 4), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(share_of(cores, 1, 4, 2), (std::vector<int>{4, 6}));
  EXPECT_TRUE(share_of(cores, 0, 2, 2).empty()) << "a second such job would get the same ones";
  EXPECT_TRUE(share_of(cores, 0, 2, 5).empty()) << "too few";
  EXPECT_TRUE(share_of(cores, 0, 1, 8).empty()) << "alone";
}

TEST(Machine, KnowsThisOne) {
  const Machine facts = machine();

  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_GT(facts.memory_total, 0U);
  EXPECT_GE(facts.memory_total, facts.memory_available);
  EXPECT_FALSE(facts.affinity.empty());
  EXPECT_FALSE(facts.limits.empty());
}

}  // namespace
}  // namespace tessera::launch
