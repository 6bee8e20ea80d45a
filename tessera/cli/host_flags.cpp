// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/host_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/master_address.h"
#include "tessera/hosts/run_on_hosts.h"
#include "tessera/launch/core_list.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

enum class Takes : std::uint8_t { Nothing, Text, Number };

struct HostFlag {
  std::string_view name;
  Takes takes;
};

constexpr auto kHostFlags = std::to_array<HostFlag>({
    {"--hostfile", Takes::Text},
    {"-H", Takes::Text},
    {"--include", Takes::Text},
    {"-i", Takes::Text},
    {"--exclude", Takes::Text},
    {"-e", Takes::Text},
    {"--num_nodes", Takes::Number},
    {"--nnodes", Takes::Number},
    {"--node_rank", Takes::Number},
    {"--master_addr", Takes::Text},
    {"--master_port", Takes::Number},
    {"--launcher", Takes::Text},
    {"--launcher_args", Takes::Text},
    {"--ssh_port", Takes::Number},
    {"--no_ssh", Takes::Nothing},
    {"--no_ssh_check", Takes::Nothing},
    {"--force_multi", Takes::Nothing},
    {"--save_pid", Takes::Nothing},
    {"--enable_each_rank_log", Takes::Text},
    {"--bind_cores_to_rank", Takes::Nothing},
    {"--bind_core_list", Takes::Text},
    {"--elastic_training", Takes::Nothing},
    {"--min_elastic_nodes", Takes::Number},
    {"--max_elastic_nodes", Takes::Number},
    {"--rank", Takes::Number},
    {"--world_size", Takes::Number},
    {"--host", Takes::Text},
    {"--port", Takes::Number},
    {"--rdzv_endpoint", Takes::Text},
});

constexpr std::array kLauncherNames = {
    "ssh", "pdsh", "openmpi", "mvapich", "mpich", "impi", "slurm", "jsrun", "none"};

const HostFlag* find_host_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return nullptr;
  std::string name(word.substr(0, word.find('=')));
  if (word[1] == '-') std::replace(name.begin() + 2, name.end(), '-', '_');
  const auto found = std::find_if(kHostFlags.begin(), kHostFlags.end(), [&](const HostFlag& flag) {
    return flag.name == name;
  });
  return found == kHostFlags.end() ? nullptr : found;
}

int count_in(const std::string& typed, const std::string& value) {
  int number = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  TESSERA_REQUIRE(error == std::errc() && stop == value.data() + value.size() && number >= 0,
                  Config,
                  fmt::format("{} {}: expected a whole number", typed, value),
                  "");
  return number;
}

std::string launcher_in(const std::string& typed, const std::string& value) {
  std::string name = text::lower(value);
  const std::vector<std::string> known(kLauncherNames.begin(), kLauncherNames.end());
  TESSERA_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(),
                  Config,
                  fmt::format("{} {}: there is no such launcher", typed, value),
                  text::suggestion(name, known));
  return name;
}

/// Colossal-AI's flags of a single process have the meaning of torch's variables.
void set_variable(const char* name, const std::string& typed, const std::string& value) {
  const char* const before = std::getenv(name);
  TESSERA_REQUIRE(before == nullptr || value == before,
                  Config,
                  fmt::format("{} {}, but {}={} in the environment", typed, value, name, before),
                  fmt::format("remove one of them: unset {}", name));
  setenv(name, value.c_str(), 1);
}

template <class T>
void set_once(T& place, T value, bool given, const std::string& typed) {
  TESSERA_REQUIRE(!given || place == value,
                  Config,
                  fmt::format("{}: two different values", typed),
                  "give it once");
  place = std::move(value);
}

void set_text(std::string& place, const std::string& value, const std::string& typed) {
  TESSERA_REQUIRE(!value.empty(), Config, typed + ": the value is empty", "");
  set_once(place, value, !place.empty(), typed);
}

void set_number(std::optional<int>& place, const std::string& value, const std::string& typed) {
  set_once(place, std::optional(count_in(typed, value)), place.has_value(), typed);
}

/// `LEAST:MOST` of torchrun means an elastic training.
void set_num_nodes(HostFlags& out, const std::string& value, const std::string& typed) {
  const std::size_t colon = value.find(':');
  if (colon == std::string::npos) return set_number(out.filter.num_nodes, value, typed);
  set_number(out.min_elastic_nodes, value.substr(0, colon), typed);
  set_number(out.max_elastic_nodes, value.substr(colon + 1), typed);
  out.elastic = true;
}

