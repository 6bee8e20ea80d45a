// SPDX-License-Identifier: Apache-2.0
// Memory that a rank needs for data that travels between hosts: received inputs, and sums that go
// from host to host. The transport allocates by the same functions, so that a plan can count it.
#pragma once

#include <cstddef>

#include "tessera/base/dtype.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// A group with as many members on each of its hosts.
struct GroupPlace {
  int hosts = 1, locals = 1;  ///< locals: members on each host
};

/// Returns the size of a region for `least` bytes of copies and sums, which later operations of
/// about the same size use again.
std::size_t staging_bytes(std::size_t least);

/// Bytes for each group or channel on which a rank posts operations.
std::size_t memory_of_ring();

/// Bytes for one operation in progress, on the rank that needs most; 0 on a single host. `bytes`:
/// of the whole vector, that is, of the input of a reduce-scatter or an all-to-all, and of the
/// output of an all-gather.
std::size_t memory_of_reduce_scatter(GroupPlace place, DType dtype, std::size_t bytes, Write write);
std::size_t memory_of_all_to_all(GroupPlace place, std::size_t bytes);
/// `bytes`: of the fullest input of a member. All of it may be for one host.
std::size_t memory_of_all_to_all_v(GroupPlace place, std::size_t bytes);
std::size_t memory_of_all_gather(GroupPlace place, std::size_t bytes);
/// Bytes for the posted operations of a group's members on other hosts.
std::size_t memory_of_posts(GroupPlace place);

}  // namespace tessera::comm
