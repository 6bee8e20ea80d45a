// SPDX-License-Identifier: Apache-2.0
// Collectives of a group of one rank, and the argument checks of every transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

// Each check throws Error{Shape} with the call and the sizes that do not match, or
// Error{Unsupported} for a type or device.
void check_reduce_scatter(
    const Group& group, const Span& in, const Span& out, Op op, const CallSite& site);
void check_all_gather(const Group& group, const Span& in, const Span& out, const CallSite& site);
void check_all_reduce(const Span& data, Op op, const CallSite& site);
void check_broadcast(const Group& group, const Span& data, int root_index, const CallSite& site);
void check_all_to_all(const Group& group, const Span& in, const Span& out, const CallSite& site);
void check_all_to_all_v(const Group& group,
                        const Span& in,
                        const Span& out,
                        std::span<const std::int64_t> counts,
                        const CallSite& site);
void check_message(int rank, int ranks, int peer, const Span& data, const CallSite& site);

/// Places of the parts in an exchange of unequal ones: their first elements, and the number of
/// elements as the last entry. Of what `member` sends, in order of the receivers; of what it
/// receives, in order of the senders.
std::vector<std::size_t> sent_parts(std::span<const std::int64_t> counts, int size, int member);
std::vector<std::size_t> received_parts(std::span<const std::int64_t> counts, int size, int member);

/// Returns "reduce h.3 at zero.cpp:88".
std::string describe(const CallSite& site);

/// The operation of a group of one rank, complete on return.
void reduce_scatter_alone(const Span& in, const Span& out, Op op, Write mode);
/// Copies `in` to `out` unless they are the same memory.
void copy_alone(const Span& in, const Span& out);
/// Returns a Work that is complete; throws if the world is broken.
WorkPtr completed_work(ControlPage& control);

}  // namespace tessera::comm