/// Takes torchrun's `ADDRESS:PORT`, or an address alone, apart.
void set_endpoint(HostFlags& out, const std::string& value, const std::string& typed) {
  const std::size_t colon = value.rfind(':');
  const bool is_v6 = value.find(':') != colon && !value.starts_with('[');
  std::string address = is_v6 || colon == std::string::npos ? value : value.substr(0, colon);
  if (address.starts_with('[') && address.ends_with(']'))
    address = address.substr(1, address.size() - 2);
  set_text(out.master_addr, address, typed);
  if (!is_v6 && colon != std::string::npos)
    set_number(out.master_port, value.substr(colon + 1), typed);
  out.meets_at_endpoint = true;
}

void apply_switch(HostFlags& out, std::string_view name) {
  if (name == "--no_ssh") out.no_ssh = true;
  if (name == "--no_ssh_check") out.no_ssh_check = true;
  if (name == "--force_multi") out.force_multi = true;
  if (name == "--save_pid") out.save_pid = true;
  if (name == "--bind_cores_to_rank") out.bind_cores = true;
  if (name == "--elastic_training") out.elastic = true;
}

void apply_value(HostFlags& out,
                 std::string_view name,
                 const std::string& typed,
                 const std::string& value) {
  if (name == "--hostfile" || name == "-H") return set_text(out.hostfile, value, typed);
  if (name == "--include" || name == "-i") return set_text(out.filter.include, value, typed);
  if (name == "--exclude" || name == "-e") return set_text(out.filter.exclude, value, typed);
  if (name == "--num_nodes" || name == "--nnodes") return set_num_nodes(out, value, typed);
  if (name == "--node_rank") return set_number(out.node_rank, value, typed);
  if (name == "--master_addr") return set_text(out.master_addr, value, typed);
  if (name == "--master_port") return set_number(out.master_port, value, typed);
  if (name == "--launcher") return set_text(out.launcher, launcher_in(typed, value), typed);
  if (name == "--launcher_args") return set_text(out.launcher_args, value, typed);
  if (name == "--ssh_port") return set_number(out.ssh_port, value, typed);
  if (name == "--min_elastic_nodes") return set_number(out.min_elastic_nodes, value, typed);
  if (name == "--max_elastic_nodes") return set_number(out.max_elastic_nodes, value, typed);
  if (name == "--enable_each_rank_log") return set_text(out.each_rank_log, value, typed);
  if (name == "--rdzv_endpoint") return set_endpoint(out, value, typed);
  if (name == "--bind_core_list") {
    out.core_list = launch::parse_core_list(value, typed);
    return;
  }
  if (name == "--rank") return set_variable("RANK", typed, value);
  if (name == "--world_size") return set_variable("WORLD_SIZE", typed, value);
  if (name == "--host" && value.find(',') != std::string::npos) {
    // `colossalai run` lists hosts, and a process of Colossal-AI names the one where all meet.
    out.listed = hosts::parse_hostfile(value, typed);
    return;
  }
  if (name == "--host") return set_variable("MASTER_ADDR", typed, value);
  set_variable("MASTER_PORT", typed, value);
}

/// Returns whether a word can be a flag's value: "-1" is a number, not a flag.
bool is_value(const std::string& word) {
  return word.size() < 2 || word[0] != '-' || (word[1] >= '0' && word[1] <= '9');
}

bool asks_for_hosts(const HostFlags& flags) {
  return !flags.hostfile.empty() || flags.listed || !flags.filter.include.empty() ||
         !flags.filter.exclude.empty() || flags.filter.num_nodes || !flags.launcher.empty() ||
         flags.force_multi || flags.max_elastic_nodes.value_or(1) > 1;
}

/// The slots of this host are processors, unless a filter names others.
hosts::HostPool local_pool(const HostFlags& flags) {
  hosts::HostSlots host{"localhost", {}};
  const bool named = flags.filter.include.find(':') != std::string::npos;
  const int slots = named ? hosts::kMostSlots : launch::usable_cores();
  for (int slot = 0; slot < slots; ++slot)
    host.slots.push_back(slot);
  return {host};
}

/// The hosts of torchrun's manual start, which have no names.
hosts::HostPool hosts_by_number(int hosts, std::optional<std::int64_t> per_host) {
  hosts::HostPool pool;
  for (int host = 0; host < hosts; ++host) {
    pool.push_back({fmt::format("node-{}", host), {}});
    for (std::int64_t slot = 0; slot < per_host.value_or(1); ++slot)
      pool.back().slots.push_back(static_cast<int>(slot));
  }
  return pool;
}

