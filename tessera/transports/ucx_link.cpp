// SPDX-License-Identifier: Apache-2.0
// The name "ucx" as a link between hosts, which is refused with the reason.
#include "tessera/base/error.h"
#include "tessera/comm/registry.h"

namespace tessera::transports {
namespace {

void refuse() {
  throw Error(Error::Kind::Unsupported,
              "run.transport: \"ucx\" is not built: over TCP, UCX was not faster than gloo "
              "(docs/hosts.md has the figures)",
              "set run.transport to \"auto\"");
}

std::unique_ptr<comm::HostLink> connect(int, const hosts::HostPart&, hosts::StoreClient&, double) {
  refuse();
  return nullptr;
}

TESSERA_LINK("ucx", {.rank_of_choice = 3, .check = refuse, .connect = connect});

}  // namespace
}  // namespace tessera::transports
