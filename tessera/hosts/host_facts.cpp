// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/host_facts.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <elf.h>
#include <fmt/core.h>
#include <link.h>

#include "tessera/base/content_hash.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/launch/launch.h"

namespace tessera::hosts {
namespace {

std::string build_of_this_library() {
  try {
    Dl_info place{};
    if (dladdr(reinterpret_cast<const void*>(&facts_of_this_host), &place) == 0) return "";
    std::error_code unknown;
    std::vector<std::filesystem::path> files = {place.dli_fname};
    // A program that uses the library may have blocks of its own.
    const std::filesystem::path program = std::filesystem::canonical("/proc/self/exe", unknown);
    if (!unknown && !std::filesystem::equivalent(program, files.front(), unknown))
      files.push_back(program);
    return files::hex64(files::content_hash(files));
  } catch (const std::exception&) {
    return "";  // the file was removed or replaced while the program runs
  }
}

/// Finds the identity that the linker gave to libtorch, or else the place of its code in the file.
int find_torch(dl_phdr_info* info, std::size_t, void* out) {
  constexpr std::string_view kName = "libtorch_cpu.so";
  if (info->dlpi_name == nullptr ||
      std::string_view(info->dlpi_name).find(kName) == std::string_view::npos)
    return 0;
  std::uint64_t hash = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    hash = files::xxh3(std::as_bytes(std::span(&part, 1))) ^ (hash * 31);
    if (part.p_type != PT_NOTE) continue;
    const auto* const notes = reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr);
    hash ^= files::xxh3(std::span(notes, part.p_memsz));
  }
  *static_cast<std::string*>(out) = files::hex64(hash);
  return 1;
}

std::string loaded_torch() {
  std::string found;
  dl_iterate_phdr(find_torch, &found);
  return found;
}

std::string first_of(const std::string& hash) {
  constexpr std::size_t kShown = 8;
  return hash.substr(0, kShown);
}

}  // namespace

HostFacts facts_of_this_host(const std::string& folder) {
  static const std::string kBuild = build_of_this_library();
  HostFacts facts;
  facts.version = kTesseraVersion;
  facts.build = kBuild;
  facts.torch = loaded_torch();
  facts.cores = launch::usable_cores();
  facts.memory = launch::available_memory();
  std::error_code unknown;
  std::filesystem::path place = std::filesystem::absolute(folder.empty() ? "." : folder, unknown);
  while (!std::filesystem::exists(place, unknown) && place.has_relative_path())
    place = place.parent_path();
  facts.disk = files::free_bytes(place);
  facts.clock_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return facts;
}

std::optional<HostProblem> folder_problem(const HostFacts& host,
                                          const HostFacts& first,
                                          bool is_shared) {
  if (!is_shared && host.must_share) {
    return HostProblem{
        Error::Kind::Config,
        fmt::format("host {} does not see the run folder of host {}: {}",
                    host.name,
                    first.name,
                    first.folder),
        "put run.dir on a disk that all hosts share, or keep the parts of each host on its own: "
        "--set checkpoint.use_node_local_storage=true"};
  }
  if (!is_shared || !host.must_own) return std::nullopt;
  return HostProblem{
      Error::Kind::Config,
      fmt::format("hosts {} and {} share the run folder {}, in which each would save its part of a "
                  "checkpoint in place of the other's",
                  first.name,
                  host.name,
                  first.folder),
      "set checkpoint.use_node_local_storage to false, or run.dir to a folder on a disk of each "
      "host"};
}

HostProblem problem_of(const Error& error) {
  return {error.kind(), error.what(), error.fix()};
}

