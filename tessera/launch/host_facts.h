// SPDX-License-Identifier: Apache-2.0
// Facts that the hosts of a job report about themselves before the ranks begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::launch {

struct HostFacts {
  std::string name;
  int first_rank = 0, ranks = 1;
  std::string build;  ///< hash of the file that contains this library: the same program everywhere
  int cores = 1;
  std::uint64_t memory = 0;  ///< bytes that new ranks may use
  std::uint64_t disk = 0;    ///< free bytes where the job was started
  double clock_s = 0.0;      ///< seconds since 1970
};

/// Returns the facts of this host, without name and ranks. Reads the library's file once.
HostFacts facts_of_this_host();

/// Returns one line for each host and a heading. `now_s`: the clock of the head when each arrived,
/// by host; the last column is the difference.
std::vector<std::string> host_table(const std::vector<HostFacts>& hosts,
                                    const std::vector<double>& now_s);

}  // namespace tessera::launch
