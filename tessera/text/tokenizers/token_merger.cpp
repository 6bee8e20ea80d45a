// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/token_merger.h"

#include <algorithm>
#include <cstdint>

namespace tessera::text::tokenizers {
namespace {

constexpr std::size_t kHeapFrom = 64;  // symbols; with fewer, scanning is faster

void by_scan(const PairTable& pairs, std::vector<Token>& tokens, std::size_t first) {
  while (tokens.size() - first > 1) {
    PairTable::Hit best{PairTable::kNone, -1};
    std::size_t at = 0;
    for (std::size_t i = first; i + 1 < tokens.size(); ++i) {
      const PairTable::Hit hit = pairs.find(tokens[i].id, tokens[i + 1].id);
      if (hit.rank < best.rank) {
        best = hit;
        at = i;
      }
    }
    if (best.rank == PairTable::kNone) return;
    tokens[at] = {best.id, tokens[at].begin, tokens[at + 1].end};
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

struct Candidate {
  std::uint32_t rank;
  std::int32_t at;
};
// As BpeMerger::merge_by_heap(): an outdated candidate has a different rank by now, or the same
// rank and position as the one that replaced it.
void by_heap(const PairTable& pairs, std::vector<Token>& tokens, std::size_t first) {
  const auto count = static_cast<std::int32_t>(tokens.size() - first);
  const auto token = [&](std::int32_t i) -> Token& {
    return tokens[first + static_cast<std::size_t>(i)];
  };
  constexpr std::int32_t kGone = -1;
  std::vector<std::int32_t> previous(static_cast<std::size_t>(count)),
      next(static_cast<std::size_t>(count));
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  std::vector<Candidate> heap;
  const auto push = [&](std::int32_t left) {
    const std::int32_t right = next[static_cast<std::size_t>(left)];
    if (right >= count) return;
    const PairTable::Hit hit = pairs.find(token(left).id, token(right).id);
    if (hit.rank == PairTable::kNone) return;
    heap.push_back({hit.rank, left});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::int32_t i = 0; i < count; ++i) {
    previous[static_cast<std::size_t>(i)] = i - 1;
    next[static_cast<std::size_t>(i)] = i + 1;
  }
  for (std::int32_t i = 0; i < count; ++i)
    push(i);
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const std::int32_t left = top.at;
    if (token(left).id == kGone) continue;
    const std::int32_t right = next[static_cast<std::size_t>(left)];
    if (right >= count) continue;
    const PairTable::Hit hit = pairs.find(token(left).id, token(right).id);
    if (hit.rank != top.rank) continue;
    token(left) = {hit.id, token(left).begin, token(right).end};
    token(right).id = kGone;
    const std::int32_t after = next[static_cast<std::size_t>(right)];
    next[static_cast<std::size_t>(left)] = after;
    if (after < count) previous[static_cast<std::size_t>(after)] = left;
    push(left);
    if (previous[static_cast<std::size_t>(left)] >= 0)
      push(previous[static_cast<std::size_t>(left)]);
  }
  tokens.erase(std::remove_if(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                              tokens.end(),
                              [](const Token& t) { return t.id == kGone; }),
               tokens.end());
}

}  // namespace

void merge_tokens(const PairTable& pairs, std::vector<Token>& tokens, std::size_t first) {
  if (tokens.size() - first < kHeapFrom) {
    by_scan(pairs, tokens, first);
  } else {
    by_heap(pairs, tokens, first);
  }
}

}  // namespace tessera::text::tokenizers
