// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/machine.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tessera/base/text.h"
#include "tessera/launch/core_list.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

// Returns the value after "key :" or "key:" in a file of such lines.
std::string value_of(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (text::trim(std::string_view(line).substr(0, colon)) == key) {
      return std::string(text::trim(std::string_view(line).substr(colon + 1)));
    }
  }
  return "";
}

// /proc/meminfo uses kB.
std::uint64_t meminfo(const Roots& roots, std::string_view key) {
  std::istringstream words(value_of(roots.proc / "meminfo", key));
  std::uint64_t kilobytes = 0;
  words >> kilobytes;
  return kilobytes * 1024;
}

std::uint64_t machine_oom_kills(const Roots& roots) {
  std::ifstream file(roots.proc / "vmstat");
  std::string name;
  for (std::uint64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

std::vector<std::string> known_isa(const Roots& roots) {
  static constexpr std::array<std::string_view, 12> kNames = {"sse4_2",
                                                              "avx",
                                                              "f16c",
                                                              "fma",
                                                              "avx2",
                                                              "avx512f",
                                                              "avx512bw",
                                                              "avx512_vnni",
                                                              "avx512_bf16",
                                                              "avx512_fp16",
                                                              "amx_tile",
                                                              "amx_bf16"};
  std::istringstream words(value_of(roots.proc / "cpuinfo", "flags"));
  std::set<std::string> flags;
  for (std::string word; words >> word;)
    flags.insert(word);
  std::vector<std::string> found;
  for (const std::string_view name : kNames) {
    if (flags.count(std::string(name)) > 0) found.emplace_back(name);
  }
  return found;
}

// Returns the choice in brackets: "always [madvise] never".
std::string huge_page_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  const auto open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos
             ? ""
             : line.substr(open + 1, close - open - 1);
}

std::vector<Machine::Limit> limits() {
  static constexpr std::array<std::pair<int, const char*>, 6> kLimits = {{
      {RLIMIT_NOFILE, "open files (ulimit -n)"},
      {RLIMIT_NPROC, "processes (ulimit -u)"},
      {RLIMIT_MEMLOCK, "locked memory (ulimit -l)"},
      {RLIMIT_AS, "address space (ulimit -v)"},
      {RLIMIT_FSIZE, "file size (ulimit -f)"},
      {RLIMIT_CORE, "core file (ulimit -c)"},
  }};
  const auto bound = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(value);
  };
  std::vector<Machine::Limit> list;
  for (const auto& [resource, name] : kLimits) {
    rlimit limit{};
    if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) continue;
    list.push_back({name, bound(limit.rlim_cur), bound(limit.rlim_max)});
  }
  return list;
}

// Returns the position of `core` among the hardware threads of its physical core: 0 for the first.
std::size_t sibling_index(int core) {
  std::ifstream file(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", core));
  std::string list;
  std::getline(file, list);  // "0,32" or "0-1"
  std::replace(list.begin(), list.end(), '-', ',');
  const std::vector<std::string> siblings = text::split(list, ',');
  const auto place = std::find(siblings.begin(), siblings.end(), std::to_string(core));
  return place == siblings.end() ? 0 : static_cast<std::size_t>(place - siblings.begin());
}

}  // namespace

std::vector<int> affinity_cores(int process) {
  // The kernel rejects a mask shorter than its own: grow it until it fits.
  for (int count = 1024; count <= (1 << 20); count *= 2) {
    cpu_set_t* const set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, set);
    std::vector<int> cores;
    if (sched_getaffinity(process, bytes, set) == 0) {
      for (int i = 0; i < count; ++i) {
        if (CPU_ISSET_S(i, bytes, set)) cores.push_back(i);
      }
    }
    CPU_FREE(set);
    if (!cores.empty()) return cores;
  }
  return process == 0 ? std::vector<int>{0} : std::vector<int>{};
}

std::vector<int> cores_by_sibling() {
  std::vector<std::pair<std::size_t, int>> order;
  for (const int core : affinity_cores())
    order.emplace_back(sibling_index(core), core);
  std::sort(order.begin(), order.end());
  std::vector<int> cores;
  cores.reserve(order.size());
  for (const auto& [index, core] : order)
    cores.push_back(core);
  return cores;
}

