// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include "tessera/base/text.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

// Version 1 represents "no limit" by the largest multiple of a page.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::string slurp(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::int64_t> integer(std::string_view text) {
  text = text::trim(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return INT64_MAX;
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> counter(const fs::path& path) {
  const auto value = integer(slurp(path));
  if (!value || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

// Returns the number after `key` in a file of "key number" lines.
std::optional<std::uint64_t> counter(const fs::path& path, const std::string& key) {
  std::istringstream lines(slurp(path));
  std::string name;
  std::int64_t value = 0;
  while (lines >> name >> value) {
    if (name == key && value >= 0) return static_cast<std::uint64_t>(value);
  }
  return std::nullopt;
}

// Returns the group's folder and its ancestors up to the mount. A container may see the mount but
// not its own path in it.
std::vector<fs::path> chain(const fs::path& mount, const std::string& path) {
  std::vector<fs::path> folders;
  const fs::path inside = fs::path(path).relative_path();
  std::error_code ignored;
  for (fs::path at = inside; !at.empty(); at = at.parent_path()) {
    if (fs::is_directory(mount / at, ignored)) folders.push_back(mount / at);
  }
  folders.push_back(mount);
  return folders;
}

struct Membership {
  std::string memory, cpu, unified;  // paths; empty: not in a hierarchy of this kind
};

Membership membership(const Roots& roots) {
  Membership found;
  std::istringstream lines(slurp(roots.proc / "self" / "cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (names.empty()) found.unified = path;
    for (const std::string& name : text::split(names, ',')) {
      if (name == "memory") found.memory = path;
      if (name == "cpu") found.cpu = path;
    }
  }
  return found;
}

// Returns the folder under which a version 1 controller is mounted.
fs::path mount_of(const Roots& roots, const char* controller) {
  std::error_code ignored;
  if (fs::is_directory(roots.cgroup / controller, ignored)) return roots.cgroup / controller;
  return roots.cgroup / (std::string(controller) + ",cpuacct");
}

}  // namespace

Cgroup::Cgroup(const Roots& roots) {
  const Membership in = membership(roots);
  memory_v2_ = in.memory.empty();
  cpu_v2_ = in.cpu.empty();
  memory_ =
      memory_v2_ ? chain(roots.cgroup, in.unified) : chain(mount_of(roots, "memory"), in.memory);
  cpu_ = cpu_v2_ ? chain(roots.cgroup, in.unified) : chain(mount_of(roots, "cpu"), in.cpu);
}

std::optional<double> Cgroup::cpu_quota() const {
  std::optional<double> smallest;
  for (const fs::path& folder : cpu_) {
    std::optional<std::int64_t> quota, period;
    if (cpu_v2_) {
      std::istringstream words(slurp(folder / "cpu.max"));  // "max 100000" or "150000 100000"
      std::string first, second;
      words >> first >> second;
      quota = integer(first);
      period = integer(second);
    } else {
      quota = integer(slurp(folder / "cpu.cfs_quota_us"));  // -1: no quota
      period = integer(slurp(folder / "cpu.cfs_period_us"));
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) continue;
    const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
    smallest = std::min(smallest.value_or(cores), cores);
  }
  return smallest;
}

std::optional<std::uint64_t> Cgroup::memory_limit() const {
  std::optional<std::uint64_t> smallest;
  for (const fs::path& folder : memory_) {
    const auto limit = counter(folder / (memory_v2_ ? "memory.max" : "memory.limit_in_bytes"));
    if (limit && *limit < kNoLimit) smallest = std::min(smallest.value_or(*limit), *limit);
  }
  return smallest;
}

std::optional<std::uint64_t> Cgroup::memory_left() const {
  std::optional<std::uint64_t> smallest;
  for (const fs::path& folder : memory_) {
    const auto limit = counter(folder / (memory_v2_ ? "memory.max" : "memory.limit_in_bytes"));
    if (!limit || *limit >= kNoLimit) continue;
    const std::uint64_t used =
        counter(folder / (memory_v2_ ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const std::uint64_t cache =
        counter(folder / "memory.stat", memory_v2_ ? "inactive_file" : "total_inactive_file")
            .value_or(0);
    const std::uint64_t held = used - std::min(used, cache);
    const std::uint64_t left = *limit - std::min(*limit, held);
    smallest = std::min(smallest.value_or(left), left);
  }
  return smallest;
}

std::optional<std::uint64_t> Cgroup::oom_kills() const {
  // The innermost group only: its ancestors also count other jobs.
  return counter(memory_.front() / (memory_v2_ ? "memory.events" : "memory.oom_control"),
                 "oom_kill");
}

}  // namespace tessera::launch
