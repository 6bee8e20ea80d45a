// SPDX-License-Identifier: Apache-2.0
// The time of collectives and messages on a described machine.
#pragma once

#include "tessera/comm/cost.h"
#include "tessera/predict/described_machine.h"

namespace tessera::predict {

/// The transfers of a rank: seconds, and bytes that it sends over each kind of link.
struct Transfer {
  double seconds = 0, bytes_in_host = 0, bytes_between = 0;
  Transfer& operator+=(const Transfer& other) {
    seconds += other.seconds;
    bytes_in_host += other.bytes_in_host;
    bytes_between += other.bytes_between;
    return *this;
  }
  friend Transfer operator*(Transfer one, double times) {
    return {times * one.seconds, times * one.bytes_in_host, times * one.bytes_between};
  }
};

/// One operation on a vector of `bytes` whole bytes.
///
/// With Collectives::Ring and n members, an all-gather, a reduce-scatter and an all-to-all move
/// (n - 1) / n of the vector, an all-reduce twice that. Where a host has L members, L rings share
/// its links to the next host, so that a rank moves its bytes at the rate of L links, but not
/// faster than within a host. Source: NCCL's performance tests. With Collectives::Own: comm/cost.h.
/// Throws Error{Config} if members are on several hosts and the machine has no link between them.
Transfer transfer(comm::Kind kind,
                  double bytes,
                  DType dtype,
                  comm::GroupPlace place,
                  const DescribedMachine& machine,
                  comm::Write write = comm::Write::Store);
/// All calls of `posted`.
Transfer transfer(const comm::Posted& posted, const DescribedMachine& machine);
/// A message to a rank of the same host, or of another one.
Transfer message(double bytes, bool same_host, const DescribedMachine& machine);

/// The place of `members` ranks that are `stride` ranks apart.
comm::GroupPlace place_of(int members, int stride, int host_ranks);

}  // namespace tessera::predict
