// SPDX-License-Identifier: Apache-2.0
// Facts about this machine, as far as this process may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/cgroup.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Facts that `tessera report` shows and that plans are compared with. If the system does not
/// provide one, texts are empty and optionals have no value.
struct Machine {
  std::string host, kernel, cpu;  ///< "Intel(R) Xeon(R) ..."
  std::vector<std::string>
      isa;                    ///< supported ones of avx2, fma, avx512f, avx512_bf16, amx_bf16, ...
  int processors = 1;         ///< online
  std::vector<int> affinity;  ///< processors that this process may run on, ascending
  std::optional<double> cpu_quota;  ///< quota of the control group, in processors
  int usable_cores = 1;
  std::uint64_t memory_total = 0, memory_available = 0;
  std::optional<std::uint64_t> memory_limit, memory_left;  ///< limits of the control group
  std::string huge_pages;  ///< mode of transparent huge pages: "always", "madvise", "never"
  struct Limit {
    std::string name;                         ///< "open files (ulimit -n)"
    std::optional<std::uint64_t> soft, hard;  ///< nothing: unlimited
  };
  std::vector<Limit> limits;
};

Machine machine(const Roots& roots = {});

/// Returns the processors in the affinity mask of a process, ascending; 0 is this process. A
/// process that does not exist has none.
std::vector<int> affinity_cores(int process = 0);
/// Like affinity_cores(), but the second hardware threads of all cores follow the first ones.
std::vector<int> cores_by_sibling();
/// Returns min(processors in the mask, quota rounded down), at least 1.
int usable_cores(std::size_t in_mask, std::optional<double> quota);
/// Returns the number of processors that `local_ranks` ranks share if they are more than these;
/// nothing if each has one. `bound`: a launcher gave this rank its mask, and other parts of the
/// `online` processors to its peers.
std::optional<int> shared_cores(int local_ranks,
                                std::size_t in_mask,
                                std::size_t online,
                                std::optional<double> quota,
                                bool bound);
/// The same of this process.
std::optional<int> shared_cores(int local_ranks, bool bound);
/// Returns the smaller of MemAvailable and what the group's limit leaves.
std::uint64_t available_memory(const Roots& roots);
/// Returns how often the OOM killer has run where it could have killed one of our ranks: the
/// counter of this group, or that of the machine if the group has none.
std::uint64_t oom_kills(const Roots& roots = {});

/// Returns the contiguous part of `cores` for one local rank if ranks and threads fill all of them;
/// otherwise nothing, because a second job would be pinned to the same first cores.
std::vector<int> share_of(const std::vector<int>& cores,
                          int local_rank,
                          int local_ranks,
                          int threads);
/// Sets `threads`, and `cores` if pinning helps: more than one local rank whose threads fill the
/// mask exactly, and no quota below the mask (other containers would pin to the same first
/// processors).
void share_cores(RankInfo& rank, const Options& options);
/// Pins this process to `cores`. Does nothing if `cores` is empty or the system refuses.
void pin(const std::vector<int>& cores) noexcept;

}  // namespace tessera::launch