std::vector<HostProblem> problems_of(const HostFacts& host, const HostFacts& first) {
  std::vector<HostProblem> out;
  for (const std::string& problem : host.problems)
    out.push_back({Error::Kind::Config, fmt::format("host {}: {}", host.name, problem), ""});
  if (host.version != first.version) {
    out.push_back({Error::Kind::Config,
                   fmt::format("host {} runs tessera {} and host {} runs {}",
                               host.name,
                               host.version,
                               first.name,
                               first.version),
                   "install the same program on every host, at the same path"});
  } else if (host.build != first.build) {
    out.push_back({Error::Kind::Config,
                   fmt::format("host {} runs another build of tessera than host {}: {} and {}",
                               host.name,
                               first.name,
                               first_of(host.build),
                               first_of(first.build)),
                   "install the same program on every host, at the same path"});
  }
  if (host.torch != first.torch) {
    out.push_back({Error::Kind::Config,
                   fmt::format("host {} has another libtorch than host {}: {} and {}",
                               host.name,
                               first.name,
                               first_of(host.torch),
                               first_of(first.torch)),
                   "run tools/setup.sh of the same version on every host"});
  }
  for (FactDifference& one : differences(host.name, host.facts, first.name, first.facts))
    out.push_back({Error::Kind::Config, std::move(one.what), std::move(one.fix)});
  return out;
}

std::string missing_hosts(const std::vector<std::pair<std::string, int>>& hosts,
                          const std::vector<std::pair<int, int>>& here,
                          int world_size) {
  std::vector<bool> arrived(static_cast<std::size_t>(world_size));
  for (const auto& [first, ranks] : here) {
    for (int rank = std::max(first, 0); rank < std::min(first + ranks, world_size); ++rank)
      arrived[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<std::string> names;
  auto begin = arrived.begin();
  for (const auto& [name, ranks] : hosts) {
    const auto end = begin + std::min<std::ptrdiff_t>(ranks, arrived.end() - begin);
    if (std::find(begin, end, false) != end) names.push_back(name);
    begin = end;
  }
  if (!names.empty()) return (names.size() > 1 ? "hosts " : "host ") + text::join_some(names, ", ");
  std::string ranks;
  for (std::size_t rank = 0; rank < arrived.size();) {
    std::size_t end = rank;
    while (end < arrived.size() && !arrived[end])
      ++end;
    if (end > rank) ranks += fmt::format("{}{}-{}", ranks.empty() ? "" : ", ", rank, end - 1);
    rank = end + 1;
  }
  return ranks.empty() ? "" : "the hosts of ranks " + ranks;
}

HostProblem joined(const std::vector<HostProblem>& problems) {
  if (problems.size() == 1) return problems.front();
  HostProblem out{
      problems.front().kind, fmt::format("the hosts have {} problems:", problems.size()), ""};
  std::vector<std::string> fixes;
  for (const HostProblem& problem : problems) {
    out.what += "\n  - " + problem.what;
    if (!problem.fix.empty() && std::ranges::find(fixes, problem.fix) == fixes.end())
      fixes.push_back(problem.fix);
  }
  out.fix = text::join(fixes, "; ");
  return out;
}

std::vector<std::string> host_table(const std::vector<HostFacts>& hosts,
                                    const std::vector<double>& now_s,
                                    const std::vector<std::string>& folders) {
  std::size_t width = 4;
  for (const HostFacts& host : hosts)
    width = std::max(width, host.name.size());
  std::vector<std::string> lines = {
      fmt::format("{:<{}}  {:>9}  {:>5}  {:>11}  {:>11}  {:>10}  {:>8}  {:>8}  {}",
                  "host",
                  width,
                  "ranks",
                  "cores",
                  "free memory",
                  "free disk",
                  "run folder",
                  "build",
                  "libtorch",
                  "clock")};
  const auto any = [&](const char* kind) {
    return std::ranges::find(folders, kind) != folders.end();
  };
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostFacts& host = hosts[i];
    // The others look for the folder of the first one.
    const std::string folder = i > 0           ? folders[i]
                               : any("own")    ? "own"
                               : any("shared") ? "shared"
                                               : "-";
    const std::string ranks =
        host.ranks == 1 ? fmt::format("{}", host.first_rank)
                        : fmt::format("{}-{}", host.first_rank, host.first_rank + host.ranks - 1);
    lines.push_back(
        fmt::format("{:<{}}  {:>9}  {:>5}  {:>11}  {:>11}  {:>10}  {:>8}  {:>8}  {:+.1f} s",
                    host.name,
                    width,
                    ranks,
                    host.cores,
                    text::bytes(host.memory),
                    text::bytes(host.disk),
                    folder,
                    first_of(host.build),
                    host.torch.empty() ? "-" : first_of(host.torch),
                    host.clock_s - now_s[i]));
  }
  return lines;
}

}  // namespace tessera::hosts
