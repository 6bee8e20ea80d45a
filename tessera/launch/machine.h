// SPDX-License-Identifier: Apache-2.0
// Facts about this machine, as far as this process may use it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/cgroup.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// What `tessera report` tells and what plans are held against. Text is empty and numbers are
/// absent where the system does not say.
struct Machine {
  std::string host, kernel, cpu;  ///< "Intel(R) Xeon(R) ..."
  std::vector<std::string>
      isa;                    ///< of avx2, fma, avx512f, avx512_bf16, amx_bf16, ...: those it has
  int processors = 1;         ///< online
  std::vector<int> affinity;  ///< those this process may run on, ascending
  std::optional<double> cpu_quota;  ///< of the control group, in processors
  int usable_cores = 1;
  std::uint64_t memory_total = 0, memory_available = 0;
  std::optional<std::uint64_t> memory_limit, memory_left;  ///< of the control group
  std::string huge_pages;  ///< mode of transparent huge pages: "always", "madvise", "never"
  struct Limit {
    std::string name;                         ///< "open files (ulimit -n)"
    std::optional<std::uint64_t> soft, hard;  ///< nothing: unlimited
  };
  std::vector<Limit> limits;
};

Machine machine(const Roots& roots = {});

/// Processors in this process's mask, ascending.
std::vector<int> affinity_cores();
/// The same, second hardware threads of a core after all first ones.
std::vector<int> cores_by_sibling();
/// min(processors in the mask, quota rounded down), at least 1.
int usable_cores(std::size_t in_mask, std::optional<double> quota);
/// The smaller of MemAvailable and what the group's limit leaves.
std::uint64_t available_memory(const Roots& roots);
/// How often the kernel killed for memory what could be a rank of ours: this group's counter, or
/// the machine's where the group has none.
std::uint64_t oom_kills(const Roots& roots = {});

/// Those of `cores` that are one local rank's: a stretch for each, if ranks and threads fill all of
/// them; otherwise nothing, because a second job would be pinned to the same first ones.
std::vector<int> share_of(const std::vector<int>& cores,
                          int local_rank,
                          int local_ranks,
                          int threads);
/// Fills in threads, and cores where pinning helps: more than one local rank, whose threads fill
/// the mask exactly, and no quota below the mask (other containers would then pin to the same first
/// processors).
void share_cores(RankInfo& rank, const Options& options);
/// Pins this process to `cores`; empty, or refused by the system: left as it is.
void pin(const std::vector<int>& cores) noexcept;

}  // namespace tessera::launch
