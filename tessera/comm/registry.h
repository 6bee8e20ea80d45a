// SPDX-License-Identifier: Apache-2.0
// The registered transports between ranks and links between hosts, and the world of a rank that
// they make. docs/adding/transport.md shows how to add one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/base/control_page.h"
#include "tessera/base/dtype.h"
#include "tessera/base/registry.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/transports/host_link.h"
#include "tessera/comm/world.h"
#include "tessera/hosts/store_client.h"
#include "tessera/launch/launch.h"
#include "tessera/mesh/mesh.h"

namespace tessera::comm {

/// The facts from which the transports of a rank are made.
struct WorldNeeds {
  const launch::RankInfo& info;           ///< with a control page
  const hosts::HostPart* part = nullptr;  ///< of a job on several hosts, else null
  const mesh::Mesh& mesh;
  Device device = {};         ///< of the model's tensors
  std::string link = "auto";  ///< the link between hosts (run.transport)
  double connect_s = 60;      ///< time for all ranks of the job to connect with each other
};

struct MadeTransport {
  std::unique_ptr<Transport> transport;
  World::Host host;
};

/// A way for the ranks of a job to exchange memory of one kind of device.
struct TransportEntry {
  DeviceKind moves = DeviceKind::Cpu;
  /// The transport with the smallest number is chosen among those that can be used.
  int rank_of_choice = 0;
  /// Says why the transport cannot connect these ranks; an empty string means that it can. Gives
  /// the same answer on all ranks of the job. Cheap.
  std::string (*why_not)(const WorldNeeds& needs) = nullptr;
  /// Makes the transport of this rank. Collective. `control` outlives the transport; `host` is the
  /// transport of the host's memory if this one moves memory of a device, else null.
  MadeTransport (*make)(const WorldNeeds& needs,
                        ControlPage* control,
                        const std::shared_ptr<Transport>& host) = nullptr;
};
Registry<TransportEntry>& transports();
#define TESSERA_TRANSPORT(name, ...)                     \
  static const bool TESSERA_UNIQUE(tessera_transport_) = \
      ::tessera::comm::transports().add(name, __VA_ARGS__)

/// A way for messages to travel between hosts. The transport "hosts" makes collectives of it, and
/// authenticates the messages.
struct LinkEntry {
  /// The one with the smallest number is "auto".
  int rank_of_choice = 0;
  /// Throws if the link cannot be used by ranks that were started as this process, with the line to
  /// type: Error{Unsupported}, Error{Environment} or Error{Config}. nullptr: it always can.
  void (*check)() = nullptr;
  /// Connects this rank with those of the other hosts, with the help of values that the ranks
  /// exchange. Collective. Throws Error{Comm} if that takes longer than `timeout_s`.
  std::unique_ptr<HostLink> (*connect)(int rank,
                                       const hosts::HostPart& part,
                                       hosts::StoreClient& values,
                                       double timeout_s) = nullptr;
};
Registry<LinkEntry>& links();
#define TESSERA_LINK(name, ...) \
  static const bool TESSERA_UNIQUE(tessera_link_) = ::tessera::comm::links().add(name, __VA_ARGS__)

/// The values of run.transport: "auto" and the names of the links.
std::vector<std::string> link_choices();
/// Returns the name of the link that is used: "gloo" for "auto". Throws Error{Config} for a name
/// that is not registered.
std::string link_name(std::string_view choice);
/// Throws as LinkEntry::check.
void check_link(std::string_view choice);

/// Returns the name of the transport that is used for memory of `kind`. Throws Error{Unsupported}
/// that says of every transport for this kind why it cannot be used.
std::string transport_name(const WorldNeeds& needs, DeviceKind kind);
/// Makes the world of a rank: one transport for memory of the host and, if the model is on a
/// device, a second one for that. Collective. Takes no ownership of `control`, which outlives the
/// world.
std::unique_ptr<World> make_world(const WorldNeeds& needs, ControlPage* control);

}  // namespace tessera::comm
