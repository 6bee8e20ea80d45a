// SPDX-License-Identifier: Apache-2.0
// The section `run`, and the keys that say what a run prints.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/ops/gpu/attention_kernel.h"

namespace tessera::planner {

/// DeepSpeed's number of restarts of an elastic training.
inline constexpr std::int64_t kElasticRestarts = 100;
inline constexpr auto kAttentionKernels = std::to_array<config::Named<ops::AttentionKernel>>(
    {{ops::AttentionKernel::Deterministic, "deterministic"},
     {ops::AttentionKernel::Fastest, "fastest"}});
struct RunOptions {
  std::string dir;              ///< empty: runs/<name of the file>
  std::string device = "auto";  ///< memory::device_of_rank()
  ops::AttentionKernel attention_kernel = ops::AttentionKernel::Deterministic;
  std::optional<std::int64_t> threads_per_rank;
  json::Value hosts;               ///< path of a hostfile, or its lines as a list; null: this host
  std::string transport = "auto";  ///< comm::link_choices()
  /// Number of times that the job goes on by itself after it lost a rank or a host. Absent: 0, or
  /// kElasticRestarts if min_hosts is given.
  std::optional<std::int64_t> restarts;
  /// Bounds of the hosts on which an elastic training goes on; absent: all hosts of the hostfile.
  std::optional<std::int64_t> min_hosts, max_hosts;
  [[nodiscard]] bool elastic() const { return min_hosts.has_value(); }
  [[nodiscard]] int most_restarts() const {
    return static_cast<int>(restarts.value_or(elastic() ? kElasticRestarts : 0));
  }
  std::vector<std::string> derived;  ///< in a resolved configuration: see make_plan()
  void describe(config::Fields& fields);
};

/// The printing of a run; keys of the top level of a configuration.
struct Printing {
  std::int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false, memory_breakdown = false;
};

}  // namespace tessera::planner
