// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/row_exchange.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// Header before the values of a range: its offset in the owner's shard and its number of elements.
/// The number of ranges precedes all ranges.
struct Head {
  std::int64_t begin, count;
};
constexpr std::int64_t kHeadWords = sizeof(Head) / sizeof(float);
constexpr std::int64_t kCountWords = sizeof(std::int64_t) / sizeof(float);

/// Calls fn(owner, values, head) for the part of every row in each shard that the row overlaps.
template <class Fn>
void for_each_range(const RowSum& sum, const TablePlace& table, Fn fn) {
  const at::Tensor values = sum.values();
  const auto* from = values.const_data_ptr<float>();
  for (const std::int64_t row : sum.rows()) {
    const std::int64_t first = table.begin + row * table.width, last = first + table.width;
    for (std::int64_t owner = first / table.shard; owner * table.shard < last; ++owner) {
      const std::int64_t begin = std::max(first, owner * table.shard),
                         end = std::min(last, (owner + 1) * table.shard);
      fn(static_cast<std::size_t>(owner),
         from + (begin - first),
         Head{begin - owner * table.shard, end - begin});
    }
    from += table.width;
  }
}

}  // namespace

RowExchange::Outcome RowExchange::reduce(const RowSum* own,
                                         const TablePlace& table,
                                         const Sum& sum,
                                         const std::string& what) {
  const auto n = static_cast<std::size_t>(group_.size());
  std::vector<double> words(n, own != nullptr ? kCountWords : -1.0);
  if (own != nullptr) {
    for_each_range(*own, table, [&](std::size_t owner, const float*, const Head& head) {
      words[owner] += static_cast<double>(kHeadWords + head.count);
    });
  }
  const std::vector<double> all = world_.all_gather(group_, words, TESSERA_HERE("rows of " + what));
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  if (*least < 0) return Outcome::Dense;
  const auto count = static_cast<std::int64_t>(*most) * group_.size();
  if (!table.pays(count)) return Outcome::TooMany;

  const memory::ScopedTag tag(memory::Tag::GradientsInFlight);
  const at::Tensor sent = room_to_send(count), received = at::empty({count}, at::kFloat);
  pack(*own, table, {sent.data_ptr<float>(), static_cast<std::size_t>(count)});
  const comm::WorkPtr work = world_.transport().all_to_all(
      group_, span_of(sent), span_of(received), TESSERA_HERE("reduce rows of " + what));
  work->wait();
  unpack({received.const_data_ptr<float>(), static_cast<std::size_t>(count)}, table, sum);
  work->wait_reusable();
  return Outcome::Done;
}

/// Peers read the message in this memory.
at::Tensor RowExchange::room_to_send(std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (!region_ || region_->bytes() < bytes) {
    region_.reset();
    region_ = world_.transport().allocate(bytes, memory::current_tag());
  }
  return tensor_over(region_, count, DType::F32);
}

void RowExchange::pack(const RowSum& own, const TablePlace& table, std::span<float> to) const {
  const auto n = static_cast<std::size_t>(group_.size());
  std::vector<std::int64_t> ranges(n, 0);
  std::vector<float*> at(n);
  for (std::size_t owner = 0; owner < n; ++owner)
    at[owner] = to.data() + owner * (to.size() / n) + kCountWords;
  for_each_range(own, table, [&](std::size_t owner, const float* values, const Head& head) {
    float*& next = at[owner];
    std::memcpy(next, &head, sizeof(head));
    next = std::copy_n(values, head.count, next + kHeadWords);
    ++ranges[owner];
  });
  for (std::size_t owner = 0; owner < n; ++owner)
    std::memcpy(to.data() + owner * (to.size() / n), &ranges[owner], sizeof(ranges[owner]));
}

void RowExchange::unpack(std::span<const float> from,
                         const TablePlace& table,
                         const Sum& sum) const {
  const auto n = static_cast<std::size_t>(group_.size());
  for (std::size_t rank = 0; rank < n; ++rank) {
    const float* next = from.data() + rank * (from.size() / n);
    std::int64_t ranges = 0;
    std::memcpy(&ranges, next, sizeof(ranges));
    next += kCountWords;
    for (std::int64_t i = 0; i < ranges; ++i) {
      Head head{};
      std::memcpy(&head, next, sizeof(head));
      next += kHeadWords;
      float* const to = sum(group_.index * table.shard + head.begin - table.begin);
      for (std::int64_t k = 0; k < head.count; ++k)
        to[k] += next[k];
      next += head.count;
    }
  }
}

}  // namespace tessera::parallel
