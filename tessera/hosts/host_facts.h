// SPDX-License-Identifier: Apache-2.0
// Facts that the hosts of a job report about themselves before the ranks begin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/hosts/fact.h"

namespace tessera::hosts {

struct HostFacts {
  std::string name;
  int first_rank = 0, ranks = 1;
  std::string version;  ///< of tessera, "0.1.0"
  /// Hash of the program and of the file that contains this library: the same ones everywhere.
  std::string build;
  std::string torch;        ///< identity of libtorch; empty if it is not loaded
  std::vector<Fact> facts;  ///< what must be equal on all hosts
  int cores = 1;
  std::uint64_t memory = 0;  ///< bytes that new ranks may use
  std::uint64_t disk = 0;    ///< free bytes at the run folder, or where the job was started
  double clock_s = 0.0;      ///< seconds since 1970

  std::string address;                ///< where the other hosts try to connect (ProbeListener)
  int port = 0;                       ///< 0: nobody tries
  std::string folder;                 ///< path of the run folder; empty: it is not compared
  std::string mark;                   ///< of the host of rank 0: the FolderMark in its run folder
  bool must_share = false;            ///< the job cannot save into a run folder for each host
  bool must_own = false;              ///< the job cannot save into one run folder of all hosts
  std::vector<std::string> problems;  ///< what the host has found out by itself
};

/// Returns the facts of this host, without name and ranks. `folder`: where the disk is measured;
/// if it does not exist, its nearest parent; empty: the current one. Reads the library's file once.
HostFacts facts_of_this_host(const std::string& folder = "");

/// Something that keeps the job from starting, and what to do about it.
struct HostProblem {
  Error::Kind kind = Error::Kind::Config;
  std::string what, fix;
};
HostProblem problem_of(const Error& error);
/// Returns the differences of `host` from `first`, the host of the lowest rank: its version, build,
/// libtorch and facts; and the host's own problems.
std::vector<HostProblem> problems_of(const HostFacts& host, const HostFacts& first);
/// Returns the problem of a host whose run folder is that of the first host (`is_shared`), or is
/// another one, where the job cannot save so; nothing if it can.
std::optional<HostProblem> folder_problem(const HostFacts& host,
                                          const HostFacts& first,
                                          bool is_shared);
/// Names the hosts of a job some of whose ranks have not arrived, or those ranks if the hosts are
/// unknown; empty: all have. `hosts`: names and numbers of ranks, in order; `here`: first rank and
/// number of ranks of each host that has arrived.
std::string missing_hosts(const std::vector<std::pair<std::string, int>>& hosts,
                          const std::vector<std::pair<int, int>>& here,
                          int world_size);
/// Returns one error for all problems: the kind of the first one, one line for each, and each fix
/// once.
HostProblem joined(const std::vector<HostProblem>& problems);

/// Returns one line for each host and a heading. `now_s`: the clock of the coordinator when each
/// arrived, by host; the last column is the difference. `folders`: whether each sees the run folder
/// of the first one, "shared" or "own", or "-" if that is unknown.
std::vector<std::string> host_table(const std::vector<HostFacts>& hosts,
                                    const std::vector<double>& now_s,
                                    const std::vector<std::string>& folders);

}  // namespace tessera::hosts
