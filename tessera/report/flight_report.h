// SPDX-License-Identifier: Apache-2.0
// Reads the flight recorders of a broken run: who waited for whom, and who did not call what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::report {

/// One posted operation.
struct FlightOperation {
  std::int64_t number = 0, sequence = 0, step = -1;
  std::string ranks, what;
  bool done = false;
};
/// The record of one rank.
struct FlightLog {
  int rank = 0, ranks = 0, waits_for = -1;
  std::int64_t step = -1, posted = 0;
  bool broke_it = false;
  std::string host;     ///< empty: the job has one host
  std::string message;  ///< why the rank stopped
  std::vector<FlightOperation> operations;
};

/// The most ranks whose records are read.
inline constexpr int kMostFlightLogs = 65536;

/// Reads the files `flight_rank_*.jsonl` of a folder, by rank. Throws Error{Format} with file and
/// line for one that is malformed or longer than 1 MiB, and Error{Io}.
std::vector<FlightLog> read_flight_logs(const std::filesystem::path& folder);

/// Returns one line for each rank, "rank 2 of host node-b: step 12, its operation 340: all_reduce
/// loss ..., waits for rank 3", then the findings: the rank that broke the run, why the others
/// stopped if that is something else, such as a host that was lost, ranks without a record,
/// operations that some ranks of a group called and others did not, and operations in which they
/// differ. The first such operation of each group counts. `cause`: the reason that the job gives
/// for its end; empty if it gives none. Where the reason is known, from there or because a rank
/// broke the run, only the ranks that it names are said to lack a call: the others stopped with
/// them.
std::vector<std::string> explain_flight(const std::vector<FlightLog>& logs,
                                        const std::string& cause = "");

/// Returns the ranks of "0-3,8"; nothing for a text that was cut or is malformed.
std::vector<int> ranks_of_list(const std::string& text);

}  // namespace tessera::report
