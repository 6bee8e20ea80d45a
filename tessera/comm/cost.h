// SPDX-License-Identifier: Apache-2.0
// The cost of collectives and messages: what the busiest rank moves, and the seconds that this
// takes on a machine. All functions are pure. The counters of transports (Transport::traffic()) are
// the measured side of the same numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/machine.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/transports/ring.h"
#include "tessera/comm/transports/travel_memory.h"

namespace tessera::comm {

/// Equal operations that a rank posts: the collectives of one group, or messages to one peer.
struct Posted {
  Kind kind = Kind::Barrier;
  std::vector<int> ranks;  ///< members of the group in order; of a message: this rank and its peer
  DType dtype = DType::F32;
  /// Elements of the whole vector: of the input of a reduce-scatter or an all-to-all, of the output
  /// of an all-gather, of the data of any other operation.
  std::int64_t count = 0;
  Write write = Write::Store;
  std::int64_t calls = 1;

  [[nodiscard]] double bytes() const {
    return static_cast<double>(count) * static_cast<double>(size_of(dtype));
  }
};

/// How often an operation's vector counts in the traffic: an all-reduce moves it twice.
int times_moved(Kind kind) noexcept;
/// The traffic that a transport counts for these operations.
Traffic traffic_of(std::span<const Posted> posted);

/// The data that operations move for the busiest rank.
struct Sent {
  double elements = 0;       ///< as Traffic counts them
  double bytes_in_host = 0;  ///< read from the memory of other ranks of the host
  double bytes_between = 0;  ///< sent to other hosts
  /// Accesses and messages that follow each other, each with the latency of its channel.
  double rounds_in_host = 0, rounds_between = 0;

  Sent& operator+=(const Sent& other);
  friend Sent operator*(const Sent& one, double times);
};
/// One operation on a vector of `bytes` whole bytes.
///
/// In a host a rank reads its part of every other member's input: (n - 1) / n of the bytes for n
/// members, twice for an all-reduce. Between H hosts with L members each, a reduce-scatter sends
/// (H - 1) / H of the input, or, if sums go from host to host, bytes / L of it (host_column.h
/// decides as the transport does); an all-gather (H - 1) / n; an all-reduce the input to each other
/// host, or bytes / L and from three hosts on twice that; a broadcast the data to each other host.
Sent sent(Kind kind, double bytes, DType dtype, GroupPlace place, Write write = Write::Store);
/// The place of ranks if each host has `host_ranks` consecutive ones; 0: all are on one host. Where
/// hosts have different numbers of members, the place has the larger number on each.
GroupPlace place_of(std::span<const int> ranks, int host_ranks);
/// All calls of `posted`.
Sent sent(const Posted& posted, int host_ranks);

/// Seconds of operations that follow each other.
double seconds(const Sent& sent, const Machine& machine);

}  // namespace tessera::comm
