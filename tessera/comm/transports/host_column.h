// SPDX-License-Identifier: Apache-2.0
// Determines which ranks of a group reduce the same elements if sums go from host to host
// (host_chain.h), and whether that sends fewer bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/comm/transport.h"
#include "tessera/comm/transports/host_link.h"

namespace tessera::comm {

/// The members of a group that reduce the same elements: one on each host.
struct HostColumn {
  std::vector<int> ranks;  ///< in the order of the hosts
  int host = 0;            ///< position of this rank in `ranks`
  int locals = 0;          ///< number of members on each host
  int share = 0;           ///< position of this rank among the members of its host

  [[nodiscard]] int hosts() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] bool is_first() const { return host == 0; }
  [[nodiscard]] bool is_last() const { return host + 1 == hosts(); }
  /// Returns the position in the group of the first member on this host.
  [[nodiscard]] int first_local() const { return host * locals; }
};

/// Returns the column of this rank if every host has as many members with the same local numbers,
/// which follow each other in the order of the hosts; otherwise, and on a single host, nothing.
std::optional<HostColumn> column_of(const Group& group, const HostLayout& layout);

/// Returns whether fewer bytes travel if sums go from host to host than if every input is sent to
/// the hosts that need it, and the data is large enough for the additional latency. `bytes`: of the
/// whole input. BF16 is refused, because partial sums would be rounded.
bool chain_reduce_scatter(const HostColumn& column, DType dtype, std::size_t bytes, Write write);
bool chain_all_reduce(const HostColumn& column, DType dtype, std::size_t bytes);

}  // namespace tessera::comm