int usable_cores(std::size_t in_mask, std::optional<double> quota) {
  const int mask = static_cast<int>(std::max<std::size_t>(1, in_mask));
  if (!quota) return mask;
  return std::clamp(static_cast<int>(std::min(*quota, 1e6)), 1, mask);
}

int usable_cores() {
  return usable_cores(affinity_cores().size(), Cgroup().cpu_quota());
}

std::optional<int> shared_cores(int local_ranks,
                                std::size_t in_mask,
                                std::size_t online,
                                std::optional<double> quota,
                                bool bound) {
  const int cores = usable_cores(bound ? online : in_mask, quota);
  return local_ranks > cores ? std::optional(cores) : std::nullopt;
}

std::optional<int> shared_cores(int local_ranks, bool bound) {
  return shared_cores(local_ranks,
                      affinity_cores().size(),
                      static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))),
                      Cgroup().cpu_quota(),
                      bound);
}

int threads_per_rank(int local_ranks) {
  return std::max(1, usable_cores() / std::max(1, local_ranks));
}

std::vector<int> share_of(const std::vector<int>& cores,
                          int local_rank,
                          int local_ranks,
                          int threads) {
  const auto each = static_cast<std::size_t>(threads);
  if (local_ranks < 2 || static_cast<std::size_t>(local_ranks) * each != cores.size()) return {};
  const auto first = cores.begin() + static_cast<std::ptrdiff_t>(threads) * local_rank;
  return {first, first + threads};
}

void share_cores(RankInfo& rank, const Options& options) {
  if (options.local.bind_cores) {
    const std::vector<int>& named = options.local.core_list;
    rank.cores = equal_share(
        named.empty() ? cores_by_sibling() : named, rank.local_rank, rank.local_world_size);
    rank.threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                                : static_cast<int>(rank.cores.size());
    return;
  }
  const std::vector<int> cores = cores_by_sibling();
  const int usable = usable_cores();
  rank.threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                              : threads_per_rank(rank.local_world_size);
  const bool quota = static_cast<std::size_t>(usable) < cores.size();
  if (!quota) rank.cores = share_of(cores, rank.local_rank, rank.local_world_size, rank.threads);
}

void pin(const std::vector<int>& cores) noexcept {
  if (cores.empty()) return;
  const int count = *std::max_element(cores.begin(), cores.end()) + 1;
  cpu_set_t* const set = CPU_ALLOC(count);
  if (set == nullptr) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  for (const int core : cores)
    CPU_SET_S(core, bytes, set);
  sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

std::uint64_t available_memory(const Roots& roots) {
  const std::uint64_t machine = meminfo(roots, "MemAvailable");
  return std::min(machine, Cgroup(roots).memory_left().value_or(machine));
}
std::uint64_t available_memory() {
  return available_memory(Roots{});
}

std::uint64_t oom_kills(const Roots& roots) {
  const auto group = Cgroup(roots).oom_kills();
  return group ? *group : machine_oom_kills(roots);
}

Machine machine(const Roots& roots) {
  Machine facts;
  utsname system{};
  if (uname(&system) == 0) {
    facts.host = system.nodename;
    facts.kernel = fmt::format("{} {}", system.sysname, system.release);
  }
  const Cgroup group(roots);
  facts.cpu = value_of(roots.proc / "cpuinfo", "model name");
  facts.isa = known_isa(roots);
  facts.processors = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  facts.affinity = affinity_cores();
  facts.cpu_quota = group.cpu_quota();
  facts.usable_cores = usable_cores(facts.affinity.size(), facts.cpu_quota);
  facts.memory_total = meminfo(roots, "MemTotal");
  facts.memory_available = meminfo(roots, "MemAvailable");
  facts.memory_limit = group.memory_limit();
  facts.memory_left = group.memory_left();
  facts.huge_pages = huge_page_mode();
  facts.limits = limits();
  return facts;
}

}  // namespace tessera::launch
