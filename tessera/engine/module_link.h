// SPDX-License-Identifier: Apache-2.0
// Links whose engine is an optional library, in a shared library beside libtessera.so.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/transports/host_link.h"

namespace tessera::engine {

/// Opens libtessera_<name>.so and connects this rank with all others. Throws Error{Unsupported} if
/// this build has no such library, Error{Environment} if it or a library that it needs cannot be
/// loaded, and Error{Config} if the ranks were not started as its engine requires: for MPI by
/// mpirun.
std::unique_ptr<comm::HostLink> open_module_link(const std::string& name, int rank, int world_size);

/// Throws as open_module_link(), as far as it can be known in any process of this host, also in one
/// that is no rank.
void check_module(const std::string& name);

}  // namespace tessera::engine
