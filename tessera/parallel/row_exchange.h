// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, folded as (row, values) pairs: what nobody touched does
// not travel. Source: the sparse all-reduce of DeepSpeed's `sparse_gradients`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {

/// A table in a flat buffer that is cut evenly over the ranks of a group.
struct TablePlace {
  std::int64_t begin = 0;  ///< its first element in the buffer
  std::int64_t width = 0;  ///< elements of a row
  std::int64_t shard = 0;  ///< elements of the buffer that a rank owns; they may cut a row
  int ranks = 1;
  /// Rows pay where no more than one in so many elements of the buffer are kept or travel.
  static constexpr std::int64_t kShare = 4;
  [[nodiscard]] bool pays(std::int64_t numel) const { return numel * kShare <= shard * ranks; }
  /// The same of what one rank owns.
  [[nodiscard]] bool pays_owner(std::int64_t numel) const { return numel * kShare <= shard; }
};

/// Memory, Tag::GradientsInFlight: for the run, what was sent at most at a time, and what is
/// received while it is. Threads: the rank's own. fold() is collective.
class RowExchange {
 public:
  RowExchange(comm::World& world, const comm::Group& group) : world_(world), group_(group) {}

  enum class Outcome : std::uint8_t { Done, TooMany, Dense };
  /// Where a sum of the table has an element, and behind it those of its row. Only this rank's.
  using Sum = std::function<float*(std::int64_t element)>;
  /// sum += what every rank has in the part of the table that this rank owns, in rank order: there
  /// the bits of Transport::reduce_scatter() of dense buffers. `own`: this rank's; nullptr where it
  /// has more than rows. Without Outcome::Done nothing was done: too many rows for it to pay, or
  /// some rank's gradient is dense. The outcome is the same on every rank.
  Outcome fold(const RowSum* own, const TablePlace& table, const Sum& sum, const std::string& what);

 private:
  at::Tensor room_to_send(std::int64_t count);
  void pack(const RowSum& own, const TablePlace& table, std::span<float> to) const;
  void unpack(std::span<const float> from, const TablePlace& table, const Sum& sum) const;

  comm::World& world_;
  const comm::Group& group_;
  comm::RegionPtr region_;
};

}  // namespace tessera::parallel
