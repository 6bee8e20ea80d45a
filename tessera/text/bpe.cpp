// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/bpe.h"

#include <algorithm>

namespace tessera::text {

PairTable::PairTable(const std::vector<BpeModel::Merge>& merges) {
  reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank)
    put(merges[rank], static_cast<std::uint32_t>(rank));
}

PairTable::PairTable(const std::vector<BpeModel::Merge>& merges,
                     const std::vector<std::uint32_t>& ranks) {
  reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i)
    put(merges[i], ranks[i]);
}

void PairTable::reserve(std::size_t count) {
  std::size_t size = 2;
  shift_ = 63;
  while (size < count * 2) {
    size *= 2;
    --shift_;
  }
  mask_ = size - 1;
  slots_.assign(size, Slot{kEmpty, kNone, -1});
}

void PairTable::put(const BpeModel::Merge& merge, std::uint32_t rank) {
  const std::uint64_t key = pack(merge.left, merge.right);
  std::size_t i = slot(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key)
    i = (i + 1) & mask_;
  // If a pair is listed twice, the last line counts, as in a map from pairs to ranks.
  slots_[i] = {key, rank, merge.result};
}

std::span<const std::int32_t> BpeMerger::merge(std::span<const std::int32_t> symbols) {
  ids_.assign(symbols.begin(), symbols.end());
  if (ids_.size() < 2) return ids_;
  return ids_.size() < kHeapFrom ? merge_by_scan() : merge_by_heap();
}

std::span<const std::int32_t> BpeMerger::merge_by_scan() {
  std::size_t pairs = ids_.size() - 1;
  hits_.resize(pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    hits_[i] = pairs_.find(ids_[i], ids_[i + 1]);
  while (pairs > 0) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs; ++i) {
      if (hits_[i].rank < hits_[best].rank) best = i;
    }
    if (hits_[best].rank == PairTable::kNone) break;
    ids_[best] = hits_[best].id;
    std::copy(ids_.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              ids_.begin() + static_cast<std::ptrdiff_t>(pairs) + 1,
              ids_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(hits_.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              hits_.begin() + static_cast<std::ptrdiff_t>(pairs),
              hits_.begin() + static_cast<std::ptrdiff_t>(best));
    --pairs;
    if (best > 0) hits_[best - 1] = pairs_.find(ids_[best - 1], ids_[best]);
    if (best < pairs) hits_[best] = pairs_.find(ids_[best], ids_[best + 1]);
  }
  return {ids_.data(), pairs + 1};
}

// A linked list of symbols and a heap of pairs. When a pair is popped that has changed since it was
// pushed, the table returns another rank for the current pair, which reveals the change.
std::span<const std::int32_t> BpeMerger::merge_by_heap() {
  const auto count = static_cast<std::int32_t>(ids_.size());
  constexpr std::int32_t kGone = -1;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  nodes_.resize(ids_.size());
  heap_.clear();
  for (std::int32_t i = 0; i < count; ++i)
    nodes_[i] = {i - 1, i + 1};
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    const PairTable::Hit hit = pairs_.find(ids_[i], ids_[i + 1]);
    if (hit.rank != PairTable::kNone) heap_.push_back({hit.rank, i, hit.id});
  }
  std::make_heap(heap_.begin(), heap_.end(), later);
  const auto push = [&](std::int32_t left) {
    const PairTable::Hit hit = pairs_.find(ids_[left], ids_[nodes_[left].next]);
    if (hit.rank == PairTable::kNone) return;
    heap_.push_back({hit.rank, left, hit.id});
    std::push_heap(heap_.begin(), heap_.end(), later);
  };
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
    const std::int32_t left = top.position, right = nodes_[left].next;
    if (ids_[left] == kGone || right >= count) continue;
    if (pairs_.find(ids_[left], ids_[right]).rank != top.rank) continue;
    ids_[left] = top.id;
    ids_[right] = kGone;
    nodes_[left].next = nodes_[right].next;
    if (nodes_[left].next < count) {
      nodes_[nodes_[left].next].previous = left;
      push(left);
    }
    if (nodes_[left].previous >= 0) push(nodes_[left].previous);
  }
  ids_.erase(std::remove(ids_.begin(), ids_.end(), kGone), ids_.end());
  return ids_;
}

}  // namespace tessera::text
