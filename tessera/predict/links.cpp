// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/links.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::predict {
namespace {

void require_link(const DescribedMachine& machine) {
  TESSERA_REQUIRE(
      machine.rates.between_hosts.bytes_per_s > 0,
      Config,
      fmt::format("{}: between_hosts: the rate is missing, and the ranks are on several "
                  "hosts",
                  machine.name),
      "--network ib400 (or another one of share/machines/networks.json), or tessera "
      "bench comm measures a link");
}

Transfer of_rings(comm::Kind kind,
                  double bytes,
                  comm::GroupPlace place,
                  const DescribedMachine& machine) {
  const double hosts = place.hosts, locals = place.locals, n = hosts * locals;
  const Rate &in = machine.rates.in_host, &between = machine.rates.between_hosts;
  const bool whole = kind == comm::Kind::Broadcast;
  const double moved = comm::times_moved(kind) * (whole ? 1.0 : (n - 1) / n) * bytes;
  const double latency =
      comm::times_moved(kind) * ((locals - 1) * in.latency_s + (hosts - 1) * between.latency_s);
  if (kind == comm::Kind::Barrier) return {.seconds = latency};
  if (place.hosts == 1)
    return {.seconds = latency + moved / in.bytes_per_s, .bytes_in_host = moved};
  if (kind == comm::Kind::AllToAll || kind == comm::Kind::AllToAllV) {
    const double out = (hosts - 1) / hosts * bytes, inside = (locals - 1) / n * bytes;
    return {.seconds = latency + std::max(out / between.bytes_per_s, inside / in.bytes_per_s),
            .bytes_in_host = inside,
            .bytes_between = out};
  }
  const double links = locals * between.bytes_per_s;
  const double rate = place.locals == 1 ? links : std::min(links, in.bytes_per_s);
  return {.seconds = latency + moved / rate,
          .bytes_in_host = place.locals == 1 ? 0 : moved * (locals - 1) / locals,
          .bytes_between = moved / locals};
}

}  // namespace

Transfer transfer(comm::Kind kind,
                  double bytes,
                  DType dtype,
                  comm::GroupPlace place,
                  const DescribedMachine& machine,
                  comm::Write write) {
  const bool nothing = bytes <= 0 && kind != comm::Kind::Barrier;
  if (place.hosts * place.locals <= 1 || nothing) return {};
  if (place.hosts > 1) require_link(machine);
  if (machine.collectives == Collectives::Ring) return of_rings(kind, bytes, place, machine);
  const comm::Sent sent = comm::sent(kind, bytes, dtype, place, write);
  return {.seconds = comm::seconds(sent, machine.rates),
          .bytes_in_host = sent.bytes_in_host,
          .bytes_between = sent.bytes_between};
}

Transfer transfer(const comm::Posted& posted, const DescribedMachine& machine) {
  const comm::GroupPlace place = comm::place_of(posted.ranks, machine.rates.host_ranks);
  if (posted.kind == comm::Kind::Message)
    return message(posted.bytes(), place.hosts == 1, machine) * static_cast<double>(posted.calls);
  return transfer(posted.kind, posted.bytes(), posted.dtype, place, machine, posted.write) *
         static_cast<double>(posted.calls);
}

Transfer message(double bytes, bool same_host, const DescribedMachine& machine) {
  if (same_host) return {.seconds = machine.rates.in_host.seconds(bytes), .bytes_in_host = bytes};
  require_link(machine);
  return {.seconds = machine.rates.between_hosts.seconds(bytes), .bytes_between = bytes};
}

comm::GroupPlace place_of(int members, int stride, int host_ranks) {
  if (host_ranks == 0) return {.hosts = 1, .locals = members};
  const int locals = std::clamp(host_ranks / std::max(stride, 1), 1, members);
  return {.hosts = (members + locals - 1) / locals, .locals = locals};
}

}  // namespace tessera::predict
