// SPDX-License-Identifier: Apache-2.0
// Flight recorder: the last operations of every rank, in memory that the other ranks of its host
// can read, and the files that are written when the world breaks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/control_page.h"

namespace tessera::comm {

/// One posted operation. Plain bytes and atomics: a rank of another process reads it.
struct FlightEntry {
  std::atomic<std::uint64_t> number;    ///< number among the rank's operations, from 1; stored last
  std::atomic<std::uint64_t> done;      ///< equal to `number` once the rank has waited for it
  std::atomic<std::uint64_t> sequence;  ///< its number among the operations of its group
  std::atomic<std::int64_t> step;
  std::array<std::atomic<std::uint64_t>, 5> ranks;  ///< text: the ranks of the group, "0-3"
  std::array<std::atomic<std::uint64_t>, 15> what;  ///< text: "all_reduce loss at x.cpp:12"
};

/// The last operations of one rank; zero-filled in the beginning.
struct FlightRing {
  static constexpr std::size_t kEntries = 64;
  std::array<FlightEntry, kEntries> entries;

  void post(std::uint64_t number,
            std::uint64_t sequence,
            std::int64_t step,
            std::string_view ranks,
            std::string_view what) noexcept;
  void finish(std::uint64_t number) noexcept;
};

/// An entry in the form of a file.
struct FlightRecord {
  std::uint64_t number = 0, sequence = 0;
  std::int64_t step = -1;
  std::string ranks, what;
  bool done = false;
};
/// Returns the complete entries of a ring, oldest first. Entries that are being overwritten are
/// left out.
std::vector<FlightRecord> read_flight(const FlightRing& ring);

/// Returns the ranks in short form, "0-3,8", truncated to the size of an entry.
std::string short_list(const std::vector<int>& ranks);

/// Sets the folder into which the ranks of this process write their records if the world breaks,
/// and the name of their host, which is empty if the job has one host; call it once. Like the log
/// file, there is one folder per process. Empty: none.
void set_flight_folder(const std::string& folder, const std::string& host = "");
/// Writes `flight_rank_00003.jsonl`: a line about the rank, then one for each record. Does nothing
/// without a folder; write errors are ignored, because a more important error is under way.
void write_flight(int rank, const FlightRing& ring, ControlPage& control) noexcept;

}  // namespace tessera::comm
