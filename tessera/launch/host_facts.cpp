// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/host_facts.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <span>

#include <dlfcn.h>
#include <fmt/core.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

std::string build_of_this_library() {
  try {
    Dl_info place{};
    if (dladdr(reinterpret_cast<const void*>(&facts_of_this_host), &place) == 0) return "";
    const std::string file = files::read(place.dli_fname);
    return files::hex64(files::xxh3(std::as_bytes(std::span(file))));
  } catch (const std::exception&) {
    return "";  // the file was removed or replaced while the program runs
  }
}

}  // namespace

HostFacts facts_of_this_host() {
  static const std::string kBuild = build_of_this_library();
  HostFacts facts;
  facts.build = kBuild;
  facts.cores = usable_cores();
  facts.memory = available_memory();
  std::error_code unknown;
  facts.disk = files::free_bytes(std::filesystem::current_path(unknown));
  facts.clock_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return facts;
}

std::vector<std::string> host_table(const std::vector<HostFacts>& hosts,
                                    const std::vector<double>& now_s) {
  std::size_t width = 4;
  for (const HostFacts& host : hosts)
    width = std::max(width, host.name.size());
  std::vector<std::string> lines = {fmt::format("{:<{}}  {:>9}  {:>5}  {:>11}  {:>11}  {:>8}  {}",
                                                "host",
                                                width,
                                                "ranks",
                                                "cores",
                                                "free memory",
                                                "free disk",
                                                "build",
                                                "clock")};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostFacts& host = hosts[i];
    const std::string ranks =
        host.ranks == 1 ? fmt::format("{}", host.first_rank)
                        : fmt::format("{}-{}", host.first_rank, host.first_rank + host.ranks - 1);
    lines.push_back(fmt::format("{:<{}}  {:>9}  {:>5}  {:>11}  {:>11}  {:>8}  {:+.1f} s",
                                host.name,
                                width,
                                ranks,
                                host.cores,
                                text::bytes(host.memory),
                                text::bytes(host.disk),
                                host.build.substr(0, 8),
                                host.clock_s - now_s[i]));
  }
  return lines;
}

}  // namespace tessera::launch
