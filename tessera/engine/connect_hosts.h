// SPDX-License-Identifier: Apache-2.0
// Connects the ranks of several hosts with the engine that run.transport names.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/link_engine.h"
#include "tessera/comm/transports/host_link.h"
#include "tessera/hosts/host_part.h"

namespace tessera::engine {

/// The connections of a rank, and what the ranks have exchanged about their hosts.
struct HostConnection {
  std::unique_ptr<comm::HostLink> link;  ///< authenticated (comm::AuthenticatedLink)
  comm::HostLayout layout;
};

/// Throws if the engine cannot be used by ranks on several hosts that were started as this process:
/// Error{Unsupported}, Error{Environment} or Error{Config}, with the line to type.
void check_engine(comm::LinkEngine engine);
/// Returns the name of the engine that is used, for messages: "gloo".
std::string engine_name(comm::LinkEngine engine);

/// Connects this rank with those of other hosts. The ranks exchange their layout, and the numbers
/// from which the keys of their messages are derived, through the coordinator of the job, over
/// authenticated connections. Collective: returns when all ranks of the job have called it. Throws
/// Error{Comm} if that takes longer than `timeout_s`, and Error{Environment} or Error{Unsupported}
/// if the engine cannot be used here.
HostConnection connect_hosts(int rank,
                             const hosts::HostPart& part,
                             comm::LinkEngine engine,
                             double timeout_s);

}  // namespace tessera::engine
