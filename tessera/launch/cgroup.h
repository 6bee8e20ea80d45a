// SPDX-License-Identifier: Apache-2.0
// What the control group of this process allows and counts, versions 1 and 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::launch {

/// Where the kernel shows processes and control groups; tests put folders of their own here.
struct Roots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// The group that this process is in and those around it, whose limits hold too. Everything that
/// cannot be read counts as absent: a container may hide any of it. Threads: any.
class Cgroup {
 public:
  explicit Cgroup(const Roots& roots = {});

  /// Processors' worth of time: 1.5 means one and a half. Nothing: no quota.
  [[nodiscard]] std::optional<double> cpu_quota() const;
  /// The smallest limit. Nothing: none.
  [[nodiscard]] std::optional<std::uint64_t> memory_limit() const;
  /// What the limits leave, page cache that can be dropped counted as free. Nothing: no limit.
  [[nodiscard]] std::optional<std::uint64_t> memory_left() const;
  /// How often the kernel killed a process here for memory, so far. Nothing: not told.
  [[nodiscard]] std::optional<std::uint64_t> oom_kills() const;

 private:
  std::vector<std::filesystem::path> memory_, cpu_;  // innermost first
  bool memory_v2_ = false, cpu_v2_ = false;
};

}  // namespace tessera::launch
