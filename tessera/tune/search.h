// SPDX-License-Identifier: Apache-2.0
// Searches the layouts of a training by their predicted time, without running anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/memory.h"
#include "tessera/tune/space.h"

namespace tessera::tune {

/// The aim of a search, of the smallest value: throughput and latency are both the time of a step,
/// because the global batch does not change.
enum class Metric : std::uint8_t { Throughput, Latency, Flops, Memory, Cost };
/// Throws Error{Config} with the known names.
Metric metric_of(const std::string& name);
std::string name(Metric metric);

/// A choice whose time and memory are predicted.
struct Candidate {
  Choice choice;
  predict::StepTime time;
  planner::MemoryEstimate memory;
  /// The value that the search minimizes: seconds, bytes of a rank, or the price of a step.
  double value = 0;
};

/// Choices that were not looked at further, and the reason.
struct NotTried {
  std::string why;
  std::size_t count = 0;
  std::string example;  ///< text_of() of one of them
};

struct SearchOptions {
  Fixed fixed;
  Metric metric = Metric::Throughput;
  /// Numbers of ranks to compare; empty: that of the configuration.
  std::vector<int> ranks;
  /// The cores that the ranks of a host share, from which their threads follow; 0: threads are
  /// kept.
  int cores = 0;
  /// Bytes of a rank; 0: DescribedMachine::memory_bytes.
  std::function<double(int ranks)> memory = {};
  std::size_t most = 20;             ///< candidates that are returned
  std::size_t most_predicted = 600;  ///< choices that are simulated
  std::int64_t least_micro = 1, most_micro = 1 << 20;
};

struct Found {
  std::vector<Candidate> best;  ///< in the order of their value
  std::vector<NotTried> not_tried;
  std::size_t choices = 0;    ///< all that were enumerated
  std::size_t predicted = 0;  ///< of them simulated
};

/// Enumerates all choices, orders them by a bound of their time, and predicts them in that order
/// until no other one can be among the best. The bound: the computation of the blocks, divided
/// evenly over the stages, with the schedule's bubble, and the memory of weights, gradients and
/// optimizer; it is exact but for rounding where work grows as the micro-batch does. Deterministic.
/// Starts nothing. Throws Error{Memory} with the nearest candidate if none fits, and Error{Config}
/// if there is none.
Found search(Space& space, const SearchOptions& options);

/// The candidate of one choice. Throws the errors of its plan.
Candidate candidate_of(Space& space, const Choice& choice, Metric metric);

}  // namespace tessera::tune
