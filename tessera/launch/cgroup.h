// SPDX-License-Identifier: Apache-2.0
// Limits and counters of this process's control group, versions 1 and 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::launch {

/// The mount points of /proc and of the control groups; tests use folders of their own.
struct Roots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// The control group of this process and its ancestors, whose limits also apply. Everything that
/// cannot be read counts as absent, because a container may hide any of it. Threads: any.
class Cgroup {
 public:
  explicit Cgroup(const Roots& roots = {});

  /// Returns the CPU quota in processors: 1.5 means one and a half. Nothing: no quota.
  [[nodiscard]] std::optional<double> cpu_quota() const;
  /// Returns the smallest memory limit. Nothing: no limit.
  [[nodiscard]] std::optional<std::uint64_t> memory_limit() const;
  /// Returns the memory left under the limits; page cache that can be dropped counts as free.
  /// Nothing: no limit.
  [[nodiscard]] std::optional<std::uint64_t> memory_left() const;
  /// Returns how often the kernel's OOM killer has killed a process of this group. Nothing:
  /// unknown.
  [[nodiscard]] std::optional<std::uint64_t> oom_kills() const;

 private:
  std::vector<std::filesystem::path> memory_, cpu_;  // innermost first
  bool memory_v2_ = false, cpu_v2_ = false;
};

}  // namespace tessera::launch
