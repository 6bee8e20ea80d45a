// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/cost.h"

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/comm/transports/host_column.h"

namespace tessera::comm {
namespace {

HostColumn column_at(GroupPlace place) {
  HostColumn column;
  column.locals = place.locals;
  column.ranks.resize(static_cast<std::size_t>(place.hosts));
  return column;
}

/// Bytes that the busiest rank reads from other ranks of its host, in accesses that follow each
/// other. What another host has sent is read there as if it were from a rank of this host.
void add_in_host(Sent& out, Kind kind, double bytes, double members, bool chained) {
  out.rounds_in_host = 1;
  const double others = (members - 1) / members;
  switch (kind) {
    case Kind::AllReduce:
      // Beyond one mailbox every rank reduces its part and reads the parts of the others.
      out.bytes_in_host =
          bytes <= static_cast<double>(kMailboxBytes) ? (members - 1) * bytes : 2 * others * bytes;
      if (bytes > static_cast<double>(kMailboxBytes)) out.rounds_in_host = 2;
      return;
    case Kind::ReduceScatter:
      out.rounds_in_host = chained ? 2 : 1;  // inputs of the host, then the sum
      out.bytes_in_host = others * bytes;
      return;
    case Kind::AllGather:
    case Kind::AllToAll:
    case Kind::AllToAllV:  // as if its parts were equal
      out.bytes_in_host = others * bytes;
      return;
    case Kind::Broadcast:
    case Kind::Message:
      out.bytes_in_host = bytes;
      return;
    case Kind::Barrier:
      return;
  }
}

void add_between(
    Sent& out, Kind kind, double bytes, DType dtype, GroupPlace place, Write write, bool& chained) {
  const double hosts = place.hosts, locals = place.locals, members = hosts * locals,
               others = hosts - 1;
  const auto whole = static_cast<std::size_t>(bytes);
  out.rounds_between = 1;
  switch (kind) {
    case Kind::ReduceScatter:
      chained = chain_reduce_scatter(column_at(place), dtype, whole, write);
      if (!chained) {
        out.bytes_between = others / hosts * bytes;
        return;
      }
      // A host in the middle sends the sum on, and its own part of the previous result first.
      out.bytes_between =
          bytes / locals + (write == Write::Accumulate && hosts > 2 ? bytes / members : 0);
      out.rounds_between = hosts + (write == Write::Accumulate ? 1 : 0);
      return;
    case Kind::AllReduce:
      chained = chain_all_reduce(column_at(place), dtype, whole);
      // A host in the middle sends the sum on, and the total back.
      out.bytes_between = chained ? (hosts > 2 ? 2 : 1) * bytes / locals : others * bytes;
      if (chained) out.rounds_between = 2 * others;
      return;
    case Kind::AllGather:
      out.bytes_between = others / members * bytes;
      return;
    case Kind::AllToAll:
    case Kind::AllToAllV:  // as if its parts were equal
      out.bytes_between = others / hosts * bytes;
      return;
    case Kind::Broadcast:
      out.bytes_between = others * bytes;
      return;
    case Kind::Message:
      out.bytes_between = bytes;
      return;
    case Kind::Barrier:
      return;
  }
}

}  // namespace

int times_moved(Kind kind) noexcept {
  return kind == Kind::AllReduce ? 2 : 1;
}

Traffic traffic_of(std::span<const Posted> posted) {
  Traffic out;
  for (const Posted& one : posted) {
    if (one.kind == Kind::Barrier || one.ranks.size() < 2) continue;
    const std::int64_t elements = one.calls * times_moved(one.kind) * one.count;
    out.elements += elements;
    out.bytes += elements * static_cast<std::int64_t>(size_of(one.dtype));
    out.calls += one.calls;
  }
  return out;
}

Sent& Sent::operator+=(const Sent& other) {
  elements += other.elements;
  bytes_in_host += other.bytes_in_host;
  bytes_between += other.bytes_between;
  rounds_in_host += other.rounds_in_host;
  rounds_between += other.rounds_between;
  return *this;
}

Sent operator*(const Sent& one, double times) {
  return {one.elements * times,
          one.bytes_in_host * times,
          one.bytes_between * times,
          one.rounds_in_host * times,
          one.rounds_between * times};
}

Sent sent(Kind kind, double bytes, DType dtype, GroupPlace place, Write write) {
  TESSERA_ASSERT(place.hosts > 0 && place.locals > 0);
  Sent out;
  const double members = static_cast<double>(place.hosts) * place.locals;
  if (members < 2) return out;
  if (kind != Kind::Barrier)
    out.elements = times_moved(kind) * bytes / static_cast<double>(size_of(dtype));
  bool chained = false;
  if (place.hosts > 1) add_between(out, kind, bytes, dtype, place, write, chained);
  add_in_host(out, kind, bytes, members, chained);
  return out;
}

GroupPlace place_of(std::span<const int> ranks, int host_ranks) {
  if (host_ranks <= 0) return {1, static_cast<int>(ranks.size())};
  std::map<int, int> of_host;
  int most = 0;
  for (const int rank : ranks)
    most = std::max(most, ++of_host[rank / host_ranks]);
  return {static_cast<int>(of_host.size()), most};
}

Sent sent(const Posted& posted, int host_ranks) {
  return sent(posted.kind,
              posted.bytes(),
              posted.dtype,
              place_of(posted.ranks, host_ranks),
              posted.write) *
         static_cast<double>(posted.calls);
}

double seconds(const Sent& sent, const Machine& machine) {
  return machine.in_host.seconds(sent.bytes_in_host, sent.rounds_in_host) +
         machine.between_hosts.seconds(sent.bytes_between, sent.rounds_between);
}

}  // namespace tessera::comm
