// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/host_column.h"

namespace tessera::comm {
namespace {

/// Below this size of an input, the latency of a chain costs more than its fewer bytes save:
/// measured at 1 Gbit/s by bench/run_host_chain.sh.
constexpr std::size_t kLeastBytes = std::size_t{2} << 20;

/// A partial sum of narrower elements than those in which they are added would be rounded.
bool keeps_partial_sums(DType dtype) {
  return dtype != DType::BF16;
}

}  // namespace

std::optional<HostColumn> column_of(const Group& group, const HostLayout& layout) {
  HostColumn out;
  const int last = layout.host_of(group.ranks.back()), first = layout.host_of(group.ranks.front());
  const int hosts = 1 + (last - first);
  if (hosts < 2 || group.size() % hosts != 0) return std::nullopt;
  out.locals = group.size() / hosts;
  out.host = group.index / out.locals;
  out.share = group.index % out.locals;
  const auto local_number = [&](int rank) { return rank - layout.begin(layout.host_of(rank)); };
  for (int member = 0; member < group.size(); ++member) {
    const int rank = group.ranks[static_cast<std::size_t>(member)];
    const int like = group.ranks[static_cast<std::size_t>(member % out.locals)];
    if (layout.host_of(rank) != first + member / out.locals ||
        local_number(rank) != local_number(like))
      return std::nullopt;
    if (member % out.locals == out.share) out.ranks.push_back(rank);
  }
  return out;
}

// In units of (hosts - 1) inputs, inputs that are sent to the hosts that need them take `locals`; a
// chain takes one, and for each part that goes to its owner or comes from it 1 / hosts.
bool chain_reduce_scatter(const HostColumn& column, DType dtype, std::size_t bytes, Write write) {
  const int others = write == Write::Accumulate ? 2 : 1;
  return keeps_partial_sums(dtype) && bytes >= kLeastBytes &&
         column.hosts() + others < column.locals * column.hosts();
}

// A chain takes two inputs, there and back; otherwise every member's input goes to every host.
bool chain_all_reduce(const HostColumn& column, DType dtype, std::size_t bytes) {
  return keeps_partial_sums(dtype) && bytes >= kLeastBytes && column.hosts() * column.locals > 2;
}

}  // namespace tessera::comm
