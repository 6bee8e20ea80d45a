// SPDX-License-Identifier: Apache-2.0
// Flags of launchers that choose hosts, slots and cores, and where the hosts meet: DeepSpeed's
// names, torchrun's, and Colossal-AI's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/hosts/elastic_hosts.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/hostfile.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {

/// The hostfile of DeepSpeed's launcher where none is named.
inline constexpr std::string_view kDefaultHostfile = "/job/hostfile";

/// The flags found among the words of a command line; empty: not given.
struct HostFlags {
  std::string hostfile;
  std::optional<hosts::HostPool> listed;  ///< the hosts that run.hosts or --host lists
  hosts::HostFilter filter;               ///< without num_per_host, which is -n
  std::optional<int> node_rank;
  std::string master_addr;
  std::optional<int> master_port;
  bool meets_at_endpoint = false;  ///< torchrun's --rdzv_endpoint gives address and port
  std::string launcher;            ///< in lower case
  std::string launcher_args;
  std::optional<int> ssh_port;
  bool no_ssh = false;  ///< every host is started by hand
  bool no_ssh_check = false;
  bool force_multi = false;  ///< start a single host as if it were remote
  bool save_pid = false;
  std::string each_rank_log;
  bool bind_cores = false;
  std::vector<int> core_list;
  bool elastic = false;  ///< go on without lost hosts
  std::optional<int> min_elastic_nodes, max_elastic_nodes;
  std::vector<std::string> typed;  ///< the flags as typed, without their values
};

/// Takes the flags and their values out of `words`; "-" and "_" in names are the same. --rank,
/// --world_size, --host and --port set the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
/// of this process unless they have the same value. Throws Error{Config} for a value that is
/// missing or malformed, a launcher that does not exist, and a flag that contradicts such a
/// variable.
HostFlags take_host_flags(std::vector<std::string>& words);

/// The names of these flags, for the nearest name of an unknown one.
std::vector<std::string> host_flag_names();
/// Lines for --help.
std::string host_flags_help();

/// Returns what the flags say about the processes of local ranks.
launch::LocalStart local_start(const HostFlags& flags);

/// The hosts on which the ranks of a command run.
struct HostChoice {
  hosts::HostPool pool;  ///< empty: this host alone, without slots
  bool several = false;  ///< hosts other than this one are started, or this one as if it were
  bool by_hand = false;  ///< this process is one of several hosts, each started by hand
  std::vector<std::string> notes;  ///< notes for the user
};

/// Resolves the flags: reads the hostfile (/job/hostfile if none is named and a flag asks for
/// hosts) and applies the filters; `per_host` is -n. If the hostfile does not exist, the pool is
/// this host, as in DeepSpeed, with a note. Throws Error{Config} as hosts::read_hostfile() and
/// filter_hosts(), and for flags of hosts under a launcher that has already started the ranks.
HostChoice choose_hosts(const HostFlags& flags, std::optional<std::int64_t> per_host);

/// Takes the hosts from run.hosts of a configuration, unless the flags name a hostfile. Returns
/// notes for the user. Throws as hosts::parse_hostfile().
std::vector<std::string> use_hosts_key(HostFlags& flags, const json::Value& source);

/// Returns the part of this host if every host is started by hand. Throws Error{Config} if neither
/// flags nor environment say where the hosts meet.
hosts::HostPart part_by_hand(const HostFlags& flags, const hosts::HostPool& pool);

/// Checks that the command can start its ranks on the hosts of the pool; nothing is started. Throws
/// Error{Config} or Error{Unsupported} otherwise. `elastic`: it goes on after a loss.
void check_start_on_hosts(const HostFlags& flags, const HostChoice& choice, bool elastic);

/// Runs the command line `line` of `tessera train` on the hosts of the pool, and returns the exit
/// code of the job. `elastic`: how it goes on after a loss; null: it ends. Needs what
/// check_start_on_hosts() checks. Throws as hosts::run_job_on_hosts().
int train_on_hosts(const HostFlags& flags,
                   const HostChoice& choice,
                   const std::vector<std::string>& line,
                   bool quiet,
                   const hosts::ElasticOptions* elastic = nullptr);

}  // namespace tessera::cli
