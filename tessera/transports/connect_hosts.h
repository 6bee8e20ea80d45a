// SPDX-License-Identifier: Apache-2.0
// Connects the ranks of several hosts with a registered link.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/transports/host_link.h"
#include "tessera/hosts/host_part.h"

namespace tessera::transports {

/// The connections of a rank, and what the ranks have exchanged about their hosts.
struct HostConnection {
  std::unique_ptr<comm::HostLink> link;  ///< authenticated (comm::AuthenticatedLink)
  comm::HostLayout layout;
};

/// Connects this rank with those of other hosts. The ranks exchange their layout, and the numbers
/// from which the keys of their messages are derived, through the coordinator of the job, over
/// authenticated connections. Collective: returns when all ranks of the job have called it. Throws
/// Error{Comm} if that takes longer than `timeout_s`, and the errors of the link if it cannot be
/// used here. `link`: a value of run.transport.
HostConnection connect_hosts(int rank,
                             const hosts::HostPart& part,
                             const std::string& link,
                             double timeout_s);

}  // namespace tessera::transports