/// Returns the path of the hostfile to read; empty: there is none.
std::string hostfile_of(const HostFlags& flags, std::vector<std::string>& notes) {
  std::string path = flags.hostfile.empty() ? std::string(kDefaultHostfile) : flags.hostfile;
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown)) return path;
  if (!flags.hostfile.empty())
    notes.push_back(fmt::format("{} does not exist: the ranks run on this host alone", path));
  return "";
}

void note_unused(const HostFlags& flags, std::vector<std::string>& notes) {
  constexpr std::array kOfHosts = {"--rdzv_endpoint",
                                   "--master_addr",
                                   "--master_port",
                                   "--launcher",
                                   "--launcher_args",
                                   "--ssh_port",
                                   "--no_ssh",
                                   "--no_ssh_check",
                                   "--elastic_training",
                                   "--min_elastic_nodes",
                                   "--max_elastic_nodes"};
  for (const std::string& typed : flags.typed) {
    const HostFlag* const flag = find_host_flag(typed);
    if (flag != nullptr &&
        std::find(kOfHosts.begin(), kOfHosts.end(), flag->name) != kOfHosts.end()) {
      const bool elastic = flag->name.find("elastic") != std::string_view::npos;
      notes.push_back(fmt::format("{} has no effect {}",
                                  typed,
                                  elastic ? "on hosts: none are named (--hostfile FILE)"
                                          : "here: ranks of one host are forked and need no "
                                            "rendezvous"));
    }
  }
}

}  // namespace

HostFlags take_host_flags(std::vector<std::string>& words) {
  HostFlags out;
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const HostFlag* const flag = find_host_flag(words[i]);
    if (flag == nullptr) {
      rest.push_back(words[i]);
      continue;
    }
    const std::size_t equals = words[i].find('=');
    const std::string typed = words[i].substr(0, equals);
    out.typed.push_back(typed);
    if (flag->takes == Takes::Nothing) {
      TESSERA_REQUIRE(
          equals == std::string::npos, Config, fmt::format("{} takes no value", typed), "");
      apply_switch(out, flag->name);
      continue;
    }
    const bool next = equals == std::string::npos && i + 1 < words.size();
    const bool is_args = flag->name == "--launcher_args";  // begins with a dash
    TESSERA_REQUIRE(equals != std::string::npos || (next && (is_args || is_value(words[i + 1]))),
                    Config,
                    typed + ": the value is missing",
                    "see: tessera train --help");
    apply_value(out, flag->name, typed, next ? words[++i] : words[i].substr(equals + 1));
  }
  words = std::move(rest);
  // torchrun numbers hosts as they arrive. Of two, that of the endpoint is the first one.
  if (out.meets_at_endpoint && !out.node_rank && out.filter.num_nodes.value_or(1) == 2)
    out.node_rank = hosts::is_this_host(out.master_addr) ? 0 : 1;
  return out;
}

std::vector<std::string> host_flag_names() {
  std::vector<std::string> names;
  for (const HostFlag& flag : kHostFlags) {
    if (flag.name.starts_with("--")) names.emplace_back(flag.name);
  }
  return names;
}

std::string host_flags_help() {
  return "Hosts, slots and cores, as in DeepSpeed:\n"
         "  --hostfile FILE         lines `node-0 slots=4`; a slot runs one rank\n"
         "  -i, --include FILTER    \"node-0@node-1:0,2\": only these hosts and slots\n"
         "  -e, --exclude FILTER    all but these\n"
         "  --host A,B              these hosts, as colossalai run names them; -n: ranks of each\n"
         "  --num_nodes N           the first N hosts; -n: the first slots of each\n"
         "  --master_addr, --master_port, --ssh_port, --launcher_args, --force_multi\n"
         "  --node_rank I           this is host I; every host is started by hand\n"
         "  --bind_cores_to_rank    an equal share of the processors for each rank\n"
         "  --bind_core_list LIST   of these processors: 0,3-5\n"
         "  --elastic_training      go on without lost hosts, and with those that come back\n"
         "  --min_elastic_nodes N, --max_elastic_nodes N   (run.min_hosts, run.max_hosts)\n"
         "  --enable_each_rank_log DIR, --save_pid";
}

launch::LocalStart local_start(const HostFlags& flags) {
  return {.bind_cores = flags.bind_cores || !flags.core_list.empty(),
          .core_list = flags.core_list,
          .log_folder = flags.each_rank_log};
}

