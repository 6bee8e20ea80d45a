// SPDX-License-Identifier: Apache-2.0
// The hosts of a job and their slots: hostfiles, and the filters of DeepSpeed's command line.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hosts {

/// A host and the slots of it that a job uses, ascending. Each slot runs one rank.
struct HostSlots {
  std::string name;
  std::vector<int> slots;
  bool counted = true;  ///< false: nothing says how many slots there are, and one is assumed
  /// True if the slots are the first ones of the host: 0, 1, 2...
  [[nodiscard]] bool first_ones() const;
  /// Returns "0,2".
  [[nodiscard]] std::string list() const;
  bool operator==(const HostSlots&) const = default;
};
/// The hosts of a job. Their order determines the ranks: those of the first host come first.
using HostPool = std::vector<HostSlots>;

/// The most hosts, and the most slots of one host, that are read.
inline constexpr std::size_t kMostHosts = 65536;
inline constexpr int kMostSlots = 1024;

/// Reads a hostfile. A line is `name slots=4`, as DeepSpeed and Open MPI write it (`max_slots=8`
/// may follow), `name:4` as MPICH does, or a name alone, which has one slot and is not counted;
/// names may be separated by commas. Blank lines and everything after `#` are skipped. Throws
/// Error{Config} with `file` and the line: for a line of another form, a host named twice, a number
/// of slots outside of 1 to kMostSlots, a name that begins with "-" (ssh would take it as an
/// option) or contains other characters than letters, digits, and "." "_" "-" ":" "[" "]" "%" "@",
/// and a file without hosts.
HostPool parse_hostfile(std::string_view text, const std::string& file);
/// Reads the file at `path`, at most 16 MiB. Throws as parse_hostfile(), and Error{Io} if the file
/// cannot be read.
HostPool read_hostfile(const std::string& path);

/// Limits on a pool as they were typed; empty: not given.
struct HostFilter {
  std::string include, exclude;
  std::optional<int> num_nodes;     ///< keeps the first hosts
  std::optional<int> num_per_host;  ///< keeps the first slots of each host; one that is not counted
                                    ///< gets as many
};
/// Applies a filter. `include` and `exclude` have the grammar `NODE[@NODE...]`, NODE =
/// `NAME[:SLOT[,SLOT...]]`; a name alone means all of its slots; several NODEs of one host add up.
/// Names without slots may also be separated by commas, as in Colossal-AI.
/// The result keeps the order of the pool, and contains no host without slots. Throws Error{Config}
/// for a malformed filter, a host or slot that the pool does not contain, both filters at once,
/// a filter together with num_nodes, or with num_per_host if a host is counted, a number below 1 or
/// above what the pool has, and for a filter that leaves nothing.
HostPool filter_hosts(HostPool pool, const HostFilter& filter);

/// Returns the number of slots of all hosts.
int num_slots(const HostPool& pool);
/// Returns "node-0 (slots 0-3), node-1 (slots 0,2)"; more than eight hosts are abbreviated.
std::string describe(const HostPool& pool);

/// Returns whether a name means this host: "localhost", a loopback address, the name of this host
/// with or without its domain, or the address of one of its interfaces. Asks no name server.
bool is_this_host(std::string_view name);

/// Expands a list of hosts as Slurm writes it: `n[008-011,20],login-1`; several brackets multiply,
/// the rightmost changes fastest, and the width of the lower number pads with zeros. Throws
/// Error{Config} for a malformed list or one of more than kMostHosts hosts.
std::vector<std::string> expand_hostlist(std::string_view list);
/// Expands Slurm's counts of tasks per host, `4(x2),3`, to one number per host. Throws
/// Error{Config}.
std::vector<int> expand_counts(std::string_view counts);

}  // namespace tessera::hosts
