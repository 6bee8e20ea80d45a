// SPDX-License-Identifier: Apache-2.0
// The exchange of parts of different sizes.
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "tessera/comm/transports/local.h"
#include "tessera/comm/transports/pull.h"

namespace tessera::comm {
namespace {

/// FNV-1a hash of the sizes.
std::int32_t hash_of(std::span<const std::int64_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::int64_t count : counts)
    hash = (hash ^ static_cast<std::uint64_t>(count)) * 0x100000001b3U;
  return static_cast<std::int32_t>((hash ^ (hash >> 32)) & 0x7fffffffU);
}

}  // namespace

WorkPtr PullTransport::all_to_all_v(
    const Group& group, Span in, Span out, std::span<const std::int64_t> counts, CallSite site) {
  check_all_to_all_v(group, in, out, counts, site);
  Operation::Start begin = start(group_channel(group), Kind::AllToAllV, in, site);
  if (group.size() == 1) {
    copy_alone(in, out);
    return completed_work(context_->control);
  }
  // Members that do not agree about the sizes are found like those that disagree about anything.
  begin.signature.count = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  begin.signature.root = hash_of(counts);
  count(group, in);
  claim_slot(begin);
  const std::size_t width = size_of(in.dtype);
  for (const std::size_t place : sent_parts(counts, group.size(), group.index))
    begin.parts.push_back(place * width);
  offer(begin, in, group.size(), false);
  keep(begin, out);
  const std::vector<std::size_t> places = received_parts(counts, group.size(), group.index);
  Parts parts;
  for (int member = 0; member < group.size(); ++member) {
    const auto i = static_cast<std::size_t>(member), own = static_cast<std::size_t>(group.index);
    const std::size_t from = sent_parts(counts, group.size(), member)[own] * width;
    parts.push_back({member,
                     from,
                     static_cast<std::byte*>(out.data) + places[i] * width,
                     (places[i + 1] - places[i]) * width});
  }
  return track(std::make_shared<PullParts>(std::move(begin), *context_, std::move(parts)));
}

}  // namespace tessera::comm