HostChoice choose_hosts(const HostFlags& flags, std::optional<std::int64_t> per_host) {
  HostChoice choice;
  if (!flags.elastic && (flags.min_elastic_nodes || flags.max_elastic_nodes))
    choice.notes.emplace_back(
        "--min_elastic_nodes and --max_elastic_nodes have no effect without --elastic_training");
  if (!asks_for_hosts(flags)) {
    note_unused(flags, choice.notes);
    return choice;
  }
  if (const auto launcher = hosts::detect_launcher()) {
    throw Error(Error::Kind::Config,
                fmt::format("{} chooses hosts, but {} started the ranks already",
                            text::join(flags.typed, " "),
                            launcher->name),
                "remove the flags: the launcher determines the hosts");
  }
  hosts::HostFilter filter = flags.filter;
  if (per_host)
    filter.num_per_host = static_cast<int>(std::clamp<std::int64_t>(*per_host, 0, kMostRanks + 1));
  const std::string path = flags.listed ? "" : hostfile_of(flags, choice.notes);
  if (flags.listed) {
    choice.pool = hosts::filter_hosts(*flags.listed, filter);
  } else if (path.empty() && flags.node_rank && filter.num_nodes && *filter.num_nodes > 1) {
    TESSERA_REQUIRE(
        !per_host || (*per_host >= 1 && *per_host <= hosts::kMostSlots),
        Config,
        fmt::format("-n {}: expected 1 to {} ranks a host", *per_host, hosts::kMostSlots),
        "");
    choice.pool = hosts_by_number(*filter.num_nodes, per_host);
  } else if (path.empty() && flags.launcher == "slurm") {
    choice.pool = hosts::slurm_allocation(filter.num_per_host);
    TESSERA_REQUIRE(!choice.pool.empty(),
                    Config,
                    "--launcher slurm: no hostfile names the hosts, and this is not an allocation",
                    "give --hostfile FILE, or type it in an allocation: salloc -N 2");
    filter.num_per_host.reset();
    choice.pool = hosts::filter_hosts(std::move(choice.pool), filter);
  } else if (path.empty()) {
    const int most = flags.hostfile.empty() ? flags.max_elastic_nodes.value_or(1) : 1;
    const int wanted = filter.num_nodes.value_or(std::max(1, most));
    TESSERA_REQUIRE(
        wanted == 1,
        Config,
        fmt::format("{} hosts are wanted, and no hostfile names them", wanted),
        flags.meets_at_endpoint && !flags.elastic
            ? "add --node_rank 0 on the host of --rdzv_endpoint, 1 on the second one, and so on"
            : "give --hostfile FILE with one host a line: node-0 slots=4; or start every host "
              "by hand with --node_rank and --master_addr");
    // Only a filter chooses slots of this host; otherwise -n does.
    if (filter.include.empty() && filter.exclude.empty()) {
      note_unused(flags, choice.notes);
      return choice;
    }
    choice.pool = hosts::filter_hosts(local_pool(flags), filter);
  } else {
    choice.pool = hosts::filter_hosts(hosts::read_hostfile(path), filter);
  }
  choice.several =
      choice.pool.size() > 1 || flags.force_multi || !hosts::is_this_host(choice.pool.front().name);
  if (!choice.several) {
    note_unused(flags, choice.notes);
    return choice;
  }
  choice.by_hand = flags.node_rank.has_value();
  TESSERA_REQUIRE(choice.by_hand || (!flags.no_ssh && flags.launcher != "none"),
                  Config,
                  "without ssh every host is started by hand, and this one has no number",
                  "add --node_rank 0 on the first host, 1 on the second one, and so on");
  TESSERA_REQUIRE(
      !choice.by_hand || *flags.node_rank < static_cast<int>(choice.pool.size()),
      Config,
      fmt::format("--node_rank {}: there are {} hosts", *flags.node_rank, choice.pool.size()),
      fmt::format("choose 0 to {}", choice.pool.size() - 1));
  return choice;
}

