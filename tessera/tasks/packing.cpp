// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/packing.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

/// Best-fit packing: samples by their free room.
class BestFit {
 public:
  explicit BestFit(std::int64_t length) : length_(length) {}
  void put(const Piece& piece) {
    const auto found = by_room_.lower_bound(piece.size());
    std::size_t sample = samples_.size();
    std::int64_t room = length_;
    if (found == by_room_.end()) {
      samples_.emplace_back();
    } else {
      room = found->first;
      sample = found->second.front();  // the sample that has had this room for the longest time
      found->second.pop_front();
      if (found->second.empty()) by_room_.erase(found);
    }
    samples_[sample].push_back(piece);
    if (room > piece.size()) by_room_[room - piece.size()].push_back(sample);
  }
  std::vector<PackedSample> samples() && { return std::move(samples_); }

 private:
  std::int64_t length_;
  std::vector<PackedSample> samples_;
  std::map<std::int64_t, std::deque<std::size_t>> by_room_;
};

/// A binary tree whose leaves are samples; each node has the largest free room below it.
class FirstFit {
 public:
  FirstFit(std::int64_t length, std::size_t most)
      : leaves_(std::bit_ceil(std::max<std::size_t>(most, 1))), rooms_(2 * leaves_, length) {}
  void put(const Piece& piece) {
    std::size_t node = 1;
    while (node < leaves_) {
      node *= 2;
      if (rooms_[node] < piece.size()) ++node;
    }
    const std::size_t sample = node - leaves_;
    if (sample >= samples_.size()) samples_.resize(sample + 1);
    samples_[sample].push_back(piece);
    rooms_[node] -= piece.size();
    for (node /= 2; node > 0; node /= 2)
      rooms_[node] = std::max(rooms_[2 * node], rooms_[2 * node + 1]);
  }
  std::vector<PackedSample> samples() && { return std::move(samples_); }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> rooms_;
  std::vector<PackedSample> samples_;
};

template <class Bins>
std::vector<PackedSample> fill(Bins bins, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces)
    bins.put(piece);
  return std::move(bins).samples();
}

std::vector<PackedSample> one_each(const std::vector<Piece>& pieces) {
  std::vector<PackedSample> out;
  for (const Piece& piece : pieces)
    out.push_back({piece});
  return out;
}

std::vector<PackedSample> in_order(const std::vector<Piece>& pieces, std::int64_t length) {
  std::vector<PackedSample> out;
  std::int64_t room = 0;
  for (const Piece& piece : pieces) {
    if (out.empty() || room < piece.size()) {
      out.emplace_back();
      room = length;
    }
    out.back().push_back(piece);
    room -= piece.size();
  }
  return out;
}

std::vector<PackedSample> wrapped(const std::vector<std::int64_t>& lengths, std::int64_t length) {
  std::vector<PackedSample> out;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t begin = 0; begin < lengths[i];) {
      if (room == 0) {
        out.emplace_back();
        room = length;
      }
      const std::int64_t taken = std::min(room, lengths[i] - begin);
      out.back().push_back({static_cast<std::int64_t>(i), begin, begin + taken});
      begin += taken;
      room -= taken;
    }
  }
  return out;
}

}  // namespace

std::vector<PackedSample> pack(const std::vector<std::int64_t>& lengths,
                               std::int64_t length,
                               Packing packing) {
  TESSERA_ASSERT(length > 0);
  if (packing == Packing::Wrapped) return wrapped(lengths, length);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t used =
        packing == Packing::BestFitSplit ? lengths[i] : std::min(lengths[i], length);
    for (std::int64_t begin = 0; begin < used; begin += length)
      pieces.push_back({static_cast<std::int64_t>(i), begin, std::min(begin + length, used)});
  }
  if (packing == Packing::None) return one_each(pieces);
  if (packing == Packing::InOrder) return in_order(pieces, length);
  std::ranges::stable_sort(pieces, std::ranges::greater(), &Piece::size);
  if (packing == Packing::FirstFit) return fill(FirstFit(length, pieces.size()), pieces);
  return fill(BestFit(length), pieces);
}

}  // namespace tessera::tasks
