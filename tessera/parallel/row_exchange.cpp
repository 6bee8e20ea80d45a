// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

namespace tessera::parallel {
namespace {

/// Before the values of a range: where it begins in the owner's shard and how many there are. The
/// number of ranges stands before them all.
struct Head {
  std::int64_t begin, count;
};
constexpr std::int64_t kHeadWords = sizeof(Head) / sizeof(float);
constexpr std::int64_t kCountWords = sizeof(std::int64_t) / sizeof(float);

/// Calls fn(owner, begin, end) for the part of the range in every shard that it reaches into.
template <class Fn>
void for_each_owner(const Touched& range, std::int64_t shard, Fn fn) {
  for (std::int64_t owner = range.begin / shard; owner * shard < range.end; ++owner)
    fn(owner, std::max(range.begin, owner * shard), std::min(range.end, (owner + 1) * shard));
}

std::size_t room(std::int64_t numel) {
  return static_cast<std::size_t>(numel / RowExchange::kShare) * sizeof(float);
}

}  // namespace

RowExchange::RowExchange(comm::World& world, const comm::Group& group, std::int64_t numel)
    : world_(world),
      group_(group),
      send_(world.transport().allocate(room(numel), memory::Tag::GradientsInFlight)),
      receive_(world.transport().allocate(room(numel), memory::Tag::GradientsInFlight)) {}

RowExchange::~RowExchange() = default;

RowExchange::Outcome RowExchange::fold(const at::Tensor& flat,
                                       const std::optional<std::vector<Touched>>& touched,
                                       const at::Tensor& out,
                                       comm::Fold fold,
                                       const std::string& what) {
  const std::int64_t n = group_.size(), shard = out.numel();
  std::vector<double> words(static_cast<std::size_t>(n), touched ? kCountWords : -1.0);
  if (touched) {
    for (const Touched& range : *touched) {
      for_each_owner(range, shard, [&](std::int64_t owner, std::int64_t begin, std::int64_t end) {
        words[static_cast<std::size_t>(owner)] += static_cast<double>(kHeadWords + end - begin);
      });
    }
  }
  const std::vector<double> all = world_.all_gather(group_, words, TESSERA_HERE("rows of " + what));
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  if (*least < 0) return Outcome::Dense;
  const auto part = static_cast<std::int64_t>(*most);
  const std::size_t bytes = static_cast<std::size_t>(part * n) * sizeof(float);
  if (bytes > std::min(send_->bytes(), room(flat.numel()))) return Outcome::TooMany;

  if (work_) work_->wait_reusable();
  pack(flat, *touched, shard, part);
  const auto count = static_cast<std::size_t>(part * n);
  work_ = world_.transport().all_to_all(group_,
                                        {send_->data(), count, DType::F32, {}},
                                        {receive_->data(), count, DType::F32, {}},
                                        TESSERA_HERE("fold rows of " + what));
  work_->wait();
  unpack(part, out, fold);
  return Outcome::Done;
}

void RowExchange::pack(const at::Tensor& flat,
                       std::span<const Touched> touched,
                       std::int64_t shard,
                       std::int64_t part) {
  auto* const base = static_cast<float*>(send_->data());
  const auto n = static_cast<std::size_t>(group_.size());
  std::vector<std::int64_t> ranges(n, 0);
  std::vector<float*> at(n);
  for (std::size_t owner = 0; owner < n; ++owner)
    at[owner] = base + static_cast<std::int64_t>(owner) * part + kCountWords;
  const float* const values = flat.const_data_ptr<float>();
  for (const Touched& range : touched) {
    for_each_owner(range, shard, [&](std::int64_t owner, std::int64_t begin, std::int64_t end) {
      float*& to = at[static_cast<std::size_t>(owner)];
      const Head head{begin - owner * shard, end - begin};
      std::memcpy(to, &head, sizeof(head));
      std::copy(values + begin, values + end, to + kHeadWords);
      to += kHeadWords + head.count;
      ++ranges[static_cast<std::size_t>(owner)];
    });
  }
  for (std::size_t owner = 0; owner < n; ++owner)
    std::memcpy(base + static_cast<std::int64_t>(owner) * part, &ranges[owner], sizeof(ranges[0]));
}

/// The dense fold adds +0 where a rank touched nothing: that makes +0 of -0 and changes nothing
/// else. So every element gets it once, but those that all ranks touched.
void RowExchange::unpack(std::int64_t part, const at::Tensor& out, comm::Fold fold) const {
  float* const sums = out.data_ptr<float>();
  const std::int64_t numel = out.numel();
  if (fold == comm::Fold::Store) std::fill(sums, sums + numel, 0.0F);
  std::map<std::int64_t, std::pair<std::int64_t, int>> touched;  // begin: count, ranks
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto* from = static_cast<const float*>(receive_->data()) + rank * part;
    std::int64_t ranges = 0;
    std::memcpy(&ranges, from, sizeof(ranges));
    from += kCountWords;
    for (std::int64_t i = 0; i < ranges; ++i) {
      Head head{};
      std::memcpy(&head, from, sizeof(head));
      from += kHeadWords;
      float* const to = sums + head.begin;
      if (rank == 0 && fold == comm::Fold::Store) {
        std::copy(from, from + head.count, to);
      } else {
        for (std::int64_t k = 0; k < head.count; ++k)
          to[k] += from[k];
      }
      from += head.count;
      auto& seen = touched[head.begin];
      seen = {head.count, seen.second + 1};
    }
  }
  std::int64_t at = 0;
  const auto add_zero = [&](std::int64_t end) {
    for (; at < end; ++at)
      sums[at] += 0.0F;
  };
  for (const auto& [begin, seen] : touched) {
    if (seen.second < group_.size()) continue;
    add_zero(begin);
    at = begin + seen.first;
  }
  add_zero(numel);
}

}  // namespace tessera::parallel