std::vector<std::string> use_hosts_key(HostFlags& flags, const json::Value& source) {
  const json::Value* const run = source.is_object() ? source.find("run") : nullptr;
  const json::Value* const hosts =
      run != nullptr && run->is_object() ? run->find("hosts") : nullptr;
  if (hosts == nullptr || hosts->is_null()) return {};
  if (const auto launcher = hosts::detect_launcher()) {
    if (launcher->rank != 0) return {};
    return {fmt::format("run.hosts has no effect: {} started the ranks", launcher->name)};
  }
  if (!flags.hostfile.empty() || flags.listed)
    return {fmt::format("run.hosts has no effect: {} takes precedence",
                        flags.listed ? "--host" : "--hostfile")};
  if (hosts->is_string()) {
    // DeepSpeed lets the file of a flag be missing. The key says that there are hosts, so that its
    // file must exist.
    flags.hostfile = hosts->as_string();
    TESSERA_REQUIRE(std::filesystem::exists(flags.hostfile),
                    Config,
                    fmt::format("run.hosts: {} does not exist", flags.hostfile),
                    "name a hostfile, or list the hosts: [\"node-0 slots=4\"]");
  } else if (hosts->is_array() && !hosts->items().empty()) {
    std::string lines;
    for (const json::Value& line : hosts->items()) {
      if (!line.is_string()) return {};  // the plan says what is wrong
      lines += line.as_string() + "\n";
    }
    flags.listed = hosts::parse_hostfile(lines, "run.hosts");
  }
  return {};
}

hosts::HostPart part_by_hand(const HostFlags& flags, const hosts::HostPool& pool) {
  const std::optional<hosts::MasterAddress> master =
      hosts::find_master_address(flags.master_addr, flags.master_port);
  TESSERA_REQUIRE(master.has_value(),
                  Config,
                  "nothing says where the hosts meet",
                  "add --master_addr with the address of the host of --node_rank 0");
  hosts::HostPart part;
  part.host = *flags.node_rank;
  part.hosts = static_cast<int>(pool.size());
  for (int host = 0; host < part.host; ++host)
    part.first_rank += static_cast<int>(pool[static_cast<std::size_t>(host)].slots.size());
  const hosts::HostSlots& own = pool[static_cast<std::size_t>(part.host)];
  part.local_ranks = static_cast<int>(own.slots.size());
  part.world_size = hosts::num_slots(pool);
  part.name = own.name;
  part.master = master->address;
  part.port = master->port;
  part.secret = hosts::shared_secret(
      fmt::format("by hand {} {}:{}", part.world_size, part.master, part.port));
  return part;
}

void check_start_on_hosts(const HostFlags& flags, const HostChoice& choice, bool elastic) {
  TESSERA_REQUIRE(!elastic || !choice.by_hand,
                  Config,
                  "run.min_hosts and run.restarts start hosts again, and these are started by hand",
                  "name the hosts in a hostfile (--hostfile), or remove the keys");
  TESSERA_REQUIRE(choice.by_hand || flags.launcher != "jsrun",
                  Unsupported,
                  "--launcher jsrun is not built",
                  fmt::format("start the ranks with jsrun -n {} tessera train CONFIG",
                              hosts::num_slots(choice.pool)));
  const bool one_by_one = choice.by_hand || !hosts::cluster_launcher_of(flags.launcher);
  TESSERA_REQUIRE(!elastic || one_by_one,
                  Unsupported,
                  fmt::format("run.min_hosts and run.restarts start hosts again one by one, which "
                              "--launcher {} cannot",
                              flags.launcher),
                  "use --launcher ssh, or remove the keys");
  if (choice.by_hand) static_cast<void>(part_by_hand(flags, choice.pool));
}

int train_on_hosts(const HostFlags& flags,
                   const HostChoice& choice,
                   const std::vector<std::string>& line,
                   bool quiet,
                   const hosts::ElasticOptions* elastic) {
  hosts::RemoteOptions options;
  options.pool = choice.pool;
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.words = line;
  options.master_address = flags.master_addr;
  options.master_port = flags.master_port.value_or(0);
  options.ssh_port = flags.ssh_port;
  if (!choice.by_hand) options.cluster_launcher = hosts::cluster_launcher_of(flags.launcher);
  options.launcher_args = flags.launcher_args;
  options.notice = [](const std::string& text) { log::warn(text); };
  if (!quiet) {
    options.table = [](const std::vector<std::string>& lines) {
      for (const std::string& one : lines)
        std::puts(one.c_str());
      std::fflush(stdout);
    };
  }
  if (choice.by_hand) {
    const hosts::HostPart part = part_by_hand(flags, choice.pool);
    if (part.secret.guessable)
      log::warn(
          "this job has no secret: everyone who can reach " + part.master +
          " may join it; set TESSERA_SECRET_FILE on every host to a file with 32 random bytes "
          "that only you can read");
    options.by_hand = true;
    options.secret = part.secret;
    options.master_address = part.master;
    options.master_port = part.port;
  }
  const hosts::HostsEnd end =
      elastic != nullptr ? hosts::run_elastic(options, *elastic) : hosts::run_job_on_hosts(options);
  if (end.error) throw Error(end.error->kind, end.error->what, end.error->fix);
  return end.code;
}

}  // namespace tessera::cli
