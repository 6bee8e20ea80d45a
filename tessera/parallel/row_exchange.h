// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, reduced as (row, values) pairs: rows that no rank
// touched are not sent. Source: the sparse all-reduce of DeepSpeed's `sparse_gradients`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {

/// A table in a flat buffer that is sharded evenly over the ranks of a group.
struct TablePlace {
  std::int64_t begin = 0;  ///< its first element in the buffer
  std::int64_t width = 0;  ///< elements of a row
  /// Elements of the buffer that a rank owns; a shard may end inside a row.
  std::int64_t shard = 0;
  int ranks = 1;
  /// Rows are used if at most one of every kShare elements of the buffer is kept or sent.
  static constexpr std::int64_t kShare = 4;
  [[nodiscard]] bool pays(std::int64_t numel) const { return numel * kShare <= shard * ranks; }
  /// The same for the part that one rank owns.
  [[nodiscard]] bool pays_owner(std::int64_t numel) const { return numel * kShare <= shard; }
};

/// Memory, Tag::GradientsInFlight: a send buffer that grows to the largest message and lives as
/// long as this object, and a receive buffer of the same size during reduce(). Threads: the rank's
/// own. reduce() is collective.
class RowExchange {
 public:
  RowExchange(comm::World& world, const comm::Group& group) : world_(world), group_(group) {}

  enum class Outcome : std::uint8_t { Done, TooMany, Dense };
  /// Returns the address of an element of this rank's sum; the rest of its row follows in memory.
  using Sum = std::function<float*(std::int64_t element)>;
  /// Adds the rows of every rank to `sum`, in rank order and as far as this rank owns them, with
  /// the same bits as Transport::reduce_scatter() of dense buffers. `own`: this rank's rows;
  /// nullptr if its gradient is dense. Outcomes TooMany and Dense (some rank's gradient is dense)
  /// leave `sum` unchanged. The outcome is the same on every rank.
  Outcome reduce(const RowSum* own,
                 const TablePlace& table,
                 const Sum& sum,
                 const std::string& what);

 private:
  at::Tensor room_to_send(std::int64_t count);
  void pack(const RowSum& own, const TablePlace& table, std::span<float> to) const;
  void unpack(std::span<const float> from, const TablePlace& table, const Sum& sum) const;

  comm::World& world_;
  const comm::Group& group_;
  comm::RegionPtr region_;
};

}  // namespace tessera::parallel
