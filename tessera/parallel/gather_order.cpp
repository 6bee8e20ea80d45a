// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gather_order.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::parallel {

GatherOrder::GatherOrder(GroupsOfBlocks blocks,
                         std::vector<std::int64_t> numel,
                         GatherOptions options)
    : blocks_(std::move(blocks)),
      numel_(std::move(numel)),
      options_(options),
      gathered_(numel_.size(), false) {}

void GatherOrder::begin(std::vector<int> trace) {
  trace_ = std::move(trace);
  at_ = 0;
}

std::optional<int> GatherOrder::next() const {
  return at_ < trace_.size() ? std::optional(trace_[at_]) : std::nullopt;
}

std::vector<int> GatherOrder::before() {
  std::vector<int> out;
  for (const int g : groups_of(at_))
    gather(g, out);
  return out;
}

std::vector<int> GatherOrder::ahead() {
  std::vector<int> out;
  std::int64_t ahead = 0;
  const std::size_t end = options_.prefetch ? trace_.size() : std::min(trace_.size(), at_ + 2);
  for (std::size_t run = at_ + 1; run < end; ++run) {
    for (const int g : groups_of(run)) {
      const auto i = static_cast<std::size_t>(g);
      ahead += numel_[i];
      if (options_.prefetch && ahead > *options_.prefetch) return out;
      if (gathered_[i]) continue;
      if (live_ + numel_[i] > options_.max_live) return out;
      gather(g, out);
    }
  }
  return out;
}

std::vector<int> GatherOrder::upcoming(int count) const {
  std::vector<int> out;
  for (std::size_t run = at_ + 1; run < trace_.size(); ++run) {
    for (const int g : groups_of(run)) {
      if (std::ssize(out) == count) return out;
      if (!gathered_[static_cast<std::size_t>(g)] && std::ranges::find(out, g) == out.end())
        out.push_back(g);
    }
  }
  return out;
}

std::vector<int> GatherOrder::after() {
  std::vector<int> out;
  for (const int g : groups_of(at_)) {
    if (!needed_soon(g)) give_back(g, out);
  }
  ++at_;
  return out;
}

std::vector<int> GatherOrder::end() {
  std::vector<int> out;
  for (std::size_t g = 0; g < gathered_.size(); ++g)
    give_back(static_cast<int>(g), out);
  return out;
}

void GatherOrder::gather(int group, std::vector<int>& out) {
  const auto i = static_cast<std::size_t>(group);
  if (gathered_[i]) return;
  gathered_[i] = true;
  live_ += numel_[i];
  most_live_ = std::max(most_live_, live_);
  out.push_back(group);
}

void GatherOrder::give_back(int group, std::vector<int>& out) {
  const auto i = static_cast<std::size_t>(group);
  if (!gathered_[i]) return;
  gathered_[i] = false;
  live_ -= numel_[i];
  out.push_back(group);
}

/// True if a run within the reuse distance needs the group again.
bool GatherOrder::needed_soon(int group) const {
  std::int64_t between = 0;
  for (std::size_t run = at_ + 1; run < trace_.size(); ++run) {
    const std::vector<int>& groups = groups_of(run);
    if (std::find(groups.begin(), groups.end(), group) != groups.end())
      return live_ <= options_.max_live || run == at_ + 1;
    for (const int g : groups)
      between += numel_[static_cast<std::size_t>(g)];
    if (between > options_.max_reuse_distance) return false;
  }
  return false;
}

const std::vector<int>& GatherOrder::groups_of(std::size_t run) const {
  TESSERA_ASSERT(run < trace_.size());
  return blocks_[static_cast<std::size_t>(trace_[run])];
}

}  // namespace tessera::parallel
